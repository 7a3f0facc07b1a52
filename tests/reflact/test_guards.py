"""Texts that must not get into a skill, and tasks that no honest answer passes."""

import pytest
from tests.build import make_task

from ludus.reflact.guards import REFUSED_STATUSES, CanaryReport, Fault, Guard, GuardSettings, list_added, make_canaries
from ludus.skill import Edit, Skill, SkillFile
from ludus.skill_examples import Example, render_example

PROMPT = "A farmer has seventeen sheep and all but nine of them run away over the hill"
TRAIN = (
    make_task("t1", PROMPT, answer="the answer is nine sheep"),
    make_task("t2", "Sort the following list of words by length, then by letter, please", answer="12"),
    make_task("t3", "Sort the following list of words by length, then by letter, please", answer="yes, it is sorted"),
    make_task("t4", "Sort the following list of words by length, then by letter, please", answer="yes, it is sorted"),
    make_task("t5", "Short", answer="yes, it is sorted"),
)
SELECTION = (
    make_task("s1", "Which of the planets in our solar system has the most moons of all", answer="Saturn has most"),
)


def find_fault(text: str, before: str = "", **settings: int) -> Fault | None:
    return Guard(GuardSettings(**settings), TRAIN, SELECTION).find_fault(Skill(before), text)


@pytest.mark.parametrize(
    ("text", "kind", "task"),
    [
        ("If a FARMER has seventeen sheep, and all but nine of them run away, count.", "copied_task", "t1"),
        ("Remember: the answer is nine sheep!", "leaked_answer", "t1"),
        ("Of the planets in our solar system has the most moons: the ringed one.", "copied_task", "s1"),
        ("It is known that Saturn has most.", "leaked_answer", "s1"),
        ("Sort the following list of words by length, then by letter, please", "", ""),
        ("Say yes, it is sorted.", "", ""),
        ("The result is 12.", "", ""),
        ("A farmer has sheep. Count what stays.", "", ""),
        ("", "", ""),
    ],
)
def test_copies_and_answers_of_few_tasks_are_refused(text: str, kind: str, task: str):
    """What three tasks share may be taught, and a short answer may occur anywhere."""
    fault = find_fault(text)
    assert (fault.kind, fault.task) == (kind, task) if fault else not kind


def test_the_name_of_a_new_file_is_checked_like_its_text():
    guard = Guard(GuardSettings(), TRAIN, SELECTION)
    for path, kind in (
        ("references/\u202etxt.md", "hidden_text"),
        ("references/the answer is nine sheep.md", "leaked_answer"),
    ):
        fault = guard.check_edit(Skill("x"), Edit("write", "Text.", path=path))
        assert fault is not None and fault.kind == kind
        assert guard.check_edit(Skill("x", (SkillFile(path, "y"),)), Edit("append", "Text.", path=path)) is None
    assert guard.check_edit(Skill("x"), Edit("write", "Text.", path="references/units.md")) is None


def test_a_guard_that_does_not_refuse_warns_of_each_text():
    warnings: list[str] = []
    guard = Guard(GuardSettings(refuse=False), TRAIN, SELECTION, warnings.append)
    assert guard.find_fault(Skill(""), "The password is hunter2hunter2hunter2") is None
    assert guard.check_edit(Skill(""), Edit("append", "It is known that Saturn has most.")) is None
    assert guard.find_fault(Skill(""), "Count what stays.") is None
    assert [warning.partition("although ")[2] for warning in warnings] == [
        "it holds what looks like a secret",
        "it holds the answer of task s1",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "Call it with sk-proj-abcdefghijklmnop0123456789",
        "AKIAABCDEFGHIJKLMNOP",
        "ghp_0123456789abcdefghijklmnopqrstuvwxyz",
        "-----BEGIN RSA PRIVATE KEY-----",
        "The password is hunter2hunter2hunter2",
        "api_key: 'a1b2c3d4e5f6g7h8'",
    ],
)
def test_secrets_are_refused_and_not_repeated(text: str):
    fault = find_fault(f"Do this. {text}")
    assert fault == Fault("secret", "") and fault.status == "skipped_secret"
    masked = Guard(GuardSettings(), (), ()).hide_secret(Edit("append", f"Do this. {text}")).content
    assert "[redacted]" in masked and text not in masked
    assert find_fault(text, before=text) is None, "the user's own skill has it"


@pytest.mark.parametrize("text", ["Never show a password or an API key.", "The access token: ask the user.", "sk-12"])
def test_words_about_secrets_are_no_secrets(text: str):
    assert find_fault(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "Clear \x1b[2J the screen.",
        "Say\x00 no.",
        "Read \u202egnihton.",
        "Hi\U000e0041.",
        "Pay\u200b the bill.",
        "Add\u2060\u2063 up.",
        "Line\u2028line.",
        "A byte order\ufeff mark.",
        "To the \u200fright.",
        "Sums\U000e0121\U000e0122.",
        "Joined\u200d\u200d\u200c.",
        "Selected\ufe01.",
    ],
)
def test_characters_that_are_not_seen_are_refused_and_named(text: str):
    fault = Guard(GuardSettings(), (), ()).find_fault(Skill("Be brief.\n"), text)
    assert fault is not None and fault.status == "skipped_hidden_text" and "U+" in fault.describe()
    assert fault.status in REFUSED_STATUSES
    assert Guard(GuardSettings(), (), ()).find_fault(Skill(text), text) is None, "the skill has them"
    assert Guard(GuardSettings(), (), ()).find_fault(Skill(""), "Two lines,\r\n\tone tab. العربية ✓") is None
    written = "می\u200cخواهم 👩\u200d💻 ❤\ufe0f 1\ufe0f⃣ ❤\ufe0f\u200d🔥"
    assert Guard(GuardSettings(), (), ()).find_fault(Skill(""), written) is None, "joiners where they belong"


def test_what_the_skill_has_already_is_allowed_and_deletions_add_nothing():
    assert find_fault(PROMPT, before=PROMPT) is None
    guard = Guard(GuardSettings(), TRAIN, SELECTION)
    assert guard.check_edit(Skill(PROMPT), Edit("delete", PROMPT, PROMPT)) is None
    assert guard.check_edit(Skill(""), Edit("append", PROMPT)) is not None
    assert Guard(GuardSettings(enabled=False), TRAIN, SELECTION).find_fault(Skill(""), PROMPT) is None


def test_worked_examples_may_show_train_tasks_but_no_secrets():
    assert find_fault(render_example(Example(PROMPT, "the answer is nine sheep"))) is None
    assert find_fault(render_example(Example(PROMPT, "sk-abcdefghij0123456789ABCD"))) == Fault("secret", "")


def test_faults_in_words():
    assert Fault("secret", "").describe() == "it holds what looks like a secret"
    assert Fault("leaked_answer", "x", "t1").describe() == "it holds the answer of task t1"
    assert Fault("copied_task", "a b", "t1").describe() == "it repeats words of task t1: a b"


def test_only_new_lines_of_a_document_are_looked_at():
    assert list_added(Skill("a\nb\n"), Skill("b\nc\na\n")) == "c"


def test_canaries_have_a_random_reference_and_the_same_ones_for_a_seed():
    canaries = make_canaries(TRAIN, 2, seed=1)
    assert canaries == make_canaries(TRAIN, 2, seed=1) != make_canaries(TRAIN, 2, seed=2)
    assert all(task.id.endswith("~canary") for task in canaries)
    assert len({task.answer for task in (*canaries, *TRAIN)}) == 2 + 3
    assert make_canaries([make_task("x", answer=None)], 3, seed=1) == []


def test_only_a_skill_that_passes_canaries_alone_is_suspicious():
    assert CanaryReport(4, 0, 1).suspicious and "games the verifier" in CanaryReport(4, 0, 1).describe()
    assert not CanaryReport(4, 1, 4).suspicious and "does not depend" in CanaryReport(4, 1, 4).describe()
    assert not CanaryReport(4, 0, 0).suspicious and "none of 4" in CanaryReport(4, 0, 0).describe()
