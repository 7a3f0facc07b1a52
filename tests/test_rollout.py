import asyncio
import math
import os
import posixpath
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import msgspec
import pytest
from tests.build import make_turn

from ludus.control import RunControl
from ludus.encoding import to_json
from ludus.engine import derive_seed, run_group, run_many
from ludus.env import Env, FollowUp
from ludus.errors import BudgetExhausted, ConfigError, ModelError, ModelUnusable, StoreError
from ludus.models import Model
from ludus.models.scripted import ScriptedModel, call, say
from ludus.policy import Agent, AgentResult, Limits, Policy, Scene, seed_sampling
from ludus.result_budget import RESULTS
from ludus.rollout import run, run_retrying
from ludus.runner import Job, Runner, RunOptions, RunSettings
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.sandbox.pool import PoolSettings
from ludus.sandbox.profiles import open_pool
from ludus.skill import Skill
from ludus.tools import Tool, tool
from ludus.types import (
    Call,
    Completion,
    Finish,
    Message,
    Rollout,
    Sampling,
    Score,
    StopReason,
    Task,
    ToolSpec,
    Turn,
    Usage,
)

TASK = Task(id="a/b", prompt="Say yes.", answer="yes")


class Yes(Env, frozen=True):
    """Say yes."""

    name: ClassVar[str] = "yes"
    sandbox: ClassVar[SandboxSpec | None] = None
    system: ClassVar[str] = "Be brief."

    def tasks(self, split: str) -> Iterator[Task]:
        yield TASK

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        return Score.of(float(rollout.answer == rollout.task.answer), "compared")


class Boxed(Yes, frozen=True):
    name: ClassVar[str] = "boxed"
    sandbox: ClassVar[SandboxSpec | None] = SandboxSpec()

    def tools(self, task: Task, box: Sandbox | None) -> Sequence[Tool]:
        assert box is not None

        @tool
        async def shell(command: str) -> str:
            return (await box.exec(command)).text

        return [shell]


def policy(script: Any = "yes", **fields: Any) -> Policy:
    return Policy(ScriptedModel([script] if isinstance(script, str) else script), **fields)


async def once(env: Env, who: Policy, backend: str = "local") -> Rollout:
    async with open_pool(backend) as pool:
        return await run(Job(TASK, who), Runner(env, pool, options=RunOptions(retries=0)))


# ---- one life -----------------------------------------------------------------------------------------------------


async def test_a_rollout_is_scored_and_says_what_produced_it():
    who = policy(skill=Skill("Answer yes."), system="Policy text.")
    rollout = await run(Job(TASK, who, replicate=2, seed=9), Runner(Yes()))
    assert rollout.score == Score.of(1.0, "compared")
    assert rollout.failure is None
    assert rollout.opening[0] == Message("system", "Be brief.\n\nPolicy text.\n\nAnswer yes.")
    made = rollout.provenance
    assert (made.policy, made.skill) == (who.fingerprint, Skill("Answer yes.").hash)
    assert (made.seed, made.replicate, made.attempt) == (9, 2, 1)
    assert made.versions["env"] == "yes@1"
    assert {"ludus", "python"} <= made.versions.keys()


@pytest.mark.parametrize(("skill_as", "in_text"), [("file", False), ("both", True)])
async def test_a_skill_can_be_a_file_that_the_agent_reads_and_verify_does_not_see(skill_as: Any, in_text: bool):
    class Looks(Boxed, frozen=True):
        async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
            assert box is not None
            left = await box.exec("find . $TMPDIR -name SKILL.md")
            return Score.of(float(not left.text), left.text)

    skill = Skill("---\nname: say-yes\ndescription: How to agree.\n---\n\nAnswer yes.\n")
    script = [call("shell", command="cat $TMPDIR/skills/say-yes/SKILL.md"), say("yes")]
    rollout = await once(Looks(), policy(script, skill=skill, skill_as=skill_as))
    system = rollout.opening[0].content
    assert system.endswith("Your skill is in /tmp/skills/say-yes/SKILL.md. Read it before you begin.")
    assert ("Answer yes." in system) is in_text
    assert rollout.turns[0].results[0].content == skill.text
    assert rollout.score == Score.of(1.0)


async def test_a_skill_s_file_needs_a_slot():
    rollout = await run(Job(TASK, policy(skill=Skill("x"), skill_as="both")), Runner(Yes()))
    assert rollout.failure is not None
    assert "agent.skill_as" in rollout.failure.message


async def test_the_answer_is_never_in_what_the_agent_is_shown():
    seen: list[str] = []

    def script(messages: Sequence[Message], *_: object) -> Message:
        seen.extend(m.content for m in messages)
        return say("no")

    await run(Job(Task(id="t", prompt="?", answer="the-secret"), policy(script)), Runner(Yes()))
    assert seen
    assert "the-secret" not in "".join(seen)


async def test_the_agents_processes_are_dead_and_its_files_are_there_when_verify_runs():
    class Looks(Boxed, frozen=True):
        async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
            assert box is not None
            alive = await box.exec(f"pgrep -f 'slee[p] {seconds}' | wc -l")
            text = await box.read("left.txt")
            return Score.of(1.0, f"{alive.text.strip()} alive, file: {text.decode().strip()}")

    seconds = f"98765.{os.getpid()}"  # nobody else's
    command = f"echo kept > left.txt; setsid sleep {seconds} & sleep {seconds} & true"
    rollout = await once(Looks(), policy([call("shell", command=command), say("done")]))
    assert rollout.failure is None
    assert rollout.score is not None
    assert rollout.score.feedback == "0 alive, file: kept"


async def test_setup_writes_the_tasks_files():
    class Sees(Boxed, frozen=True):
        async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
            assert box is not None
            return Score.of(float(await box.read("in/put.txt") == b"given"))

    async with open_pool("local") as pool:
        task = Task(id="t", prompt="p", files={"in/put.txt": "given"})
        result = await run(Job(task, policy()), Runner(Sees(), pool))
    assert result.score == Score.of(1.0)


@pytest.mark.parametrize("backend", ["bwrap", "local"])
async def test_a_long_tool_result_is_in_the_slot_at_the_path_that_the_agent_is_given(backend: str):
    def act(messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Message:
        answers = [message.content for message in messages if message.role == "tool"]
        if not answers:
            return call("shell", command="seq 100000")
        if len(answers) > 1:
            return say("yes")
        (path,) = re.findall(rf"/\S*{posixpath.basename(RESULTS)}/\S+\.txt", answers[0])
        return call("shell", command=f"tail -n 1 {path}")

    rollout = await once(Boxed(), policy(act), backend=backend)
    spilled = rollout.turns[0].results[0].spilled
    assert spilled.endswith(f"{posixpath.basename(RESULTS)}/turn1-1.txt")
    assert backend == "local" or spilled == f"{RESULTS}/turn1-1.txt"
    assert rollout.turns[1].results[0].content.strip() == "100000"


async def test_a_rollout_past_its_time_limit_is_stopped_and_still_judged(pass_time: Callable[[float], None]):
    async def script(messages: Sequence[Message], *_: object) -> Message:
        if len(messages) == 2:
            return call("shell", command="echo one")
        pass_time(200)
        await asyncio.sleep(3600)
        return say("never")

    rollout = await once(Boxed(), policy(script, limits=Limits(rollout_seconds=100)))
    assert rollout.stop is StopReason.TIMEOUT
    assert len(rollout.turns) == 1
    assert rollout.score == Score.of(0.0, "compared")


async def test_a_rollout_that_outgrows_the_servers_context_is_judged_and_one_that_never_fitted_has_failed():
    def outgrowing(replies: int) -> Callable[..., Message]:
        def script(messages: Sequence[Message], *_: object) -> Message:
            if sum(message.role == "assistant" for message in messages) < replies:
                return call("shell", command="echo one")
            fault = ModelError("status 400: maximum context length is 4096 tokens", retryable=False)
            fault.too_long = True
            raise fault

        return script

    rollout = await once(Boxed(), policy(outgrowing(1)))
    assert (rollout.stop, len(rollout.turns), rollout.score) == (StopReason.CONTEXT, 1, Score.of(0.0, "compared"))
    rollout = await once(Boxed(), policy(outgrowing(0)))
    assert (rollout.stop, rollout.score) == (StopReason.FAILED, None)


# ---- a failure is not a zero --------------------------------------------------------------------------------------


class Broken(Yes, frozen=True):
    how: str = ""

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        match self.how:
            case "raises":
                raise KeyError("expected column")
            case "hangs":
                await asyncio.sleep(3600)
            case "nan":
                return Score.of(math.nan)
            case _:
                return 1.0  # pyright: ignore
        raise AssertionError


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("raises", "verify of task 'a/b': KeyError: 'expected column'"),
        ("hangs", "verify of task 'a/b': TimeoutError: not done within 0.05 s (limits.verify_seconds)"),
        ("nan", "finite"),
        ("wrong type", "verify returned float, not a Score"),
    ],
)
async def test_a_verifier_that_breaks_gives_no_score(how: str, says: str):
    rollout = await once(Broken(how=how), policy(limits=Limits(verify_seconds=0.05)))
    assert rollout.score is None
    assert rollout.failure is not None
    assert rollout.failure.boundary == "verifier"
    assert says in rollout.failure.message
    assert rollout.stop is StopReason.FAILED
    assert rollout.answer == "yes", "what happened before the failure is kept"


async def test_setup_that_breaks_is_a_setup_failure():
    class NoSetup(Boxed, frozen=True):
        async def setup(self, task: Task, box: Sandbox) -> None:
            raise RuntimeError("no network")

    rollout = await once(NoSetup(), policy())
    assert rollout.failure is not None
    assert (rollout.failure.boundary, rollout.turns) == ("setup", ())


@pytest.mark.parametrize(
    ("own", "says"),
    [
        (lambda: [len], "not Tool: make one with @tool"),
        (lambda: [named("twice"), named("twice")], "two tools are called 'twice'"),
    ],
)
async def test_tools_that_cannot_be_offered_are_a_setup_failure(own: Callable[[], list[Any]], says: str):
    class Tooled(Yes, frozen=True):
        def tools(self, task: Task, box: Sandbox | None) -> Sequence[Tool]:
            return own()

    rollout = await once(Tooled(), policy())
    assert rollout.failure is not None and rollout.failure.boundary == "setup"
    assert says in rollout.failure.message


def named(name: str) -> Tool:
    async def run(arguments: object) -> str:
        return ""

    return Tool(ToolSpec(name, "", {"type": "object"}), run)


async def test_a_model_that_dies_midway_leaves_its_turns_in_the_record():
    def script(messages: Sequence[Message], *_: object) -> Message:
        if len(messages) > 2:
            raise ModelError("server is gone")
        return call("shell", command="echo one")

    rollout = await once(Boxed(), policy(script))
    assert rollout.failure is not None
    assert rollout.failure.boundary == "model"
    assert len(rollout.turns) == 1


async def test_an_environment_that_needs_a_slot_says_so_when_there_is_no_pool():
    rollout = await run(Job(TASK, policy()), Runner(Boxed()))
    assert rollout.failure is not None
    assert "needs a sandbox" in rollout.failure.message
    assert not rollout.failure.retryable


# ---- retries ------------------------------------------------------------------------------------------------------


def flaky(failures: int, error: Exception) -> tuple[Any, list[int]]:
    calls: list[int] = []

    def script(*_: object) -> Message:
        calls.append(1)
        if len(calls) <= failures:
            raise error
        return say("yes")

    return script, calls


async def retrying(script: Any, retries: int) -> Rollout:
    return await run_retrying(Job(TASK, policy(script)), Runner(Yes(), options=RunOptions(retries=retries)))


async def test_infrastructure_failures_are_retried_and_the_record_says_how_often():
    script, _ = flaky(2, ModelError("down"))
    rollout = await retrying(script, retries=2)
    assert rollout.score == Score.of(1.0, "compared")
    assert rollout.provenance.attempt == 3


async def test_retries_end():
    script, calls = flaky(99, ModelError("down"))
    assert (await retrying(script, retries=2)).failure is not None
    assert len(calls) == 3


async def test_a_failure_that_a_retry_cannot_fix_is_not_retried():
    script, calls = flaky(99, ModelError("no such model", retryable=False))
    assert (await retrying(script, retries=5)).failure is not None
    assert len(calls) == 1


async def test_a_wrong_answer_is_not_retried():
    script, calls = flaky(0, ModelError("unused"))
    wrong = await run_retrying(
        Job(Task(id="t", prompt="p", answer="no"), policy(script)), Runner(Yes(), options=RunOptions(retries=5))
    )
    assert wrong.score == Score.of(0.0, "compared")
    assert len(calls) == 1


# ---- another agent in place of the loop ---------------------------------------------------------------------------


class SeedAgent(Agent):
    """An agent with a model of its own that says yes, and keeps what it was given."""

    name = "seed-agent"
    brings_model = True

    def __init__(self, error: Exception | None = None) -> None:
        self.given: list[tuple[Task, tuple[Message, ...], int | None]] = []
        self._error = error

    async def act(self, scene: Scene) -> StopReason:
        sampling = seed_sampling(scene.policy.sampling, scene.seed)
        self.given.append((scene.task, scene.opening, sampling.seed))
        if self._error is not None:
            raise self._error
        turn = make_turn("yes", stop=StopReason.FINISHED)
        details = {"seen": [scene.task.id]}
        return scene.keep(AgentResult((), (), (turn,), StopReason.FINISHED, None, None, details))

    def use_model(self, model: Model) -> "SeedAgent":
        self.name = f"seed-agent/{model.name}"
        return self


async def test_another_agent_gets_the_task_and_what_it_returns_is_on_the_record():
    class Reads(Yes, frozen=True):
        async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
            assert rollout.details == {"seen": ["a/b"]}
            return await super().verify(rollout, box)

    agent = SeedAgent()
    who = policy("never asked", agent=agent, skill=Skill("Obey."), sampling=Sampling(seed=3))
    rollout = await run(Job(TASK, who, seed=5), Runner(Reads()))
    assert rollout.score is not None and rollout.score.passed
    assert agent.given == [(TASK, rollout.opening, 3 + 5 + 1_000_003)]
    assert rollout.opening[0] == Message("system", "Be brief.\n\nObey.")
    assert (rollout.provenance.model, rollout.provenance.tools) == ("seed-agent", ())
    assert msgspec.json.decode(to_json(rollout), type=Rollout) == rollout


async def test_an_agent_that_breaks_is_a_failure_and_one_that_is_late_is_judged(pass_time: Callable[[float], None]):
    broken = await run(Job(TASK, policy(agent=SeedAgent(ModelError("down")))), Runner(Yes()))
    assert broken.failure is not None and (broken.failure.boundary, broken.failure.message) == ("model", "down")

    class Late(SeedAgent):
        async def act(self, scene: Scene) -> StopReason:
            pass_time(100.0)
            await asyncio.Event().wait()
            raise AssertionError

    late = policy(agent=Late(), limits=Limits(rollout_seconds=99.0))
    rollout = await run(Job(TASK, late), Runner(Yes()))
    assert (rollout.stop, rollout.turns) == (StopReason.TIMEOUT, ())
    assert rollout.score is not None and not rollout.score.passed


def test_another_model_reaches_the_agent_and_changes_the_fingerprint():
    who = policy(agent=SeedAgent())
    before = (who.model_name, who.fingerprint)
    other = who.use_model(ScriptedModel(["x"], "next"))
    assert (before[0], other.model_name) == ("seed-agent", "seed-agent/next") and other.fingerprint != before[1]
    assert policy().use_model(ScriptedModel(["x"], "next")).model_name == "next"


@pytest.mark.parametrize("who", [policy("yes"), policy(agent=SeedAgent())], ids=["loop", "agent"])
async def test_every_turn_is_passed_on_when_it_is_complete(who: Policy):
    seen: list[Turn] = []
    rollout = await run(Job(TASK, who), Runner(Yes(), on_turn=seen.append))
    assert tuple(seen) == rollout.turns and seen


async def test_a_rollout_of_the_loop_has_no_details_in_its_json():
    rollout = await run(Job(TASK, policy()), Runner(Yes()))
    assert rollout.details is None and b"details" not in to_json(rollout)


# ---- many ---------------------------------------------------------------------------------------------------------


def jobs(count: int, who: Policy) -> list[Job]:
    return [Job(Task(id=str(i), prompt="p", answer="yes"), who) for i in range(count)]


def test_settings_become_options():
    settings = RunSettings(out="there", concurrency=7, retries=0)
    assert settings.make_options() == RunOptions(concurrency=7, retries=0)
    assert RunSettings().make_options() == RunOptions()


def add_to(rollouts: list[Rollout]) -> Callable[[Job, Rollout], None]:
    return lambda job, rollout: rollouts.append(rollout)


async def test_concurrency_is_bounded_and_jobs_start_in_order():
    running = 0
    most = 0
    started: list[int] = []

    async def script(messages: Sequence[Message], *_: object) -> Message:
        nonlocal running, most
        running += 1
        most = max(most, running)
        started.append(int(messages[-1].content))
        await asyncio.sleep(0)
        running -= 1
        return say("yes")

    who = policy(script)
    done: list[Rollout] = []
    work = [Job(Task(id=str(i), prompt=str(i), answer="yes"), who) for i in range(40)]
    await run_many(work, Runner(Yes(), options=RunOptions(7)), add_to(done))
    assert most == 7
    assert started == sorted(started)
    assert len(done) == 40


async def test_a_stop_drains_what_runs_and_starts_nothing_new():
    done: list[Rollout] = []

    control = RunControl()

    async def script(*_: object) -> Message:
        await asyncio.sleep(0.01)  # the five have begun
        control.stop()
        await asyncio.sleep(0.01)
        return say("yes")

    await run_many(jobs(50, policy(script)), Runner(Yes(), options=RunOptions(5, control=control)), add_to(done))
    assert len(done) == 5
    assert all(r.score for r in done)


async def test_a_spent_budget_drains_and_is_raised_at_the_end():
    calls = 0

    async def script(*_: object) -> Message:
        nonlocal calls
        calls += 1
        if calls > 10:
            raise BudgetExhausted("calls: 10 of 10 used")
        await asyncio.sleep(0.001 * calls)
        return say("yes")

    done: list[Rollout] = []
    with pytest.raises(BudgetExhausted, match="10 of 10"):
        await run_many(jobs(50, policy(script)), Runner(Yes(), options=RunOptions(4)), add_to(done))
    assert len(done) == 10, "what was paid for is kept"
    assert all(r.failure is None for r in done)


async def test_a_bug_stops_the_run_loudly():
    def record(job: Job, rollout: Rollout) -> None:
        raise ZeroDivisionError("bug")

    with pytest.raises(ExceptionGroup) as caught:
        await run_many(jobs(5, policy()), Runner(Yes()), record)
    assert caught.group_contains(ZeroDivisionError)


async def test_a_group_keeps_its_order_and_says_what_is_missing():
    async def script(messages: Sequence[Message], tools: object, sampling: Any) -> Message:
        if sampling.seed == (derive_seed(5, "a/b", 1) + 1_000_003) % 2**31:
            raise ModelError("broken for replicate 1", retryable=False)
        return say("yes")

    group = await run_group(TASK, policy(script), Runner(Yes()), size=3, seed=5)
    assert [r.provenance.replicate for r in group.rollouts] == [0, 1, 2]
    assert [r.failure is None for r in group.rollouts] == [True, False, True]
    assert group.partial
    assert len({r.provenance.seed for r in group.rollouts}) == 3


def test_seeds_are_the_same_in_every_process():
    assert derive_seed(0, "a", 0) == 1746515184
    assert derive_seed(0, "a", 0) != derive_seed(0, "a", 1)


# ---- cancellation -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["setup", "model", "tool", "verify"])
async def test_cancelling_at_any_await_gives_the_slot_back(where: str):
    reached = asyncio.Event()

    async def stall() -> None:
        reached.set()
        await asyncio.sleep(3600)

    class Stalls(Boxed, frozen=True):
        async def setup(self, task: Task, box: Sandbox) -> None:
            if where == "setup":
                await stall()

        def tools(self, task: Task, box: Sandbox | None) -> Sequence[Tool]:
            assert box is not None

            @tool
            async def shell(command: str) -> str:
                if where == "tool":
                    reached.set()
                return (await box.exec(command)).text

            return [shell]

        async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
            if where == "verify":
                await stall()
            return Score.of(1.0)

    async def script(messages: Sequence[Message], *_: object) -> Message:
        if where == "model":
            await stall()
        return call("shell", command="sleep 4321") if where == "tool" else say("yes")

    async with open_pool("local", PoolSettings(max_slots=1)) as pool:
        task = asyncio.create_task(run(Job(TASK, policy(script)), Runner(Stalls(), pool)))
        await reached.wait()
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(60), pool.lease(SandboxSpec()) as box:  # the only slot is free again
            result = (await box.exec("true")).exit_code
    assert result == 0


async def test_a_slot_that_dies_under_the_agent_is_a_sandbox_failure():
    class Dies(Boxed, frozen=True):
        def tools(self, task: Task, box: Sandbox | None) -> Sequence[Tool]:
            assert box is not None

            @tool
            async def shell(command: str) -> str:
                await box.close()
                return (await box.exec(command)).text

            return [shell]

    rollout = await once(Dies(), policy([call("shell", command="true"), say("yes")]))
    assert rollout.score is None
    assert rollout.failure is not None
    assert rollout.failure.boundary == "sandbox"


class Unexpected(Exception):
    pass


async def test_an_unexpected_exception_is_that_rollouts_failure_with_its_traceback():
    script, calls = flaky(9, Unexpected("x" * 50_000))
    rollout = await retrying(script, 2)
    assert len(calls) == 1, "a bug is not tried again"
    assert rollout.stop is StopReason.FAILED and rollout.failure is not None
    assert (rollout.failure.boundary, rollout.failure.retryable) == ("bug", False)
    assert rollout.failure.message.startswith("Unexpected: xxx") and "in script" in rollout.failure.message
    assert len(rollout.failure.message) < 10_000


@pytest.mark.parametrize("error", [BudgetExhausted("spent"), StoreError("disk full"), ConfigError("wrong")])
async def test_errors_of_the_user_are_not_failures_also_in_groups(error: Exception):
    for raised in (error, ExceptionGroup("several", [ExceptionGroup("inner", [error]), Unexpected()])):
        with pytest.raises(type(error), match=str(error)):
            await retrying(flaky(9, raised)[0], 2)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), asyncio.CancelledError(), SystemExit(3)])
async def test_interrupts_are_not_failures(error: BaseException):
    def script(*_: object) -> Message:
        raise error

    with pytest.raises(type(error)):
        await run(Job(TASK, policy(script)), Runner(Yes()))


async def test_an_error_of_the_world_in_a_group_keeps_its_boundary():
    failure = (await retrying(flaky(9, ExceptionGroup("several", [ModelError("gone", retryable=False)]))[0], 0)).failure
    assert failure is not None and (failure.boundary, failure.message) == ("model", "gone")


async def test_arguments_nested_too_deeply_are_the_models_mistake():
    class Shell(Yes, frozen=True):
        def tools(self, task: Task, box: Sandbox | None) -> Sequence[Tool]:
            @tool
            async def look(at: str = "", more: list[int] | None = None) -> str:
                return at

            return [look]

    for levels in (50, 500, 900, 990, 1_000, 100_000):
        arguments = '{"more":' + "[" * levels + "]" * levels + "}"
        message = Message("assistant", calls=(Call("", "look", arguments),))
        rollout = await run(Job(TASK, policy([message, say("yes")])), Runner(Shell()))
        assert rollout.score is not None and rollout.score.passed, rollout.failure
        assert len(rollout.tool_errors) == 1
        assert to_json(rollout)


# ---- replies that are no answers, and models that cannot be used --------------------------------------------------


async def test_a_filtered_reply_is_no_score_and_is_not_asked_for_again():
    asked: list[object] = []

    def script(messages: Sequence[Message], tools: object, sampling: object) -> Completion:
        asked.append(messages)
        return Completion(Message("assistant", ""), Finish.FILTER, Usage(7, 0))

    rollout = await run_retrying(Job(TASK, policy(script)), Runner(Yes()))
    assert (rollout.score, rollout.stop, len(asked)) == (None, StopReason.FAILED, 1)
    assert rollout.failure is not None
    assert (rollout.failure.boundary, rollout.failure.retryable) == ("model", False)
    assert rollout.turns[-1].stop is StopReason.FILTERED
    assert rollout.usage.tokens == 7


@pytest.mark.parametrize(("finish", "stop"), [(Finish.STOP, StopReason.EMPTY), (Finish.LENGTH, StopReason.LENGTH)])
async def test_an_empty_reply_is_scored_and_says_why_it_was_empty(finish: Finish, stop: StopReason):
    rollout = await run(Job(TASK, policy([Completion(Message("assistant", ""), finish)])), Runner(Yes()))
    assert (rollout.score, rollout.stop, rollout.failure) == (Score.of(0.0, "compared"), stop, None)


@pytest.mark.parametrize("grouped", [False, True])
async def test_a_model_that_cannot_be_used_drains_the_run_and_is_raised_at_the_end(grouped: bool):
    asked: list[str] = []

    def script(messages: Sequence[Message], tools: object, sampling: object) -> Message:
        asked.append("")
        if len(asked) > 5:
            error = ModelUnusable("status 401")
            raise ExceptionGroup("several", [error]) if grouped else error
        return say("yes")

    ended: list[Rollout] = []
    jobs = [Job(TASK, policy(script), replicate) for replicate in range(100)]
    with pytest.raises(ModelUnusable, match="status 401"):
        await run_many(jobs, Runner(Yes(), options=RunOptions(2)), lambda _, rollout: ended.append(rollout))
    assert [rollout.score for rollout in ended] == [Score.of(1.0, "compared")] * 5
    assert len(asked) <= 7, "one for each rollout under way"


async def test_the_time_of_a_rollout_does_not_count_its_wait_for_a_slot():
    async with open_pool("local", settings=PoolSettings(max_slots=1)) as pool:
        async with pool.lease(SandboxSpec()):
            waiting = asyncio.ensure_future(run(Job(TASK, policy("yes")), Runner(Boxed(), pool)))
            began = time.monotonic()
            await asyncio.sleep(1)
            waited = time.monotonic() - began
        rollout, waited = await waiting, waited
    assert rollout.score == Score.of(1.0, "compared")
    assert rollout.seconds < waited


# ---- conversations ------------------------------------------------------------------------------------------------


class Chat(Yes, frozen=True):
    """A user who asks twice, and brings a tool for the second question."""

    name: ClassVar[str] = "chat"

    async def follow_up(self, task: Task, turns: Sequence[Turn], box: Sandbox | None) -> FollowUp | None:
        @tool
        async def look() -> str:
            return "yes"

        return FollowUp("Look, then say it again.", (look,)) if not any(turn.notices for turn in turns) else None


async def test_the_environment_says_what_the_user_says_next():
    rollout = await run(Job(TASK, policy(["no", call("look"), "yes"])), Runner(Chat()))
    assert rollout.score == Score.of(1.0, "compared")
    assert [message.content for message in rollout.turns[0].notices] == ["Look, then say it again."]
    assert rollout.provenance.tools == ("look",)
    assert msgspec.json.decode(to_json(rollout), type=Rollout) == rollout


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("more", "follow_up returns str, not ludus.env.FollowUp"),
        (FollowUp("more", ("look",)), "follow_up returns str, not Tool"),  # pyright: ignore[reportArgumentType]
        (RuntimeError("no user"), "no user"),
    ],
)
async def test_a_broken_follow_up_is_a_failure_and_not_a_zero(said: Any, message: str):
    class Broken(Chat, frozen=True):
        async def follow_up(self, task: Task, turns: Sequence[Turn], box: Sandbox | None) -> FollowUp | None:
            if isinstance(said, Exception):
                raise said
            return said

    rollout = await run(Job(TASK, policy("yes")), Runner(Broken()))
    assert rollout.failure is not None and rollout.score is None
    assert rollout.failure.boundary == "tool"
    assert message in rollout.failure.message
    assert len(rollout.turns) == 0 or rollout.turns[0].completion.message.content == "yes"


async def test_another_agent_than_the_loop_cannot_hear_the_user():
    class Someone(Agent):
        name = "someone"

        async def act(self, scene: Scene) -> StopReason:
            raise AssertionError("it must not act")

    rollout = await run(Job(TASK, policy("yes", agent=Someone())), Runner(Chat()))
    assert rollout.failure is not None and "someone ends with its reply" in rollout.failure.message
