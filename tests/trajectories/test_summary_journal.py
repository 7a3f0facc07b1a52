"""Summaries that survive a kill."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.errors import ConfigError
from ludus.trajectories.summary_journal import SummaryJournal, make_summary_key


@given(texts=st.lists(st.text(max_size=20), max_size=6), cut=st.integers(0, 200))
def test_what_was_written_whole_is_found_again_wherever_the_file_ends(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], cut: int
):
    output = tmp_path_factory.mktemp("journal") / "out.jsonl"
    with SummaryJournal(output) as journal:
        for n, text in enumerate(texts):
            journal.put(str(n), text)
    path = output.with_name(".out.jsonl.summaries")
    left = path.read_bytes()[:cut]
    path.write_bytes(left)
    with SummaryJournal(output) as journal:
        whole = left.count(b"\n")
        assert [journal.get(str(n)) for n in range(len(texts))] == [*texts[:whole], *[None] * (len(texts) - whole)]
        journal.put("more", "text")
    with SummaryJournal(output) as journal:
        assert journal.get("more") == "text"
        journal.remove()
    assert not path.exists()


def test_another_file_of_that_name_is_refused(tmp_path: Path):
    (tmp_path / ".out.jsonl.summaries").write_text("hello\n")
    with pytest.raises(ConfigError, match="not a journal of summaries"), SummaryJournal(tmp_path / "out.jsonl"):
        pass


def test_a_key_has_all_parts_in_it():
    assert len({make_summary_key("a", "bc"), make_summary_key("ab", "c"), make_summary_key("abc")}) == 3
