"""A batch from plan to files, and the same batch again after everything that can stop it half way."""

import asyncio
import json
import os
import random
import resource
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from ludus.batch import (
    GROUPS,
    SAMPLES,
    SUMMARY,
    Batch,
    BatchProgress,
    evaluate,
    group_outcomes,
    load_tasks,
    plan_jobs,
    process,
    read_groups,
    read_places,
)
from ludus.control import RunControl
from ludus.env import Env
from ludus.errors import BudgetExhausted, ConfigError, ModelError, StoreError
from ludus.models.scripted import ScriptedModel, call, say
from ludus.policy import Policy
from ludus.runner import Runner, RunOptions
from ludus.stats import RunSummary
from ludus.store import RunDir
from ludus.tools import tool
from ludus.tools.distributions import Distribution
from ludus.types import Message, Rollout, Score, Task


@tool
async def look(at: str) -> str:
    """Look at something."""
    if at == "sun":
        raise ValueError("too bright")
    return f"a {at}"


class Toy(Env, frozen=True):
    """Echo tasks: the answer is right when the model says the task's id."""

    name = "toy"
    sandbox = None
    many: int = 3
    log: str = ""

    def tasks(self, split: str) -> Iterable[Task]:
        for number in range(self.many):
            yield Task(id=f"t{number}", prompt=f"say t{number}", kind="ab"[number % 2], answer="HIDDEN-ANSWER")

    def tools(self, task: Task, box: object) -> list:
        return [look]

    async def verify(self, rollout: Rollout, box: object) -> Score:
        if self.log:
            note(self.log, f"ran {rollout.task.id}/{rollout.provenance.replicate}")
        return Score.of(float(rollout.answer == f"say {rollout.task.id}"), "as you see")


def note(path: str, line: str) -> None:
    """One line in a file, in one write: whole even if the process is killed right after it."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, line.encode() + b"\n")
    os.close(fd)


def echo(messages, tools, sampling):
    return say(next(m.content for m in messages if m.role == "user"), reasoning="easy")


def batch(script=echo, env: Env = Toy(), size: int = 2, **options) -> Batch:
    return Batch(load_tasks(env, "train"), Policy(ScriptedModel(script)), size, **options)


def rows(run: RunDir, name: str) -> list[dict]:
    return [json.loads(line) for line in run.read_lines(name)]


# ---- what to run --------------------------------------------------------------------------------------------------


def test_a_plan_is_the_same_every_time_and_goes_group_after_group():
    jobs = plan_jobs(batch())
    assert [(job.task.id, job.replicate) for job in jobs] == [
        ("t0", 0),
        ("t0", 1),
        ("t1", 0),
        ("t1", 1),
        ("t2", 0),
        ("t2", 1),
    ]
    assert [job.seed for job in jobs] == [job.seed for job in plan_jobs(batch())]
    assert len({job.seed for job in jobs}) == 6
    assert [job.seed for job in jobs] != [job.seed for job in plan_jobs(batch(seed=1))]


def test_toolsets_are_drawn_once_per_group():
    chances = Distribution("mine", (("todo", 50.0), ("terminal", 50.0), ("file", 50.0)))
    jobs = plan_jobs(batch(env=Toy(many=40), size=3, distribution=chances))
    draws = [job.policy.toolsets for job in jobs]
    assert all(draws[i] == draws[i + 1] == draws[i + 2] for i in range(0, 120, 3))
    assert len(set(draws)) > 2
    assert () not in draws
    without = plan_jobs(batch(env=Toy(many=40), size=3, distribution=chances, disabled=("terminal",)))
    assert not [job for job in without if "terminal" in (job.policy.toolsets or ())]
    assert {job.policy.skipped for job in without} == {("terminal",)}
    assert {job.policy.skipped for job in jobs} == {()}


def test_a_group_has_at_least_one_rollout():
    with pytest.raises(ConfigError, match="group_size is 0"):
        plan_jobs(batch(size=0))


class Listed(Toy, frozen=True):
    given: tuple = ()

    def tasks(self, split: str) -> Iterable[Task]:
        if self.given == ("raise",):
            raise FileNotFoundError("data.jsonl")
        return (Task(id=id, prompt="p") for id in self.given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((), r"env\.split: toy has no tasks in split 'dev'; choose another split"),
        (("a", "b", "a", "c", "b"), r"unique.*2 occur more than once: 'a', 'b'"),
        (("a", " "), r"non-empty string, not ' '"),
        (("a", 7), r"non-empty string, not 7"),
        (("raise",), r"tasks of split 'dev' cannot be loaded.*data\.jsonl"),
    ],
)
def test_unusable_tasks_are_config_errors(given: tuple, words: str):
    with pytest.raises(ConfigError, match=words):
        load_tasks(Listed(given=given), "dev")


def test_tasks_are_chosen_by_number_or_by_id():
    env = Toy(many=5)
    assert [t.id for t in load_tasks(env, "train", 2)] == ["t0", "t1"]
    assert [t.id for t in load_tasks(env, "train", ids=["t4", "t0", "t4"])] == ["t4", "t0"]
    assert [t.id for t in load_tasks(env, "train", 1, ids=["t4", "t0"])] == ["t4"]
    with pytest.raises(ConfigError, match="no task has the id 't9'"):
        load_tasks(env, "train", ids=["t1", "t9"])


# ---- running ------------------------------------------------------------------------------------------------------


async def test_each_rollout_is_stored_before_it_is_reported(tmp_path: Path):
    reported: list[BatchProgress] = []
    with RunDir.open(tmp_path, {}) as run:

        def on_rollout(rollout: Rollout, progress: BatchProgress) -> None:
            assert rollout in [r for _, r in run.read_outcomes()]
            reported.append(progress)

        await evaluate(batch(), Runner(Toy(), store=run), on_rollout=on_rollout)
    assert [p.done for p in reported] == [1, 2, 3, 4, 5, 6]
    assert reported[-1] == BatchProgress(6, 6, 6, 1.0, reported[-1].usage)
    assert reported[-1].usage.tokens > reported[0].usage.tokens > 0


async def test_what_is_in_the_store_is_not_run_again(tmp_path: Path):
    log = str(tmp_path / "log")
    env = Toy(log=log)
    asked = batch(env=env)
    for resume in (False, True):
        with RunDir.open(tmp_path / "run", {}, resume=resume) as run:
            await evaluate(asked, Runner(env, store=run))
            assert len(run.read_scores()) == 6
            assert [len(g.rollouts) for g in read_groups(asked, Runner(env, store=run))] == [2, 2, 2]
    assert set(Counter(Path(log).read_text().splitlines()).values()) == {1}


async def test_a_failed_rollout_is_kept_and_run_again_by_the_next_resume(tmp_path: Path):
    def dead(messages, tools, sampling):
        raise ModelError("no answer", retryable=False)

    def half(messages, tools, sampling):
        return dead(messages, tools, sampling) if "t1" in messages[-1].content else echo(messages, tools, sampling)

    reported: list[BatchProgress] = []
    with RunDir.open(tmp_path, {}) as run:
        report = await process(batch(half), Runner(Toy(), store=run))
        assert (report.groups, report.partial) == (3, 1)
        assert report.summary.failed == {"model": 2}
        assert report.summary.overall.mean == 1.0
        failed = next(row for row in rows(run, GROUPS) if row["task"]["id"] == "t1")
        assert failed["partial"]
        assert [r["score"] for r in failed["rollouts"]] == [None, None]
        assert failed["rollouts"][0]["failure"]["boundary"] == "model"
    with RunDir.open(tmp_path, {}, resume=True) as run:
        report = await process(batch(), Runner(Toy(), store=run), on_rollout=lambda r, p: reported.append(p))
        assert report.partial == 0
        assert [row["partial"] for row in rows(run, GROUPS)] == [False] * 3
    assert [p.done for p in reported] == [5, 6]


def stop_after(number: int, control: RunControl) -> Callable[[Rollout, BatchProgress], None]:
    def on_rollout(rollout: Rollout, progress: BatchProgress) -> None:
        if progress.done == number:
            control.stop()

    return on_rollout


async def test_stopping_drains_and_a_resume_does_the_rest(tmp_path: Path):
    env = Toy(many=10)
    asked = batch(env=env)

    async def stopped(run: RunDir):
        control = RunControl()
        return await process(
            asked, Runner(env, store=run, options=RunOptions(1, control=control)), on_rollout=stop_after(5, control)
        )

    with RunDir.open(tmp_path, {}) as run:
        report = await stopped(run)
        assert (len(run.read_scores()), report.groups, report.partial) == (5, 3, 1)
        assert [(row["task"]["id"], row["partial"]) for row in rows(run, GROUPS)] == [
            ("t0", False),
            ("t1", False),
            ("t2", True),
        ]
    with RunDir.open(tmp_path, {}, resume=True) as run:
        await process(asked, Runner(env, store=run))
        assert sorted(row["index"] for row in rows(run, GROUPS)) == list(range(10))
        assert not any(row["partial"] for row in rows(run, GROUPS))


async def test_a_batch_that_is_stopped_before_it_starts_runs_nothing(tmp_path: Path):
    async def stopped(run: RunDir):
        control = RunControl()
        control.stop()
        return await evaluate(batch(), Runner(Toy(), store=run, options=RunOptions(control=control)))

    with RunDir.open(tmp_path, {}) as run:
        assert (await stopped(run)).overall.rollouts == 0


@pytest.mark.parametrize("error", [BudgetExhausted("tokens are spent"), ConfigError("a setting is wrong")])
@pytest.mark.parametrize("command", [process, evaluate])
async def test_finished_work_is_kept_and_written_when_something_stops_the_run(
    tmp_path: Path, error: Exception, command
):
    def breaks(messages, tools, sampling):
        if "t7" in messages[-1].content:
            raise error
        return echo(messages, tools, sampling)

    env = Toy(many=9)
    asked = batch(breaks, env)
    with RunDir.open(tmp_path, {}) as run:
        with pytest.raises(type(error), match=str(error)):
            await command(asked, Runner(env, store=run, options=RunOptions(2)))
        assert len(run.read_scores()) == 14
        if command is process:
            assert [row["task"]["id"] for row in rows(run, GROUPS)] == [f"t{n}" for n in range(7)]
        else:
            assert len(rows(run, SAMPLES)) == 14
            assert json.loads((tmp_path / SUMMARY).read_text())["overall"]["rollouts"] == 14
    with RunDir.open(tmp_path, {}, resume=True) as run:
        await command(batch(env=Toy(many=9)), Runner(Toy(many=9), store=run))
        assert len(run.read_scores()) == 18


@pytest.mark.parametrize("command", [process, evaluate])
async def test_a_bug_in_one_rollout_is_that_rollouts_failure(tmp_path: Path, command):
    def breaks(messages, tools, sampling):
        if "t1" in messages[-1].content:
            raise RuntimeError("nobody expected this")
        return echo(messages, tools, sampling)

    with RunDir.open(tmp_path, {}) as run:
        await command(batch(breaks, Toy(many=3)), Runner(Toy(many=3), store=run, options=RunOptions(2)))
        assert len(run.read_scores()) == 6
        failures = list(run.read_failures())
        assert [failure.boundary for failure in failures] == ["bug", "bug"]
        assert failures[0].message.startswith("RuntimeError: nobody expected this")
        assert "Traceback" in failures[0].message and "in breaks" in failures[0].message
    with RunDir.open(tmp_path, {}, resume=True) as run:
        await command(batch(env=Toy(many=3)), Runner(Toy(many=3), store=run))
        assert not list(run.read_failures())


# ---- what comes out -----------------------------------------------------------------------------------------------


async def test_a_row_has_the_conversation_and_not_the_answer(tmp_path: Path):
    script = [call("look", at="tree"), call("look", at="sun"), say("say t0", reasoning="done")]
    with RunDir.open(tmp_path, {}) as run:
        await process(batch(script, Toy(many=1), 1), Runner(Toy(many=1), store=run))
        (row,) = rows(run, GROUPS)
        assert len(run.read_scores()) == 1
    assert {key: row[key] for key in ("schema", "index", "size", "partial")} == {
        "schema": 1,
        "index": 0,
        "size": 1,
        "partial": False,
    }
    assert row["task"] == {"id": "t0", "kind": "a", "split": "train", "prompt": "say t0"}
    (rollout,) = row["rollouts"]
    score = {"value": 1.0, "passed": True, "soft": 1.0, "feedback": "as you see", "parts": {}, "suspect": []}
    assert rollout["score"] == score
    assert (rollout["failure"], rollout["stop"], rollout["turns"], rollout["replicate"]) == (None, "finished", 3, 0)
    assert [m["role"] for m in rollout["messages"]] == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    first, result = rollout["messages"][1:3]
    assert first["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"at":"tree"}'}
    assert result == {"role": "tool", "content": "a tree", "tool_call_id": first["tool_calls"][0]["id"]}
    assert rollout["messages"][-1] == {"role": "assistant", "content": "say t0", "reasoning_content": "done"}
    assert rollout["tool_errors"][0]["error"] == "ValueError: too bright"
    assert rollout["usage"]["cached_tokens"] == 0
    assert rollout["provenance"]["model"] == "scripted"
    assert rollout["provenance"]["tools"] == ["look"]
    assert "skipped" not in rollout["provenance"]
    assert "HIDDEN-ANSWER" not in (tmp_path / GROUPS).read_text()


async def test_an_evaluation_has_numbers_and_samples(tmp_path: Path):
    def odd(messages, tools, sampling):
        return say("wrong") if "t1" in messages[-1].content else echo(messages, tools, sampling)

    with RunDir.open(tmp_path, {}) as run:
        summary = await evaluate(batch(odd), Runner(Toy(), store=run))
        samples = rows(run, SAMPLES)
    assert summary.overall.mean == pytest.approx(2 / 3)
    assert msgspec.json.decode((tmp_path / SUMMARY).read_bytes(), type=RunSummary) == summary
    assert [(s["index"], s["replicate"], s["answer"]) for s in samples[:3]] == [
        (0, 0, "say t0"),
        (0, 1, "say t0"),
        (1, 0, "wrong"),
    ]
    assert {s["score"]["value"] for s in samples} == {0.0, 1.0}
    assert "HIDDEN-ANSWER" not in (tmp_path / SAMPLES).read_text()


async def test_groups_can_be_read_without_the_batch(tmp_path: Path):
    with RunDir.open(tmp_path, {}) as run:
        await evaluate(batch(), Runner(Toy(), store=run))
    with RunDir.read(tmp_path) as run:
        found = group_outcomes(run, size=3)
    assert [(g.task.id, len(g.rollouts), g.partial) for g in found] == [(f"t{n}", 2, True) for n in range(3)]


async def test_hostile_ids_go_through_to_every_file(tmp_path: Path):
    ids = ("../../x", "a/b", "..", "CON", "</script>", "ü\u2028\n", "x" * 3000, '"\\')
    env = Listed(given=ids)
    with RunDir.open(tmp_path / "run", {}) as run:
        await process(batch(env=env, size=1), Runner(env, store=run))
        assert sorted(row["task"]["id"] for row in rows(run, GROUPS)) == sorted(ids)
        await evaluate(batch(env=env, size=1), Runner(env, store=run))
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


async def test_groups_are_written_anew_from_the_store(tmp_path: Path):
    with RunDir.open(tmp_path, {}) as run:
        await process(batch(), Runner(Toy(), store=run))
        whole = sorted(run.read_lines(GROUPS))
    (tmp_path / GROUPS).write_bytes(whole[0] + b"\n" + whole[0] + b"\n" + whole[1][:50])
    with RunDir.open(tmp_path, {}, resume=True) as run:
        await process(batch(), Runner(Toy(), store=run))
        assert sorted(run.read_lines(GROUPS)) == whole


# ---- killed -------------------------------------------------------------------------------------------------------


def forked(work: Callable[[], None]) -> int:
    """Run `work` in a copy of this process, which ends with it; returns the copy's pid."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except StoreError:
            code = 7
        finally:
            os._exit(code)
    return pid


def test_kills_at_any_moment_lose_nothing_and_repeat_nothing(tmp_path: Path):
    log, home = str(tmp_path / "log"), tmp_path / "run"
    chance = random.Random(5)
    Path(log).touch()

    async def slow(messages, tools, sampling):
        await asyncio.sleep((sampling.seed % 7) / 1000)
        return echo(messages, tools, sampling)

    env = Toy(many=60, log=log)
    asked = batch(slow, env, 4)

    def work() -> None:
        def on_rollout(rollout: Rollout, progress: BatchProgress) -> None:
            note(log, f"kept {rollout.task.id}/{rollout.provenance.replicate}")

        with RunDir.open(home, {}, resume=True) as run:
            asyncio.run(process(asked, Runner(env, store=run, options=RunOptions(5)), on_rollout=on_rollout))

    killed = 0
    for _ in range(20):
        pid = forked(work)
        time.sleep(chance.uniform(0.0, 0.12))
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        killed += os.WIFSIGNALED(status)
        kept = Path(log).read_text().count("kept")
        if kept:
            with RunDir.read(home) as run:
                assert len(run.read_scores()) >= kept
                assert all(row["size"] == 4 for row in rows(run, GROUPS))
    assert killed >= 5
    _, status = os.waitpid(forked(work), 0)
    assert status == 0

    seen: set[str] = set()
    for line in Path(log).read_text().splitlines():
        event, which = line.split()
        assert which not in seen, f"{which} was {event} again after it was kept"
        if event == "kept":
            seen.add(which)
    with RunDir.open(home, {}, resume=True) as run:
        assert len(run.read_scores()) == 240 == len(list(run.read_outcomes()))
        found = rows(run, GROUPS)
        assert sorted(row["index"] for row in found) == list(range(60))
        assert all(len(row["rollouts"]) == 4 and not row["partial"] for row in found)
        assert asyncio.run(evaluate(asked, Runner(env, store=run))).overall.mean == 1.0


def test_a_disk_that_fills_up_stops_the_run_as_a_store_error(tmp_path: Path):
    env = Toy(many=100)
    asked = batch(lambda *_: say("x" * 10_000), env, 4)

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))
        with RunDir.open(tmp_path, {}) as run:
            asyncio.run(process(asked, Runner(env, store=run)))

    _, status = os.waitpid(forked(work), 0)
    assert os.waitstatus_to_exitcode(status) == 7
    with RunDir.open(tmp_path, {}, resume=True) as run:
        before = len(run.read_scores())
        assert 0 < before < 400
        asyncio.run(process(asked, Runner(env, store=run)))
        assert len(run.read_scores()) == 400
        assert len(rows(run, GROUPS)) == 100


async def test_a_policy_that_acts_otherwise_has_other_outcomes(tmp_path: Path):
    one = batch()
    other = replace(one, policy=replace(one.policy, system="Be brief."))
    with RunDir.open(tmp_path, {}) as run:
        await evaluate(one, Runner(Toy(), store=run))
        assert list(read_groups(other, Runner(Toy(), store=run))) == []


async def test_places_of_tasks_are_read_from_the_rows(tmp_path: Path):
    with RunDir.open(tmp_path, {}) as run:
        await process(batch(), Runner(Toy(), store=run))
        run.append(GROUPS, b"garbage \xff")
        assert read_places(run) == {"t0": 0, "t1": 1, "t2": 2}


async def test_a_failed_rollout_that_is_asked_for_again_is_counted_and_written_once(tmp_path: Path):
    control, shown = RunControl(), list[tuple[int, int]]()
    broken = {"say t1"}

    def script(messages: Sequence[Message], *_: object) -> str:
        if messages[-1].content in broken:
            raise ModelError("no server", retryable=False)
        return messages[-1].content

    def on_rollout(rollout: Rollout, progress: BatchProgress) -> None:
        shown.append((progress.done, progress.failed))
        if rollout.failure is not None and broken:
            broken.clear()
            with RunDir.read(tmp_path / "r") as reading:
                control.requeue(key for key, _ in reading.read_failed())

    env = Toy()
    with RunDir.open(tmp_path / "r", {}) as run:
        options = RunOptions(1, retries=0, control=control)
        asked = Batch(tuple(env.tasks("train")), Policy(ScriptedModel(script)))
        report = await process(asked, Runner(env, store=run, options=options), on_rollout=on_rollout)
        rows = [json.loads(line) for line in run.read_lines(GROUPS)]
    assert shown == [(1, 0), (2, 1), (3, 1), (3, 0)]
    assert (report.groups, report.partial, report.summary.failures.lost) == (3, 0, 0)
    assert sorted(row["task"]["id"] for row in rows) == ["t0", "t1", "t2"]
