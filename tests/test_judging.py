"""Faults in every phase of a rollout, with every kind of evidence: what comes out, how often the agent acts, and how
often `verify` runs. The slots are in memory and fail as a test says; `test_hostile_agents.py` has real ones."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sandbox_kit import make_pool

from ludus.env import Env
from ludus.errors import BudgetExhausted, ModelError, ModelUnusable, SandboxError, SlotEvidence
from ludus.judging import FilesUnusable, open_judging_slot
from ludus.models.scripted import ScriptedModel, call, say
from ludus.policy import Limits, Policy
from ludus.rollout import run, run_retrying
from ludus.runner import Job, Runner, RunOptions
from ludus.sandbox import WORKSPACE, ExecResult, Sandbox, SandboxSpec
from ludus.sandbox.archive import ArchiveEntry, ArchiveTooLarge, make_archive, read_entries
from ludus.tools import Tool, tool
from ludus.types import Message, Rollout, Score, StopReason, Task

TASK = Task(id="t", prompt="Write good into f.", files={"given": "1"}, answer="good")
RETRIES = 2

Fail = Callable[[int, str], Exception | None]
"""The error of an operation of the slot with this number, counted from 1 over the whole test."""


def broken(**evidence: str) -> SandboxError:
    return SandboxError("the slot ended", evidence=SlotEvidence(**evidence))


class MemorySlot:
    """A slot whose files are in memory. Every operation first asks `fail`."""

    spec = SandboxSpec()

    def __init__(self, number: int, fail: Fail) -> None:
        self.number = number
        self.files: dict[str, bytes] = {}
        self.alive = True
        self._fail = fail

    def _begin(self, operation: str) -> None:
        error = self._fail(self.number, operation)
        if isinstance(error, SandboxError):
            self.alive = False
        if error is not None:
            raise error

    def resolve(self, path: str) -> str:
        return path

    async def exec(self, command: str, **_: Any) -> ExecResult:
        self._begin("exec")
        return ExecResult(b"", b"", 0)

    async def settle(self) -> None:
        self._begin("settle")

    async def write(self, path: str, data: bytes) -> None:
        self._begin("write")
        self.files[path] = data

    async def read(self, path: str, **_: Any) -> bytes:
        self._begin("read")
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path]

    async def pack(self, path: str, **_: Any) -> bytes:
        self._begin("pack")
        return make_archive([ArchiveEntry(name, 0o644, 0.0, data) for name, data in self.files.items()])

    async def unpack(self, archive: bytes, path: str, *, replace: bool = False) -> None:
        self._begin("unpack")
        assert (path, replace) == (WORKSPACE, True)
        self.files = {entry.path: entry.data or b"" for entry in read_entries(archive)}

    async def close(self) -> None: ...


class Counts:
    """What happened in a test."""

    def __init__(self) -> None:
        self.slots = 0
        self.acted = 0
        self.verified = 0
        self.solved = 0


Verify = Callable[[str | None], Score | None]
"""The score of the content of `f`, None if the agent wrote none."""


def judge_content(content: str | None) -> Score:
    return Score.of(float(content == "good"))


async def run_faulty(
    fail: Fail = lambda number, operation: None,
    verify: Verify = judge_content,
    *,
    writes: str | None = "good",
    verify_in: Literal["fresh", "same"] = "fresh",
    solution: str | None = None,
    retries: int = RETRIES,
    setup: Callable[[int], None] = lambda number: None,
) -> tuple[Rollout, Counts]:
    """Run a rollout whose agent writes `f`, with faults."""
    counts, where = Counts(), verify_in

    class Judged(Env, frozen=True):
        name: ClassVar[str] = "judged"
        verify_in: ClassVar[Literal["fresh", "same"]] = where

        def tasks(self, split: str) -> Iterator[Task]:
            yield TASK

        async def setup(self, task: Task, box: Sandbox) -> None:
            setup(box.number)  # pyright: ignore
            await super().setup(task, box)

        def tools(self, task: Task, box: Sandbox | None) -> Sequence[Tool]:
            @tool
            async def put(text: str) -> str:
                assert box is not None
                await box.exec("true")
                await box.write("f", text.encode())
                return "done"

            return [put]

        async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
            assert box is not None
            counts.verified += 1
            assert await box.read("given") == b"1", "setup has run"
            try:
                content = (await box.read("f")).decode()
            except FileNotFoundError:
                content = None
            return verify(content)  # pyright: ignore[reportReturnType]

    class Solved(Judged, frozen=True):
        async def solve(self, task: Task, box: Sandbox | None) -> str:
            assert box is not None and solution is not None
            counts.solved += 1
            await box.write("f", solution.encode())
            return "done"

    def script(messages: Sequence[Message], *_: object) -> Message:
        if messages[-1].role == "tool":
            return say("done")
        counts.acted += 1
        return call("put", text=writes) if writes is not None else say("I do nothing.")

    async def create(spec: SandboxSpec) -> Sandbox:
        counts.slots += 1
        return MemorySlot(counts.slots, fail)  # pyright: ignore[reportReturnType]

    async def go() -> Rollout:
        env = Judged() if solution is None else Solved()
        policy = Policy(ScriptedModel(script), limits=Limits(turns=3))
        async with make_pool(create, max_slots=1, acquire_seconds=30.0) as pool:
            return await run_retrying(Job(TASK, policy), Runner(env, pool, options=RunOptions(retries=retries)))

    return await go(), counts


def fail_in(operation: str, error: Exception, numbers: Callable[[int], bool] = lambda number: number == 1) -> Fail:
    return lambda number, name: error if name == operation and numbers(number) else None


def assert_zero(rollout: Rollout, *words: str) -> None:
    assert rollout.failure is None
    assert rollout.stop is StopReason.BROKEN
    assert rollout.score is not None and (rollout.score.value, rollout.score.passed) == (0.0, False)
    assert all(word in rollout.score.feedback for word in words), rollout.score.feedback
    assert rollout.turns, "what the agent did is on the record"


def assert_failed(rollout: Rollout, boundary: str) -> None:
    assert (rollout.score, rollout.stop) == (None, StopReason.FAILED)
    assert rollout.failure is not None and rollout.failure.boundary == boundary
    assert rollout.turns


# ---- the agent's slot ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["exec", "settle", "pack"])
@pytest.mark.parametrize(("evidence", "slots"), [({}, 2), ({"inside": "all memory is used"}, 1)])
async def test_an_agent_that_breaks_its_slot_gets_a_zero_at_once(operation: str, evidence: dict[str, str], slots: int):
    rollout, counts = await run_faulty(fail_in(operation, broken(**evidence)))
    assert_zero(rollout, "The agent broke its slot", *evidence.values())
    assert (counts.acted, counts.verified, counts.slots) == (1, 0, slots)
    assert rollout.provenance.attempt == 1


@pytest.mark.parametrize("operation", ["exec", "settle", "pack"])
async def test_a_slot_that_the_world_ended_is_a_failure_and_the_rollout_is_run_again(operation: str):
    rollout, counts = await run_faulty(fail_in(operation, broken(outside="the connection broke")))
    assert (rollout.score, rollout.provenance.attempt) == (Score.of(1.0), 2)
    assert (counts.acted, counts.verified, counts.slots) == (2, 1, 3)
    rollout, counts = await run_faulty(fail_in(operation, broken(outside="the connection broke"), lambda number: True))
    assert_failed(rollout, "sandbox")
    assert (counts.acted, counts.verified, counts.slots) == (1 + RETRIES, 0, 1 + RETRIES)


@pytest.mark.parametrize("operation", ["exec", "settle", "pack"])
async def test_a_slot_that_ends_while_no_other_can_be_had_is_a_failure(operation: str):
    def fail(number: int, name: str) -> Exception | None:
        return broken() if (number, name) in ((1, operation), (2, "exec")) else None

    rollout, counts = await run_faulty(fail)
    assert (rollout.score, rollout.provenance.attempt) == (Score.of(1.0), 2)
    assert counts.acted == 2


async def test_a_slot_that_dies_before_the_agent_has_acted_is_never_its_fault():
    rollout, counts = await run_faulty(fail_in("write", broken(inside="all memory is used")))
    assert (rollout.score, rollout.provenance.attempt) == (Score.of(1.0), 2)
    assert counts.acted == 1


async def test_the_reply_that_broke_the_slot_is_on_the_record():
    rollout, _ = await run_faulty(fail_in("exec", broken(inside="x")))
    (turn,) = rollout.turns
    assert [each.name for each in turn.completion.message.calls] == ["put"]
    assert turn.results == ()


# ---- the agent's files --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), ValueError("no archive"), OSError("x")])
async def test_files_that_cannot_be_read_are_the_agents_fault(error: Exception):
    rollout, counts = await run_faulty(fail_in("pack", error))
    assert_zero(rollout, "The files left behind cannot be read")
    assert (counts.acted, counts.verified, counts.slots) == (1, 0, 1)


async def test_files_that_are_too_large_are_the_agents_fault():
    rollout, _ = await run_faulty(fail_in("pack", ArchiveTooLarge(WORKSPACE, 5)))
    assert_zero(rollout, "larger than the limit of 5 bytes")


async def test_a_backend_that_cannot_be_reached_is_not_the_agents_fault():
    rollout, counts = await run_faulty(fail_in("pack", ConnectionResetError("gone")))
    assert (rollout.score, rollout.provenance.attempt, counts.acted) == (Score.of(1.0), 2, 2)


async def test_files_that_take_too_long_to_read_are_the_agents_fault_if_slots_can_be_had():
    rollout, counts = await run_faulty(fail_in("pack", TimeoutError("late")))
    assert_zero(rollout, "late")
    assert (counts.acted, counts.slots) == (1, 2)


async def test_files_that_cannot_be_written_into_a_fresh_slot_are_tried_again_and_then_the_agents_fault():
    error = OSError(28, "No space left on device")
    rollout, counts = await run_faulty(fail_in("unpack", error, lambda number: number == 2))
    assert rollout.score == Score.of(1.0)
    assert (counts.acted, counts.verified) == (1, 1)
    rollout, counts = await run_faulty(fail_in("unpack", error, lambda number: True))
    assert_zero(rollout, "cannot be copied into a fresh slot: No space left on device")
    assert (counts.acted, counts.verified, counts.slots) == (1, 0, 1 + 1 + RETRIES + 1)


# ---- the fresh slot -----------------------------------------------------------------------------------------------


async def test_a_fresh_slot_that_cannot_be_set_up_is_made_again_and_the_agent_does_not_act_again():
    def breaks(numbers: Callable[[int], bool]) -> Callable[[int], None]:
        def setup(number: int) -> None:
            if numbers(number):
                raise RuntimeError("no network")

        return setup

    rollout, counts = await run_faulty(setup=breaks(lambda number: number in (2, 3)))
    assert rollout.score == Score.of(1.0)
    assert (counts.acted, counts.verified, counts.slots) == (1, 1, 4)
    rollout, counts = await run_faulty(setup=breaks(lambda number: number > 1))
    assert_failed(rollout, "setup")
    assert rollout.failure is not None and not rollout.failure.retryable
    assert (counts.acted, counts.verified, counts.slots) == (1, 0, 1 + 1 + RETRIES)


async def test_a_fresh_slot_that_the_world_ends_under_verify_costs_no_second_turn():
    error = broken(outside="the host is gone")
    rollout, counts = await run_faulty(fail_in("read", error, lambda number: number == 2))
    assert (rollout.score, counts.acted, counts.verified) == (Score.of(1.0), 1, 2)
    rollout, counts = await run_faulty(fail_in("read", error, lambda number: number > 1))
    assert_failed(rollout, "sandbox")
    assert (counts.acted, counts.verified) == (1, 1 + RETRIES)


# ---- verify -------------------------------------------------------------------------------------------------------


def raise_for(*contents: str | None) -> Verify:
    def verify(content: str | None) -> Score:
        if content in contents:
            raise UnicodeDecodeError("utf-8", b"", 0, 1, "invalid start byte")
        return judge_content(content)

    return verify


@pytest.mark.parametrize("verify_in", ["fresh", "same"])
async def test_files_that_break_the_verifier_are_a_zero(verify_in: Any):
    rollout, counts = await run_faulty(verify=raise_for("evil"), writes="evil", verify_in=verify_in)
    assert_zero(rollout, "The verifier works without it", "invalid start byte")
    assert (counts.acted, counts.verified) == (1, 1 + RETRIES + 1)


@pytest.mark.parametrize("verify_in", ["fresh", "same"])
async def test_a_verifier_that_always_breaks_is_a_failure_and_the_turns_are_bought_once(verify_in: Any):
    rollout, counts = await run_faulty(verify=raise_for("good", None), verify_in=verify_in)
    assert_failed(rollout, "verifier")
    assert rollout.failure is not None and not rollout.failure.retryable
    assert "invalid start byte" in rollout.failure.message
    assert (counts.acted, counts.verified) == (1, 1 + RETRIES + 1)


@pytest.mark.parametrize("verify_in", ["fresh", "same"])
async def test_a_verifier_that_breaks_once_is_run_again_on_the_same_files(verify_in: Any):
    calls: list[str | None] = []

    def verify(content: str | None) -> Score:
        calls.append(content)
        if len(calls) == 1:
            raise RuntimeError("sporadic")
        return judge_content(content)

    rollout, counts = await run_faulty(verify=verify, verify_in=verify_in)
    assert rollout.score == Score.of(1.0)
    assert rollout.stop is StopReason.FINISHED
    assert (counts.acted, calls) == (1, ["good", "good"])


async def test_an_agent_that_writes_nothing_cannot_hide_behind_a_verifier_that_needs_a_file():
    rollout, counts = await run_faulty(verify=raise_for(None), writes=None, solution="good")
    assert_zero(rollout, "The verifier works without it")
    assert (counts.verified, counts.solved) == (1 + RETRIES + 2, 1)
    rollout, counts = await run_faulty(verify=raise_for(None), writes=None)
    assert_failed(rollout, "verifier")


async def test_a_verifier_that_returns_no_score_for_the_agents_files_alone_is_a_zero():
    rollout, counts = await run_faulty(
        verify=lambda content: None if content == "evil" else Score.of(0.0), writes="evil"
    )
    assert_zero(rollout, "returned NoneType, not a Score")
    assert counts.verified == 1 + 1


def raise_model_error(retryable: bool) -> Verify:
    def verify(content: str | None) -> Score:
        if content == "evil":
            raise ModelError("the judge refused", retryable=retryable)
        return judge_content(content)

    return verify


async def test_a_judges_server_that_is_down_is_a_failure_and_one_that_refuses_these_files_is_a_zero():
    rollout, counts = await run_faulty(verify=raise_model_error(True), writes="evil")
    assert_failed(rollout, "model")
    assert (counts.acted, counts.verified) == (1, 1 + RETRIES)
    rollout, counts = await run_faulty(verify=raise_model_error(False), writes="evil")
    assert_zero(rollout, "the judge refused")
    assert (counts.acted, counts.verified) == (1, 1 + 1)


@pytest.mark.parametrize("error", [ModelUnusable("no key"), BudgetExhausted("spent")])
async def test_what_stops_the_run_stops_it_in_verify_too(error: Exception):
    def verify(content: str | None) -> Score:
        raise error

    with pytest.raises(type(error)):
        await run_faulty(verify=verify)


@pytest.mark.parametrize("error", [ModelUnusable("no key"), BudgetExhausted("spent")])
async def test_what_stops_the_run_stops_it_in_the_check_of_the_verifier_too(error: Exception):
    def verify(content: str | None) -> Score:
        raise error if content is None else ValueError("the agent's file")

    with pytest.raises(type(error)):
        await run_faulty(verify=verify)


async def test_code_of_the_agent_that_breaks_the_judging_slot_is_a_zero():
    def fail(number: int, operation: str) -> Exception | None:
        return broken(inside="all memory is used") if (number, operation) == (2, "read") else None

    rollout, counts = await run_faulty(fail)
    assert_zero(rollout, "all memory is used")
    assert (counts.acted, counts.verified) == (1, 2)


async def test_in_the_same_slot_a_slot_that_the_world_took_is_run_again_and_one_that_hangs_is_a_zero():
    lost = fail_in("read", broken(outside="the host is gone"))
    rollout, counts = await run_faulty(lost, verify_in="same")
    assert (rollout.score, rollout.provenance.attempt, counts.acted) == (Score.of(1.0), 2, 2)
    hangs = fail_in("read", broken())
    rollout, counts = await run_faulty(hangs, verify_in="same")
    assert_zero(rollout, "the slot ended")
    assert (counts.acted, counts.verified) == (1, 2)


def test_an_answer_that_breaks_a_verifier_without_a_slot_is_a_zero():
    class Numbers(Env, frozen=True):
        name: ClassVar[str] = "numbers"
        sandbox: ClassVar[SandboxSpec | None] = None

        async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
            return Score.of(float(int(rollout.answer or "0") == 7))

    def act(answer: str) -> Rollout:
        return asyncio.run(run_retrying(Job(TASK, Policy(ScriptedModel([answer]))), Runner(Numbers())))

    assert act("7").score == Score.of(1.0)
    assert_zero(act("9" * 5000), "Exceeds the limit")
    assert_zero(act("seven"), "invalid literal")


async def test_without_retries_verify_runs_once():
    class Breaks(Env, frozen=True):
        name: ClassVar[str] = "breaks"
        sandbox: ClassVar[SandboxSpec | None] = None

        async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
            calls.append(rollout.answer)
            raise RuntimeError("always")

    calls: list[str] = []
    runner = Runner(Breaks(), options=RunOptions(retries=0))
    rollout = await run(Job(TASK, Policy(ScriptedModel(["x"]))), runner)
    assert_failed(rollout, "verifier")
    assert calls == ["x", ""], "once for the agent, once without it"


async def test_the_judging_slot_of_a_check_says_what_is_wrong_with_files():
    async def go(fail: Fail) -> None:
        async def create(spec: SandboxSpec) -> Sandbox:
            return MemorySlot(1, fail)  # pyright: ignore[reportReturnType]

        async with make_pool(create) as pool, pool.lease(SandboxSpec()) as box:
            await box.write("f", b"left")
            async with open_judging_slot(TASK, box, Runner(Env(), pool), Limits()) as place:
                assert await place.read("f") == b"left"

    await go(lambda number, operation: None)
    with pytest.raises(FilesUnusable, match="larger than the limit"):
        await go(fail_in("pack", ArchiveTooLarge(WORKSPACE, 5)))


# ---- all at once --------------------------------------------------------------------------------------------------

ERRORS: dict[str, Callable[[], Exception]] = {
    "inside": lambda: broken(inside="all memory is used"),
    "outside": lambda: broken(outside="the connection broke"),
    "unknown": broken,
    "files": lambda: OSError(28, "No space left on device"),
}
FAULTS = st.dictionaries(
    st.tuples(st.integers(1, 8), st.sampled_from(["exec", "write", "settle", "pack", "unpack", "read"])),
    st.sampled_from(sorted(ERRORS)),
    max_size=4,
)


@settings(max_examples=300)
@given(faults=FAULTS, verify_in=st.sampled_from(["fresh", "same"]), content=st.sampled_from(["good", "evil"]))
async def test_whatever_fails_the_agent_acts_again_only_if_the_world_took_its_work(
    faults: dict[tuple[int, str], str], verify_in: Any, content: str
):
    met: list[tuple[int, str, str]] = []

    def fail(number: int, operation: str) -> Exception | None:
        kind = faults.get((number, operation))
        if kind is None:
            return None
        met.append((number, operation, kind))
        return ERRORS[kind]()

    rollout, counts = await run_faulty(fail, raise_for("evil"), writes=content, verify_in=verify_in)
    assert (rollout.score is None) != (rollout.failure is None)
    assert counts.acted <= 1 + RETRIES
    assert counts.verified <= counts.acted * (1 + RETRIES + 1)
    if not met:
        assert (counts.acted, rollout.stop is StopReason.BROKEN) == (1, content == "evil")
    if counts.acted > 1 or rollout.failure is not None:
        assert met, "only a fault of the world leads to a second turn or to an exclusion"
    if content == "evil":
        assert rollout.score is None or rollout.score.value == 0.0
    if all(kind == "outside" for _, _, kind in met) and content == "good":
        assert rollout.score is None or rollout.score.value == 1.0, "what happened outside is never a zero"
