"""Judge stored rollouts again: what can be judged, and old and new scores side by side."""

from typing import ClassVar, Literal

import msgspec
import pytest
from tests.build import make_rollout, make_task, make_turn
from tests.sandbox_kit import make_pool

from ludus.engine import address_jobs, compute_rollout_key, run_stored
from ludus.env import Env
from ludus.models.scripted import ScriptedModel, call
from ludus.policy import Policy
from ludus.rescoring import (
    BROKE_SLOT,
    Rescored,
    RescoreTally,
    find_obstacle,
    read_tasks_of,
    rescore,
    restore_acted,
)
from ludus.runner import Job, Runner, RunOptions
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.sandbox.local.unisolated import Local
from ludus.store import RunDir
from ludus.types import Failure, Rollout, Score, StopReason, Task

TASK = Task(id="t", prompt="Write good into f.", split="train", files={"given": "1"}, answer="good")


class Writing(Env, frozen=True):
    """Write a word into a file."""

    name: ClassVar[str] = "writing"
    toolsets: ClassVar[tuple[str, ...]] = ("terminal",)
    mode: Literal["strict", "lax", "broken"] = "strict"

    def tasks(self, split: str) -> list[Task]:
        return [TASK] if split == "train" else []

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        assert box is not None
        if self.mode == "broken":
            raise RuntimeError("no such module")
        found, given = (await box.read("f")).decode(), (await box.read("given")).decode()
        assert given == "1"
        wanted = rollout.task.answer
        return Score.of(float(found == wanted or (self.mode == "lax" and found.lower() == wanted)), found)


class Talking(Writing, frozen=True):
    sandbox: ClassVar[SandboxSpec | None] = None


class Staying(Writing, frozen=True):
    verify_in: ClassVar[Literal["fresh", "same"]] = "same"


DOWN = Failure("model", "down")


@pytest.mark.parametrize(
    ("rollout", "task", "env", "words"),
    [
        (make_rollout(task=TASK, files="x"), TASK, Writing(), ""),
        (make_rollout(None, task=TASK, failure=Failure("verifier", "?"), files="x"), TASK, Writing(), ""),
        (make_rollout(task=TASK), TASK, Talking(), ""),
        (make_rollout(task=TASK), None, Writing(), "writing has no task with its id"),
        (make_rollout(task=TASK, files="x"), make_task("t", "Else."), Writing(), "the prompt of its task has changed"),
        (make_rollout(None, task=TASK, failure=DOWN), TASK, Writing(), "the model failed"),
        (make_rollout(task=TASK, files="x"), TASK, Staying(), "verifies in the agent's own slot"),
        (make_rollout(task=TASK), TASK, Writing(), "its files were not kept"),
        (make_rollout(0.0, task=TASK, stop=StopReason.BROKEN), TASK, Writing(), BROKE_SLOT),
        (make_rollout(0.0, task=TASK, stop=StopReason.BROKEN, files="x"), TASK, Writing(), ""),
    ],
)
def test_what_can_be_judged(rollout: Rollout, task: Task | None, env: Env, words: str):
    found = find_obstacle(rollout, task, env)
    assert words in found and bool(words) == bool(found)


def test_a_failed_rollout_is_as_it_was_when_its_agent_ended():
    failed = make_rollout(
        None, make_turn("x", stop=StopReason.MAX_TURNS), failure=Failure("verifier", "?"), left_out=("l -> /",)
    )
    acted = restore_acted(failed, TASK)
    assert (acted.stop, acted.failure, acted.score, acted.left_out) == (StopReason.MAX_TURNS, None, None, ())
    assert acted.task is TASK
    assert restore_acted(make_rollout(None), TASK).stop is StopReason.FINISHED


def test_tasks_are_those_of_the_splits_of_the_rollouts():
    assert read_tasks_of([make_rollout(task=TASK)], Writing(), "test") == {("train", "t"): TASK}
    assert read_tasks_of([make_rollout(task=make_task(split="test"))], Writing(), "test") == {}


async def run_and_rescore(path, env: Env, judge: Env, word: str) -> tuple[list[Rollout], list[Rescored]]:
    """Run one task with an agent that writes a word, then judge it with `judge`."""
    stored: list[Rollout] = []
    rescored: list[Rescored] = []

    def act(messages, tools, sampling):
        return "Done." if messages[-1].role == "tool" else call("terminal", command=f"printf {word} >f")

    async def go() -> None:
        local = Local()
        async with make_pool(local.create, max_slots=2) as pool:
            with RunDir.open(path, {}) as run:
                jobs = address_jobs([Job(TASK, Policy(model=ScriptedModel(act)))], env)
                runner = Runner(env, pool, store=run)
                await run_stored(jobs, runner, on_outcome=lambda _, rollout: stored.append(rollout))
                assert compute_rollout_key(stored[0], env) == next(iter(jobs))
            with RunDir.read(path) as run:
                runner = Runner(judge, pool, options=RunOptions(retries=0))
                await rescore(run, {("train", "t"): TASK}, runner, record=rescored.append)
        await local.close()

    await go()
    return stored, rescored


async def test_another_verifier_judges_the_files_that_the_agent_left(tmp_path):
    (before,), (rescored,) = await run_and_rescore(tmp_path / "run", Writing(), Writing(mode="lax"), "GOOD")
    assert before.score and before.score.value == 0.0 and before.files
    assert rescored.before == before
    assert rescored.after and rescored.after.score and rescored.after.score.value == 1.0
    assert rescored.after.turns == before.turns and rescored.files


async def test_a_corrected_verifier_judges_what_it_failed_to_judge(tmp_path):
    (before,), (rescored,) = await run_and_rescore(tmp_path / "run", Writing(mode="broken"), Writing(), "good")
    assert before.failure and before.failure.boundary == "verifier" and before.files
    assert rescored.after and rescored.after.score and rescored.after.score.passed


async def test_a_verifier_that_fails_now_gives_no_score(tmp_path):
    _, (rescored,) = await run_and_rescore(tmp_path / "run", Writing(), Writing(mode="broken"), "good")
    assert rescored.after is None and "no such module" in rescored.reason and not rescored.stays


def test_old_and_new_scores_side_by_side():
    tally = RescoreTally()

    def add(task: str, before: float | None, after: float | None, replicate: int = 0) -> None:
        provenance = msgspec.structs.replace(make_rollout().provenance, replicate=replicate)
        old = make_rollout(before, task=make_task(task), provenance=provenance)
        new = None if after is None else make_rollout(after, task=make_task(task), provenance=provenance)
        tally.add(Rescored(old, new, "" if new else "gone"))

    add("b", 0.0, 1.0)
    add("b", 0.0, 0.0, replicate=1)
    add("a", 1.0, 0.5)
    add("c", None, 1.0)
    add("d", 1.0, None)
    report = tally.make_report()
    assert (report.rollouts, report.judged, report.tasks) == (5, 4, 2)
    assert (report.mean_before, report.mean_after) == (0.5, 0.5)
    assert (report.raised, report.lowered, report.unchanged, report.new) == (1, 1, 1, 1)
    assert [(c.task, c.before, c.after) for c in report.changes] == [("a", 1.0, 0.5), ("b", 0.0, 1.0), ("c", None, 1.0)]
    assert report.unjudged == {"gone": 1}
