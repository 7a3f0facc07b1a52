"""What a worker finds again."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.errors import StoreError
from ludus.rl.worker_journal import WorkerJournal
from ludus.store import RunDir


def test_open_groups_versions_and_keys_are_the_same_in_the_next_process(tmp_path: Path):
    with RunDir.open(tmp_path / "run", {}) as run:
        journal = WorkerJournal(run)
        assert journal.next_number == 0 and journal.list_open() == []
        for number in range(3):
            journal.begin(number, f"t{number}", 10 + number)
        journal.end(1, "sent")
        keys = [journal.make_key(number) for number in range(3)]
        journal.begin_eval(5)
        journal.begin_eval(10)
        journal.end_eval(5, {"eval/reward": 0.5})
    with RunDir.open(tmp_path / "run", {}, resume=True) as run:
        again = WorkerJournal(run)
        assert again.next_number == 3 and again.list_open() == [0, 2]
        assert again.get_version(2) == 12
        assert [again.make_key(number) for number in range(3)] == keys
        assert again.list_open_evals() == [10]
        assert again.count_verdicts() == {"sent": 1}
    assert len(set(keys)) == 3


def test_another_run_has_other_keys(tmp_path: Path):
    keys = []
    for name in ("a", "b"):
        with RunDir.open(tmp_path / name, {}) as run:
            keys.append(WorkerJournal(run).make_key(0))
    assert keys[0] != keys[1]


@given(st.lists(st.tuples(st.sampled_from(["begin", "end", "reopen"]), st.integers(0, 5)), max_size=20))
def test_what_was_begun_and_not_ended_is_open(tmp_path_factory, events):
    folder = tmp_path_factory.mktemp("journal")
    run = RunDir.open(folder / "run", {})
    journal, begun, ended = WorkerJournal(run), set[int](), set[int]()
    for event, number in events:
        if event == "begin":
            begun.add(journal.next_number)
            journal.begin(journal.next_number, "t", 0)
        elif event == "end" and number in begun - ended:
            journal.end(number, "sent")
            ended.add(number)
        elif event == "reopen":
            run.close()
            run = RunDir.open(folder / "run", {}, resume=True)
            journal = WorkerJournal(run)
        assert journal.list_open() == sorted(begun - ended)
        assert journal.next_number == len(begun)
    run.close()


def test_a_damaged_record_is_an_error_with_advice(tmp_path: Path):
    with RunDir.open(tmp_path / "run", {}) as run:
        run.put_record("serve/begin/0", "serve_begin", b"{}")
        with pytest.raises(StoreError, match="a record of the run cannot be read"):
            WorkerJournal(run)
