"""Which text of a reply is its content."""

from typing import Any

import pytest

from ludus.parsers.content import ContentCollector
from ludus.parsers.formats import Format

CALL = object()


def collect(*parts: Any, **format: Any) -> tuple[str, list[tuple[int, str]]]:
    """The content of text and calls, and what was stray."""
    emitted: list[str] = []
    collector = ContentCollector(Format(**format), emitted.append)
    at = 0
    for part in parts:
        if part is CALL:
            collector.add_call(at)
        else:
            collector.add_text(part, at)
            at += len(part)
    problems = collector.finish()
    assert all(problem.kind == "stray" for problem in problems)
    return "".join(emitted), [(problem.at, problem.raw) for problem in problems]


@pytest.mark.parametrize(
    ("parts", "content"),
    [
        (("Hi. ",), "Hi. "),
        (("Hi.\n", CALL), "Hi."),
        (("a ", CALL, " b"), "a b"),
        ((CALL, "\n", CALL, "\nDone."), "Done."),
        (("a", " ", "b"), "a b"),
        ((" ", CALL, " "), ""),
    ],
    ids=["text", "before", "between", "after", "pieces", "blank"],
)
def test_white_space_around_a_call_belongs_to_the_call(parts: tuple[Any, ...], content: str) -> None:
    assert collect(*parts) == (content, [])


def test_what_a_format_puts_between_calls_is_not_content() -> None:
    assert collect(CALL, "; ", CALL, glue=";") == ("", [])
    assert collect(CALL, "; ", CALL, "ok", glue=";") == ("ok", [])


def test_text_after_the_calls_is_stray_where_calls_end_a_reply() -> None:
    assert collect("a", CALL, " b ", CALL, "c", keep="before") == ("a", [(2, "bc")])


def test_text_beside_calls_is_stray_where_there_must_be_none() -> None:
    assert collect("a ", CALL, "b", keep="nothing") == ("", [(0, "ab")])
    assert collect("a ", "b", keep="nothing") == ("a b", [])


def test_a_section_is_content_only_if_it_holds_no_call() -> None:
    for called in (False, True):
        emitted: list[str] = []
        collector = ContentCollector(Format(), emitted.append)
        collector.open_section("<calls>")
        collector.add_text("\n", 7)
        if called:
            collector.add_call(8)
        collector.close_section("</calls>", 9)
        assert collector.finish() == []
        assert "".join(emitted) == ("" if called else "<calls>\n</calls>")


def test_a_section_without_an_end_is_text() -> None:
    emitted: list[str] = []
    collector = ContentCollector(Format(), emitted.append)
    collector.open_section("<calls>")
    collector.add_text("x", 7)
    assert emitted == [], "a call may still come"
    collector.finish()
    assert emitted == ["<calls>x"]
