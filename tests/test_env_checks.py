"""Validation finds what is wrong with an environment, and nothing where nothing is."""

import asyncio
import re
import shutil
from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal

import pytest
from msgspec.structs import replace

from ludus.env import Env
from ludus.env_checks import (
    EMPTY,
    GOLD,
    IDS,
    LEAKS,
    PROMPTS,
    RECORD,
    REPEATS,
    SETUP,
    TOOLS,
    EnvCheck,
    EnvReport,
    Evidence,
    SlotFiles,
    check_id,
    check_leaks,
    check_repeats,
    check_setup,
    find_common_answers,
    find_needle,
    find_short_leaks,
    format_report,
    judge_evidence,
    validate,
)
from ludus.policy import Limits
from ludus.runner import Runner
from ludus.sandbox import WORKSPACE, Sandbox, SandboxSpec
from ludus.sandbox.pool import PoolSettings
from ludus.sandbox.profiles import open_pool
from ludus.tools import Tool
from ludus.types import Message, Rollout, Score, Task


class Words(Env, frozen=True):
    """Say the word: right in every way, until a test breaks it."""

    name: ClassVar[str] = "words"
    sandbox: ClassVar[SandboxSpec | None] = None

    def tasks(self, split: str) -> Iterator[Task]:
        yield Task(id="one", prompt="Say it.", answer="swordfish")
        yield Task(id="two", prompt="Say it again.", answer="marmalade")

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        return Score.of(float(rollout.answer == rollout.task.answer), "Compared.")

    async def solve(self, task: Task, box: Sandbox | None) -> str:
        return task.answer


async def check_env(env: Env, limits: Limits | None = None) -> EnvReport:
    return await validate(Runner(env), "train", list(env.tasks("train")), limits=limits or Limits())


def find_check(report: EnvReport, name: str) -> EnvCheck:
    return next(check for check in report.checks if check.name == name)


def list_failing(report: EnvReport) -> list[str]:
    return [check.name for check in report.checks if check.verdict == "fail"]


def list_skipped(report: EnvReport) -> list[str]:
    return [check.name for check in report.checks if check.verdict == "skipped"]


async def test_a_sound_environment_has_no_problems():
    report = await check_env(Words())
    assert report.ok
    assert {c.name: c.verdict for c in report.checks} == {
        IDS: "ok",
        RECORD: "ok",
        PROMPTS: "ok",
        TOOLS: "ok",
        SETUP: "skipped",
        GOLD: "ok",
        EMPTY: "ok",
        REPEATS: "ok",
        LEAKS: "ok",
    }
    assert format_report(report).endswith("no problems")


class Lenient(Words, frozen=True):
    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        return Score.of(1.0)


class PartialCredit(Words, frozen=True):
    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        return Score.of(0.9 if rollout.answer else 0.1, "Nearly.")


class Raising(Words, frozen=True):
    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        raise KeyError("tests.json")


class NotANumber(Words, frozen=True):
    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        return Score.of(float("nan"))


class NotAScore(Words, frozen=True):
    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        return 1.0  # type: ignore


class Hanging(Words, frozen=True):
    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        await asyncio.Event().wait()
        raise AssertionError


class Unsolvable(Words, frozen=True):
    async def solve(self, task: Task, box: Sandbox | None) -> str:
        raise RuntimeError("no idea")


class Speechless(Words, frozen=True):
    async def solve(self, task: Task, box: Sandbox | None) -> str:
        return None  # type: ignore


class NotAsync(Words, frozen=True):
    def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:  # type: ignore
        return Score.of(1.0)


class RaisingAtOnce(Words, frozen=True):
    def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:  # type: ignore
        raise KeyError("tests.json")


class NotMessages(Words, frozen=True):
    def opening(self, task: Task) -> tuple[Message, ...]:
        return ({"role": "user"},)  # type: ignore


class PromptLess(Words, frozen=True):
    def opening(self, task: Task) -> tuple[Message, ...]:
        return (Message("user", None),)  # type: ignore


class NotTools(Words, frozen=True):
    def tools(self, task: Task, box: Sandbox | None) -> Sequence[Tool]:
        return [len]  # type: ignore


class Unspeakable(Words, frozen=True):
    def tasks(self, split: str) -> Iterator[Task]:
        for task in super().tasks(split):
            yield Task(id=task.id, prompt=task.prompt, answer=re.compile(task.answer))

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        return Score.of(float(bool(rollout.task.answer.fullmatch(rollout.answer))))

    async def solve(self, task: Task, box: Sandbox | None) -> str:
        return task.answer.pattern


@pytest.mark.parametrize(
    ("env", "names", "message"),
    [
        (Lenient(), [EMPTY], "an empty answer scored 1, passed"),
        (PartialCredit(), [GOLD, EMPTY], "gold scored 0.9, not passed: Nearly."),
        (Raising(), [GOLD, EMPTY], "verify gold raised KeyError: 'tests.json' (test_env_checks.py, line "),
        (RaisingAtOnce(), [GOLD, EMPTY], "verify gold raised KeyError: 'tests.json'"),
        (NotAsync(), [GOLD, EMPTY], "verify must be written as `async def`"),
        (NotMessages(), [PROMPTS], "opening raised TypeError: opening() returns dict, not ludus.types.Message"),
        (PromptLess(), [PROMPTS], "a message whose content is NoneType, not text"),
        (NotTools(), [TOOLS], "tools() returns builtin_function_or_method, not Tool: make one with @tool"),
        (Unspeakable(), [RECORD], "a task must be plain JSON values, answer included"),
        (Speechless(), [GOLD], "solve returned NoneType, not the final answer as text"),
        (NotANumber(), [GOLD, EMPTY], "Score.value is nan"),
        (NotAScore(), [GOLD, EMPTY], "verify returned float, not a Score"),
        (Hanging(), [GOLD, EMPTY], "verify gold took longer than 0.05 s (limits.verify_seconds)"),
        (Unsolvable(), [GOLD], "solve raised RuntimeError: no idea"),
    ],
)
async def test_a_verifier_that_misjudges_is_found(env: Env, names: list[str], message: str):
    report = await check_env(env, Limits(verify_seconds=0.05))
    assert list_failing(report) == names
    assert len(find_check(report, names[0]).problems) == 2
    assert message in find_check(report, names[0]).problems[0].message


async def test_a_verdict_that_changes_is_found():
    moods = iter(range(8))

    class Moody(Words, frozen=True):
        async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
            return Score.of(float(rollout.answer == rollout.task.answer), parts={"mood": next(moods)})

    assert list_failing(await check_env(Moody())) == [REPEATS]


def test_only_the_numbers_of_two_verdicts_must_be_equal():
    wordy = [Score.of(0.0, "<a.B object at 0x7f01>"), Score.of(0.0, "<a.B object at 0x7f02>")]
    assert check_repeats(Evidence(Task(id="a", prompt="?"), empty=wordy)) == ""
    parts = [Score.of(0.0, parts={"a": 1.0}), Score.of(0.0, parts={"a": 0.5})]
    assert "first 0, not passed" in check_repeats(Evidence(Task(id="a", prompt="?"), empty=parts))


async def test_scores_that_are_none_are_not_compared():
    check = find_check(await check_env(NotAScore()), REPEATS)
    assert (check.verdict, check.checked, check.note) == ("skipped", 0, "verify gave no scores")


def test_one_task_is_singular():
    report = judge_evidence(NotAScore(), "train", [Evidence(Task(id="a", prompt="?"))])
    assert "split 'train': 1 task\n" in format_report(report)
    assert "1 of 1 task\n" in format_report(report)


async def test_without_a_gold_solution_it_says_how_to_add_one():
    class NoGold(Env, frozen=True):
        name: ClassVar[str] = "no-gold"
        sandbox: ClassVar[SandboxSpec | None] = None

        def tasks(self, split: str) -> Iterator[Task]:
            yield Task(id="one", prompt="Say it.")

        async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
            return Score.of(0.0)

    report = await check_env(NoGold())
    assert list_failing(report) == [GOLD]
    assert "NoGold has no solve(task, box): write one" in format_report(report)


async def test_an_answer_that_is_given_away_is_a_warning():
    class Telling(Words, frozen=True):
        def opening(self, task: Task) -> tuple[Message, ...]:
            return (Message("user", f"Say it.\nHint: it is {task.answer}!"),)

    report = await check_env(Telling())
    assert report.ok
    assert find_check(report, LEAKS).verdict == "warn"
    assert find_check(report, LEAKS).problems[0].message == "the answer is in the opening messages"


async def test_tasks_without_words_and_bad_ids_are_found():
    class Sloppy(Words, frozen=True):
        def tasks(self, split: str) -> Iterator[Task]:
            for id in ("same", "same", " padded"):
                yield Task(id=id, prompt="  ", answer="swordfish")

    report = await check_env(Sloppy())
    assert list_failing(report) == [IDS, PROMPTS]
    assert [p.message for p in find_check(report, IDS).problems] == [
        "2 tasks have this id",
        "the id has spaces around it or unprintable characters: ' padded'",
    ]


async def test_a_split_without_tasks_is_a_problem():
    report = await validate(Runner(Words()), "none", [])
    assert not report.ok
    assert "split 'none' has no tasks" in format_report(report)


@pytest.mark.parametrize(
    ("id", "message"),
    [
        ("a/b.txt", ""),
        ("ünïcode id", ""),
        ("", "the id is empty"),
        (7, "the id is int, not text"),
        ("a\nb", "unprintable"),
        ("x" * 201, "longer than 200"),
    ],
)
def test_ids(id: object, message: str):
    assert message in check_id(id)
    assert bool(check_id(id)) == bool(message)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("42", ""),
        ("no", ""),
        ("False", ""),
        ("1000000", ""),
        ("Bogotá", "Bogotá"),
        ("a\n b\tcde", "a b cde"),
        ("12345678", "12345678"),
        (None, ""),
        ({}, ""),
    ],
)
def test_which_answers_are_worth_looking_for(answer: object, text: str):
    assert find_needle(answer) == text


LABELS = "Is it positive or negative?"
QUIZ = "Which one is a fish?\nA) swordfish\nB) marmalade"


@pytest.mark.parametrize(
    ("prompt", "answer", "leaks", "leaked"),
    [
        ("What is 2 + 2? There are 4 choices.", "4", (), False),
        ("Answer with yes or no.", "yes", (), False),
        ("Say True or False.", "False", (), False),
        ("The word is swordfish.", "swordfish", (), True),
        ("The word is\nsword\nfish!", "sword fish", (), True),
        ("Two swordfishes swim.", "swordfish", (), False),
        (QUIZ, "swordfish", (), False),
        ("Pick one: (1) marmalade (2) swordfish", "swordfish", (), False),
        (f"{QUIZ}\nHint: swordfish", "swordfish", (), True),
        ("A) swordfish", "swordfish", (), True),
        ("Say it.", "swordfish", ("/workspace/key.txt",), True),
        ("Which fish does notes.txt name?", "swordfish", ("/workspace/in/notes.txt",), False),
        ("Which fish does notes.txt name?", "swordfish", ("/workspace/in/notes.txt", "/workspace/key.txt"), True),
        ("Which fish?", "swordfish", ("/workspace/in/notes.txt",), True),
    ],
)
def test_what_counts_as_giving_the_answer_away(prompt: str, answer: str, leaks: tuple[str, ...], leaked: bool):
    task = Task(id="t", prompt=prompt, answer=answer, files={"in/notes.txt": "A swordfish."})
    assert bool(check_leaks(Evidence(task, opening=prompt, leaks=leaks))) == leaked


def find_short(*tasks: tuple[str, str], said: bool = True) -> list[str]:
    """The ids, from 0, of tasks of an opening and an answer that are found to give the answer away."""
    evidence = [
        Evidence(
            Task(id=str(n), prompt=opening, answer=answer), opening=opening, gold_answer=answer if said else "Done."
        )
        for n, (opening, answer) in enumerate(tasks)
    ]
    return [problem.task for problem in find_short_leaks(evidence)]


def test_a_short_answer_that_most_tasks_have_in_their_prompt_is_given_away():
    tasks = [(f"What is {n} plus {n}? ({2 * n})", str(2 * n)) for n in range(11, 20)]
    assert find_short(*tasks) == [str(n) for n in range(9)]
    assert find_short(*tasks, said=False) == [], "the task is to write it into a file"
    assert find_short(*tasks[:4]) == [], "that may be chance"
    assert find_short(*tasks[:4], *[(f"What is {n} plus {n}?", str(2 * n)) for n in range(20, 40)]) == []
    assert find_short(*[(f"Is {n} even? A) yes B) no", "yes" if n % 2 else "no") for n in range(9)]) == []


@pytest.mark.parametrize(
    ("opening", "answer", "found"),
    [
        ("What is 2+2? The answer is 4.", "4", True),
        ("What is 2+2?\nSOLUTION: 4", "4", True),
        ("What is 2+2? The answer is 42.", "4", False),
        ("Is it so? Answer: yes or no", "yes", False),
        ("Is it so? Answer: yes/no", "yes", False),
        ("Add 4 apples to 0 apples.", "4", False),
    ],
)
def test_a_short_answer_that_the_prompt_calls_the_answer_is_given_away(opening: str, answer: str, found: bool):
    assert bool(find_short((opening, answer))) == found


def test_what_all_prompts_say_is_no_answer_of_one():
    assert find_short(("One? The answer is 1 if so.", "1"), ("Two? The answer is 1 if so.", "0")) == []


@pytest.mark.parametrize(("said", "leaked"), [(None, True), ("It is tea time.", True), ("Done.", False)])
def test_an_instruction_to_write_the_answer_into_a_file_is_no_leak(said: str | None, leaked: bool):
    prompt = "Create a.txt with this text: tea time"
    evidence = Evidence(Task(id="t", prompt=prompt, answer="tea time"), opening=prompt, gold_answer=said)
    assert bool(check_leaks(evidence)) == leaked


def test_answers_that_other_tasks_mention_too_say_nothing():
    def make(answer: str, opening: str, leaks: tuple[str, ...] = ()) -> Evidence:
        return Evidence(Task(id=answer, prompt=opening, answer=answer), opening=opening, leaks=leaks)

    labels = [make("positive", LABELS), make("negative", LABELS, ("/workspace/labels.txt",))]
    assert find_common_answers(labels) == {"positive", "negative"}
    assert check_leaks(labels[0]) and not check_leaks(labels[0], {"positive"})
    assert not check_leaks(labels[1], {"negative"})
    assert find_check(judge_evidence(Words(), "train", labels), LEAKS).verdict == "ok"
    told = [make(f"answer {n:03}", f"Say it. It is answer {n:03}!") for n in range(30)]
    assert find_common_answers(told) == set()
    once = [*told, make("another", "Do not say answer 007, but another.")]
    assert find_common_answers(once) == set(), "one mention is chance"
    assert len(find_check(judge_evidence(Words(), "train", once), LEAKS).problems) == 31


def test_many_problems_are_cut_short_for_people():
    evidence = [Evidence(Task(id=f"t{n}", prompt="")) for n in range(9)]
    text = format_report(judge_evidence(Words(), "train", evidence))
    assert "9 of 9 tasks" in text and "… and 6 more" in text and "t8:" not in text


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ("a\tf 644\nb\td 755", "a\tf 644", "b is there only after the first setup"),
        ("a\tf 644", "a\tf 644\nb c\tf 644", "b c is there only after the second setup"),
        ("a\tf 644\na\tcontent 1", "a\tf 644\na\tcontent 2", "a has other content"),
        ("a\tf 644\na\tcontent 1", "a\tf 600\na\tcontent 1", "a has another type, mode or link target"),
        (
            "a\t1\nb\t1\nc\t1\nd\t1",
            "",
            ", ".join(f"{name} is there only after the first setup" for name in "abc") + ", and 1 more",
        ),
        ("a\tf 644", "a\tf 644", "in a long list of files"),
    ],
)
def test_two_slots_that_differ_say_where(first: str, second: str, message: str):
    evidence = Evidence(Task(id="t", prompt="x"), files=[SlotFiles("1", first), SlotFiles("2", second)])
    assert check_setup(evidence) == f"two slots differ after setup: {message}"


# ---- in slots -----------------------------------------------------------------------------------------------------


class Copying(Env, frozen=True):
    """Copy a file."""

    name: ClassVar[str] = "copying"

    def tasks(self, split: str) -> Iterator[Task]:
        yield Task(id="one", prompt="Copy in.txt to out.txt.", files={"in.txt": "tea\n"}, answer="none of that")

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        assert box is not None
        same = await box.exec("cmp in.txt out.txt")
        return Score.of(float(same.exit_code == 0))

    async def solve(self, task: Task, box: Sandbox | None) -> str:
        assert box is not None
        await box.exec("cp in.txt out.txt")
        return "Done."


class Dicing(Copying, frozen=True):
    """Sets up differently every time, and leaves the answer lying about."""

    async def setup(self, task: Task, box: Sandbox) -> None:
        await super().setup(task, box)
        await box.exec("head -c 8 /dev/urandom > dice; mkdir -p ~/.cache; echo 'it is none of that' > ~/.cache/key")


class Showing(Copying, frozen=True):
    """The answer is in a file that the prompt names, and as a part of a longer word in another."""

    def tasks(self, split: str) -> Iterator[Task]:
        files = {"in.txt": "A swordfish.\n", "other.txt": "Two swordfishes.\n"}
        yield Task(id="one", prompt="Copy in.txt to out.txt.", files=files, answer="swordfish")


class Elsewhere(Copying, frozen=True):
    """Solved outside of /workspace, where a run's verifier does not look."""

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        assert box is not None
        return Score.of(float((await box.exec("test -e ~/done")).exit_code == 0), "Looked for it in home.")

    async def solve(self, task: Task, box: Sandbox | None) -> str:
        assert box is not None
        await box.exec("touch ~/done")
        return "Done."


class ElsewhereInTheSame(Elsewhere, frozen=True):
    verify_in: ClassVar[Literal["fresh", "same"]] = "same"


class Slotless(Copying, frozen=True):
    def slot(self, task: Task, default: SandboxSpec) -> SandboxSpec:
        raise KeyError(task.id)


class Collapsing(Copying, frozen=True):
    async def setup(self, task: Task, box: Sandbox) -> None:
        raise ConnectionError("the mirror is down")


async def check_in_slots(env: Env, backend: str = "bwrap") -> EnvReport:
    async with open_pool(backend, PoolSettings(max_slots=2)) as pool:
        return await validate(Runner(env, pool), "train", env.tasks("train"))


async def test_a_sound_environment_in_real_slots():
    report = await check_in_slots(Copying())
    assert report.ok
    assert all(check.verdict == "ok" for check in report.checks), format_report(report)


@pytest.mark.parametrize("backend", ["bwrap", "local"])
async def test_setup_that_differs_and_leaks_is_found(backend: str):
    report = await check_in_slots(Dicing(), backend)
    assert list_failing(report) == [SETUP]
    message = "two slots differ after setup: /workspace/dice has other content"
    assert find_check(report, SETUP).problems[0].message == message
    assert ".cache/key after setup" in find_check(report, LEAKS).problems[0].message


class Cloning(Copying, frozen=True):
    """Sets up by `git clone`, and runs Python code: both leave files with times in them."""

    async def setup(self, task: Task, box: Sandbox) -> None:
        await super().setup(task, box)
        commit = "git -c user.name=a -c user.email=a@b.c commit -q -m one"
        done = await box.exec(
            f"set -e; (git init -q /tmp/o; cd /tmp/o; echo 'X = 1' >m.py; git add .; {commit}; git clone -q . ~/clone"
            f" && git clone -q . {WORKSPACE}/clone; cd {WORKSPACE}/clone; sed -i s/^/$RANDOM$RANDOM/ .git/description;"
            " touch -d @$RANDOM m.py; python3 -c 'import m')"
        )
        assert done.exit_code == 0, done.text


@pytest.mark.parametrize("backend", ["bwrap", "local"])
async def test_a_file_that_the_task_places_and_names_is_no_leak(backend: str):
    report = await check_in_slots(Showing(), backend)
    assert find_check(report, LEAKS).verdict == "ok", format_report(report)


async def test_setup_by_git_clone_is_the_same_twice():
    if not shutil.which("git"):
        pytest.skip("there is no git")
    report = await check_in_slots(Cloning())
    assert report.ok, format_report(report)


class FailingAtTimes(Copying, frozen=True):
    def tasks(self, split: str) -> Iterator[Task]:
        for task in super().tasks(split):
            yield task
            yield replace(task, id="two")

    async def setup(self, task: Task, box: Sandbox) -> None:
        await super().setup(task, box)
        if task.id == "two":
            raise ConnectionError("the mirror is down")


async def test_checks_count_only_the_tasks_that_were_set_up():
    report = await check_in_slots(FailingAtTimes())
    assert list_failing(report) == [SETUP]
    assert [find_check(report, name).checked for name in (SETUP, TOOLS, GOLD, EMPTY)] == [2, 1, 1, 1]
    assert find_check(report, GOLD).verdict == "ok"


async def test_gold_is_judged_where_a_run_would_judge_it():
    assert list_failing(await check_in_slots(Elsewhere())) == [GOLD]
    assert (await check_in_slots(ElsewhereInTheSame())).ok


async def test_a_slot_without_a_spec_is_a_problem():
    report = await check_in_slots(Slotless())
    assert list_failing(report) == [SETUP]
    assert list_skipped(report) == [TOOLS, GOLD, EMPTY, REPEATS, LEAKS]
    assert "setup raised KeyError: 'one'" in format_report(report)


async def test_setup_that_fails_is_a_problem_and_nothing_else_counts_as_proven():
    report = await check_in_slots(Collapsing())
    assert not report.ok
    assert list_failing(report) == [SETUP]
    assert list_skipped(report) == [TOOLS, GOLD, EMPTY, REPEATS, LEAKS]
    assert {c.note for c in report.checks if c.verdict == "skipped"} == {"setup failed for every task"}
    assert "setup raised ConnectionError: the mirror is down" in format_report(report)
