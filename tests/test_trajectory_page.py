"""The page must be whole, ask for nothing, and take nothing a model wrote for markup."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.build import make_group, make_rollout, make_task, make_turn

from ludus.batch import make_group_row
from ludus.encoding import to_json
from ludus.stats import summarize
from ludus.trajectory_page import escape_markup, render_page
from ludus.types import Call, Group, Message, Provenance, StopReason, ToolResult

NASTY = [
    "</script><script>alert(1)</script>",
    '<img src=x onerror="alert(1)">',
    "<!-- <script>",
    "]]>",
    "&lt;b&gt; \u2028 \u2029 \0 \x1b[31m",
    "@ROWS@ @TITLE@ @ABOUT@ @END@ @POLICY@",
    "\\u003c/script>",
    '"}],"x":[{"',
]


class Reader(HTMLParser):
    """What a browser would make of the page: its elements, and the text of its scripts and styles."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self.open = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append((tag, found))
        self.open = found.get("id") or tag

    def handle_endtag(self, tag: str) -> None:
        self.open = ""

    def handle_data(self, data: str) -> None:
        self.texts[self.open] = self.texts.get(self.open, "") + data


def group(text: str, number: int = 0) -> Group:
    task = make_task(f"{text}{number}", text, kind=text, answer="THE-ANSWER")
    result = ToolResult(Call(text, text, text), text, error=text)
    rollout = make_rollout(
        1.0,
        make_turn(text, result, thinking=text, stop=StopReason.FINISHED),
        task=task,
        feedback=text,
        provenance=Provenance(policy="p", model=text),
        opening=(Message("system", text), Message("user", text)),
    )
    return make_group(rollout, size=2)


def page(groups: list[Group], title: str = "run", **options: int) -> str:
    rows = [to_json(make_group_row(group, index)) for index, group in enumerate(groups)]
    return b"".join(render_page(title, {"model": title}, summarize(groups), rows, **options)).decode()


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    return reader


def rows(reader: Reader) -> list[dict]:
    return [json.loads(line) for line in reader.texts.get("rows", "").split("\n") if line.strip()]


PLAIN = read(page([]))


@pytest.mark.parametrize("text", NASTY)
def test_hostile_text_stays_text(text: str):
    groups = [group(text)]
    reader = read(page(groups, title=text))
    assert [tag for tag, _ in reader.tags] == [tag for tag, _ in PLAIN.tags]
    assert reader.texts["script"] == PLAIN.texts["script"]
    assert rows(reader) == [json.loads(to_json(make_group_row(groups[0])))]
    assert json.loads(reader.texts["about"])["facts"] == {"model": text}
    assert reader.texts["title"].replace("\ufffd", "\0") == text


@settings(deadline=None)
@given(st.text())
def test_any_text_survives_being_made_inert(text: str):
    data = escape_markup(to_json([text]))
    assert b"<" not in data
    assert json.loads(data) == [text]


def test_the_page_asks_for_nothing_and_runs_only_its_own_script():
    text = page([group("fine")])
    reader = read(text)
    assert not re.search(r"https?://|//cdn|@import|url\(", text)
    assert not [name for _, attributes in reader.tags for name in attributes if name in {"src", "href", "style"}]
    assert not [name for _, attributes in reader.tags for name in attributes if name.startswith("on")]
    policy = next(a["content"] for tag, a in reader.tags if tag == "meta" and "http-equiv" in a)
    for element in ("script", "style"):
        digest = base64.b64encode(hashlib.sha256(reader.texts[element].encode()).digest()).decode()
        assert f"{element}-src 'sha256-{digest}'" in (policy or "")
    assert "default-src 'none'" in (policy or "")


def test_the_script_makes_no_markup_of_text():
    script = PLAIN.texts["script"]
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "setAttribute"):
        assert way not in script


def test_the_answer_is_not_on_the_page():
    assert "THE-ANSWER" not in page([group("x")])


def test_what_does_not_fit_is_left_out_and_counted():
    groups = [group("x" * 1000, number) for number in range(20)]
    size = len(to_json(make_group_row(groups[0])))
    reader = read(page(groups, largest=size * 5 + 100))
    assert len(rows(reader)) == 5
    assert json.loads(reader.texts["end"]) == {"left_out": 15}


def test_too_many_rollouts_without_a_score_are_a_warning_on_the_page():
    def read_about(*scores: float | None) -> Any:
        groups = [make_group(*scores)]
        return json.loads(read(page(groups)).texts["about"])

    assert read_about(1.0, 1.0)["warning"] == ""
    about = read_about(1.0, None)
    assert about["warning"].startswith("1 of 2 rollouts (50.0 %) have no score")
    assert about["summary"]["overall"]["mean_with_zeros"] == 0.5


def test_a_run_without_rollouts_has_a_page():
    assert rows(PLAIN) == []
    assert json.loads(PLAIN.texts["about"])["summary"]["overall"]["mean"] is None
