"""Checkers: what they accept, and which are kept."""

import pytest

from ludus.sleep.checkers import (
    Checker,
    CheckerTrial,
    check_text,
    choose_checkers,
    find_checker_fault,
    make_plain_checkers,
    run_checker,
)


@pytest.mark.parametrize(
    ("checker", "right", "wrong"),
    [
        (Checker(kind="contains", text="Order 7"), "the order  7 is open", "order 8"),
        (Checker(kind="not_contains", text="sorry"), "here it is", "I am Sorry"),
        (Checker(kind="regex", text=r"^\d{4}-\d\d$"), "date:\n2026-11\nbye", "2026-1"),
        (Checker(kind="json", keys=("a", "b")), '```json\n{"a": 1, "b": 2}\n```', '{"a": 1}'),
        (Checker(kind="json"), "[1]", "1"),
        (Checker(kind="section", text="## Risks"), "text\n**Risks**\n- none", "Risks are none"),
        (Checker(kind="section", text="Risks"), "Risks:\nnone", "no Risks:"),
        (Checker(kind="length", least=2, most=3), "abc", "abcd"),
        (Checker(kind="exact", text="Yes, 42"), "yes,  42\n", "yes, 42."),
    ],
)
def test_a_checker_tells_right_from_wrong(checker: Checker, right: str, wrong: str):
    from msgspec import to_builtins

    assert run_checker(to_builtins(checker), right) and not run_checker(to_builtins(checker), wrong)


@pytest.mark.parametrize(
    ("checker", "fault"),
    [
        (Checker(kind="contains"), "`text` is empty"),
        (Checker(kind="regex", text="(a"), "regex: "),
        (Checker(kind="regex", text="a{99999999999}"), "regex: "),
        (Checker(kind="contains", text="x" * 3000), "more than 2,000"),
        (Checker(kind="length"), "give `least` or `most`"),
        (Checker(kind="length", least=3, most=2), "above"),
        (Checker(kind="json", keys=("",)), "keys"),
    ],
)
def test_what_is_wrong_with_a_checker_is_said(checker: Checker, fault: str):
    assert fault in find_checker_fault(checker)


async def test_an_expression_that_never_ends_is_stopped():
    with pytest.raises(TimeoutError):
        await check_text(Checker(kind="regex", text="(a|a|b)*(a|b)*!$"), "a" * 40_000, 0.5)


def test_answers_themselves_can_be_checkers():
    assert make_plain_checkers(" 42 kg ") == (Checker(kind="exact", text="42 kg"),)
    assert make_plain_checkers('{"a": 1}') == (Checker(kind="json", keys=("a",)),)
    assert make_plain_checkers("a\nb") == make_plain_checkers("") == make_plain_checkers("x" * 201) == ()


SPECIFIC = CheckerTrial(True, False, (False, False))
GENERAL = CheckerTrial(True, False, (True, True))
GUARD = CheckerTrial(True, True, (True, True))


@pytest.mark.parametrize(
    ("trials", "kept", "reason"),
    [
        ([SPECIFIC, GENERAL, GUARD], 3, ""),
        ([GENERAL], 0, "the answer of another session passes its checkers"),
        ([GUARD], 0, "an empty reply passes its checkers"),
        ([CheckerTrial(False, False, ())], 0, "a checker that the accepted answer does not pass"),
        ([CheckerTrial(None, False, ()), SPECIFIC], 1, ""),
        ([CheckerTrial(None, False, ())], 0, "a checker took too long or broke"),
        ([], 0, "no checker was proposed"),
    ],
)
def test_checkers_are_kept_that_hold_and_tell_apart(trials: list[CheckerTrial], kept: int, reason: str):
    checkers = [(Checker(kind="contains", text=str(n)), trial) for n, trial in enumerate(trials)]
    chosen, why = choose_checkers(checkers)
    assert (len(chosen), why) == (kept, reason)
