"""Judge what an agent left: collect its files, verify them in a fresh slot, and find whose fault a failure is.

    settle, collect ──> new slot, setup, copy, verify ──> score
                        └── again after a failure, with the same files: the agent does not act again

A failure after the agent has acted is put before `ludus.causes`. If it is the agent's, the rollout has the score 0 and
the stop reason `broken`, and the score's feedback says why. If it is the world's, `Judge.judge` raises it. Such an
error is not retryable: `verify` was repeated already, and other turns of the agent would be a second chance. There is
one exception. If the world took the slot with the agent's work, there is nothing to judge, and the rollout is retried.

A score that pays is checked: `Env.find_forgery` verifies the same files with controls, in a further slot. A state that
passes what must fail is forged: the score is 0, the stop reason `forged`, and `Score.suspect` has the evidence. If the
environment's own solution fails the same controls, they say nothing about this task, and the score stands. Without a
solution to ask, the score stands too, but it is suspect.

The questions that `causes` asks are answered by trying it in a fresh slot. For the verifier that is `setup` and
`verify` on the task's first state and, if that raises, on the state that the environment's `solve` makes: a `verify`
that raises when the agent wrote no file has no score for the first state, but works.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import msgspec

from ludus.activity import enter_phase
from ludus.causes import Cause, FailureEvidence, Phase, decide_cause, explain_fault
from ludus.env import Env, can_solve, has_controls, make_turns
from ludus.errors import (
    LudusError,
    ModelUnusable,
    RolloutError,
    SandboxError,
    SetupError,
    SlotEvidence,
    VerifierError,
    boundary,
)
from ludus.policy import Limits
from ludus.runner import Runner
from ludus.sandbox import Sandbox
from ludus.sandbox.agent_files import collect_files, copy_files
from ludus.sandbox.file_tree import CollectedFiles
from ludus.sandbox.pool import is_alive
from ludus.types import Rollout, Score, StopReason, Task, Turn

T = TypeVar("T")
_PLAIN_REPLY = "I do not know."
"""What a judge is asked about, to see whether it works. It is not asked about an empty reply."""

KeepFiles = Callable[[CollectedFiles], str]
"""Keeps the files that an agent left, and returns their hash; empty if they are not kept."""


class FilesUnusable(Exception):
    """The files that an agent left cannot be read or copied. The agent made them: this is no failure of a slot."""


@dataclass
class _Attempt:
    """How far one attempt to judge has come."""

    phase: Phase


@dataclass(frozen=True)
class Judge:
    """Judges the rollouts of a run. `verify` is repeated as often after a failure as the run's options say. `keep` is
    called with the files that each agent left."""

    runner: Runner
    limits: Limits
    keep: KeepFiles | None = None

    @property
    def env(self) -> Env:
        return self.runner.env

    async def judge(self, acted: Rollout, box: Sandbox | None) -> Rollout:
        """Score a rollout whose agent has acted in `box`. Ends the agent's processes. Where there is no verdict, its
        files are kept all the same.

        Raises:
            RolloutError: the world failed, and there is no score.
        """
        files: CollectedFiles | None = None
        if box is not None:
            try:
                files = await collect(self.env, box)
            except (FilesUnusable, SandboxError) as error:
                return await self.blame(acted, box, error, Phase.COLLECTING)
        if files is not None and self.keep is not None:
            acted = msgspec.structs.replace(acted, files=self.keep(files))
        if not self.env.scores_rollouts:
            return acted
        return await self.judge_files(acted, box, files)

    async def judge_files(self, acted: Rollout, box: Sandbox | None, files: CollectedFiles | None) -> Rollout:
        """Score a rollout whose agent left these files. None: what it left is in `box`, or it had no slot.

        Raises:
            RolloutError: the world failed, and there is no score.
        """
        own = box if files is None else None  # what the agent left is in its own slot alone
        retries = self.runner.options.retries
        for repeats_left in reversed(range(retries + 1)):
            attempt = _Attempt(Phase.VERIFYING if files is None else Phase.RESTORING)
            try:
                if own is not None and repeats_left < retries:
                    await own.settle()
                return await self._verify_files(acted, box, files, attempt)
            except ModelUnusable:
                raise
            except (FilesUnusable, RolloutError) as error:
                if not (repeats_left and _may_pass(error) and (own is None or is_alive(own))):
                    return await self.blame(acted, box, error, attempt.phase, is_lost=own is not None)
        raise AssertionError("the last repetition returns or raises")

    async def judge_group(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """Score rollouts of one task together, as far as they have not failed. If that fails, all of these have failed:
        the agents have acted, so they are not run again."""
        acted = [rollout for rollout in rollouts if rollout.failure is None]
        if not acted:
            return list(rollouts)
        try:
            scores = await self._verify_group(acted)
        except RolloutError as error:
            error.retryable = False
            failed = {"stop": StopReason.FAILED, "failure": error.as_failure()}
            return [msgspec.structs.replace(each, **failed) if each.failure is None else each for each in rollouts]
        found = iter(scores)
        return [msgspec.structs.replace(each, score=next(found)) if each.failure is None else each for each in rollouts]

    async def blame(
        self,
        acted: Rollout,
        box: Sandbox | None,
        error: FilesUnusable | RolloutError,
        phase: Phase,
        *,
        has_acted: bool = True,
        is_lost: bool = True,
    ) -> Rollout:
        """The rollout with the score 0 if the failure is the agent's. Otherwise raises the error.

        `is_lost`: the agent's work is in its slot alone. If the world broke the slot, the rollout has to be run again.
        """
        slot = error.evidence if isinstance(error, SandboxError) else SlotEvidence()
        evidence = FailureEvidence(
            phase=phase,
            acted=has_acted,
            boundary=error.boundary if isinstance(error, RolloutError) else "files",
            passing=_may_pass(error),
            slot=slot,
        )
        cause = decide_cause(evidence)
        if cause is Cause.ASK_ENGINE:
            cause = decide_cause(msgspec.structs.replace(evidence, engine_works=await self._has_working_engine(box)))
        elif cause is Cause.ASK_VERIFIER:
            works = await self._has_working_verifier(acted, box)
            cause = decide_cause(msgspec.structs.replace(evidence, verifier_works=works))
        if cause is Cause.AGENT:
            turns = acted.turns
            if phase is Phase.ACTING and turns:
                turns = (*turns[:-1], msgspec.structs.replace(turns[-1], stop=StopReason.BROKEN))
            score = Score.of(0.0, explain_fault(evidence, str(error)))
            return msgspec.structs.replace(acted, turns=turns, stop=StopReason.BROKEN, score=score)
        if isinstance(error, FilesUnusable):
            raise SandboxError(str(error), retryable=False) from error
        if phase not in (Phase.PREPARING, Phase.ACTING) and not (is_lost and isinstance(error, SandboxError)):
            error.retryable = False
        raise error

    # ---- one attempt ----------------------------------------------------------------------------------------------

    async def _verify_files(
        self, acted: Rollout, box: Sandbox | None, files: CollectedFiles | None, attempt: _Attempt
    ) -> Rollout:
        if box is None or files is None:
            return _conclude(acted, await self._verify(acted, box))
        async with self._open_fresh(acted.task, box) as fresh:
            attempt.phase = Phase.COPYING
            copied = await copy(files, fresh, self.env, acted.task)
            attempt.phase = Phase.VERIFYING
            acted = msgspec.structs.replace(acted, left_out=copied.left_out)
            judged = _conclude(acted, await self._verify(acted, fresh), copied.suspect)
        if not has_controls(self.env) or judged.score is None or judged.score.value <= 0.0:
            return judged
        return await self._check_forgery(judged, box, files)

    # ---- controls -------------------------------------------------------------------------------------------------

    async def _check_forgery(self, judged: Rollout, box: Sandbox, files: CollectedFiles) -> Rollout:
        """The rollout as it is, or with the score 0 if its verdict does not depend on the tests."""
        evidence = await self._find_forgery(judged, box, files)
        if not evidence or judged.score is None:
            return judged
        is_valid = await self._has_valid_controls(judged, box)
        if is_valid is None:
            suspect = (*judged.score.suspect, *evidence)
            return msgspec.structs.replace(judged, score=msgspec.structs.replace(judged.score, suspect=suspect))
        return _conclude(judged, Score.forged(evidence)) if is_valid else judged

    async def _find_forgery(self, judged: Rollout, box: Sandbox, files: CollectedFiles) -> tuple[str, ...]:
        async with self._open_fresh(judged.task, box) as fresh:
            await copy(files, fresh, self.env, judged.task)
            with boundary(VerifierError, f"{self.env.name}: the controls of task '{judged.task.id}'"):
                finding = self.env.find_forgery(judged, fresh)
                return await _limit_time(finding, self.limits.verify_seconds, "verify_seconds")

    async def _has_valid_controls(self, judged: Rollout, box: Sandbox) -> bool | None:
        """Whether the environment's own solution passes what the agent's result did not; None if there is none."""
        try:
            async with self._open_fresh(judged.task, box) as fresh:
                async with asyncio.timeout(self.limits.rollout_seconds):
                    await self.env.solve(judged.task, fresh)
                files = await collect(self.env, fresh)
            return not await self._find_forgery(judged, box, files) if files is not None else None
        except ModelUnusable:
            raise
        except Exception:  # an environment may raise anything, also if it has no solution for this task
            return None

    async def _verify(self, acted: Rollout, box: Sandbox | None) -> Score:
        with boundary(VerifierError, f"{self.env.name}: verify of task '{acted.task.id}'"):
            judging = self.env.grade(acted, box, self.runner.judges)
            score = await _limit_time(judging, self.limits.verify_seconds, "verify_seconds")
        if not isinstance(score, Score):  # pyright: ignore[reportUnnecessaryIsInstance]  # environments are foreign code
            what = type(score).__name__
            raise VerifierError(f"{self.env.name}: verify returned {what}, not a Score", retryable=False)
        return score

    async def _verify_group(self, acted: Sequence[Rollout]) -> Sequence[Score]:
        what = f"{self.env.name}: verify_group of task '{acted[0].task.id}'"
        with boundary(VerifierError, what):
            scores = await _limit_time(self.env.verify_group(acted), self.limits.verify_seconds, "verify_seconds")
        if len(scores) != len(acted) or not all(isinstance(score, Score) for score in scores):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise VerifierError(f"{what} must return a Score for each of the {len(acted)} rollouts")
        return scores

    @asynccontextmanager
    async def _open_fresh(self, task: Task, box: Sandbox) -> AsyncGenerator[Sandbox, None]:
        """A new slot in place of `box`, set up. If `box` was replaced already, it is one more."""
        assert self.runner.pool is not None
        async with AsyncExitStack() as stack:
            with enter_phase("slot"):
                fresh = await stack.enter_async_context(self.runner.pool.exchange(box))
            await set_up(self.env, task, fresh, self.limits)
            yield fresh

    # ---- questions ------------------------------------------------------------------------------------------------

    async def _has_working_engine(self, box: Sandbox | None) -> bool:
        """Whether the pool makes a new slot that runs a command."""
        if self.runner.pool is None or box is None:
            return False
        try:
            async with self.runner.pool.exchange(box) as fresh:
                return (await fresh.exec("true")).exit_code == 0
        except Exception:  # a backend may raise anything; what it raised first is reported
            return False

    async def _has_working_verifier(self, acted: Rollout, box: Sandbox | None) -> bool:
        """Whether `verify` returns a score for the task's first state, or for its solution."""
        return await self._can_judge(acted, box, solved=False) or (
            can_solve(self.env) and await self._can_judge(acted, box, solved=True)
        )

    async def _can_judge(self, acted: Rollout, box: Sandbox | None, *, solved: bool) -> bool:
        try:
            if box is None:
                return await self._try_verify(acted, None, solved=solved)
            async with self._open_fresh(acted.task, box) as fresh:
                return await self._try_verify(acted, fresh, solved=solved)
        except Exception as error:  # environments and backends may raise anything; what came first is reported
            if isinstance(error, ModelUnusable) or (
                isinstance(error, LudusError) and not isinstance(error, RolloutError)
            ):
                raise  # it stops the run
            return False

    async def _try_verify(self, acted: Rollout, box: Sandbox | None, *, solved: bool) -> bool:
        solution: str | Sequence[Turn] = _PLAIN_REPLY if self.env.graded else ""
        if solved:
            async with asyncio.timeout(self.limits.rollout_seconds):
                solution = await self.env.solve(acted.task, box)
            if box is not None:
                await box.settle()
        turns, stop = make_turns(solution), StopReason.FINISHED
        said = msgspec.structs.replace(acted, turns=turns, stop=stop, exit=None, details=None, left_out=())
        await self._verify(said, box)
        return True


async def set_up(env: Env, task: Task, box: Sandbox, limits: Limits) -> None:
    with boundary(SetupError, f"{env.name}: setup of task '{task.id}'"), enter_phase("setup"):
        await _limit_time(env.setup(task, box), limits.setup_seconds, "setup_seconds")


async def _limit_time(work: Awaitable[T], seconds: float, limit: str) -> T:
    """Await a step of an environment. `limit`: the name of its time limit, for the error."""
    clock = asyncio.timeout(seconds)
    try:
        async with clock:
            return await work
    except TimeoutError:
        if not clock.expired():
            raise  # it is the environment's own
        raise TimeoutError(f"not done within {seconds:g} s (limits.{limit})") from None


async def collect(env: Env, box: Sandbox) -> CollectedFiles | None:
    """End the agent's processes and read its files. None if the environment verifies in the agent's own slot.

    Raises:
        FilesUnusable: they cannot be read, or are too large.
        SandboxError: the slot is gone.
    """
    await box.settle()
    if env.verify_in == "same":
        return None
    try:
        return await collect_files(box)
    except (OSError, ValueError) as error:
        raise _describe_unusable(error, "read") from error


def _conclude(acted: Rollout, score: Score, suspect: tuple[str, ...] = ()) -> Rollout:
    """The rollout with its score. Evidence that the agent changed the verdict itself makes it forged. What it only may
    have changed (`suspect`) is of interest where the score pays."""
    if score.suspect and score.value == 0.0:
        return msgspec.structs.replace(acted, stop=StopReason.FORGED, score=score)
    if suspect and score.value > 0.0:
        score = msgspec.structs.replace(score, suspect=(*score.suspect, *suspect))
    return msgspec.structs.replace(acted, score=score)


class CopiedFiles(NamedTuple):
    """What became of an agent's files in a fresh slot."""

    left_out: tuple[str, ...]
    suspect: tuple[str, ...]
    """What was copied although it may change the verdict."""


async def copy(files: CollectedFiles, fresh: Sandbox, env: Env, task: Task) -> CopiedFiles:
    """Write the agent's files into a slot that was set up.

    Raises:
        FilesUnusable: they cannot be written, or are too large.
        SandboxError: the slot is gone.
    """
    try:
        protection = await env.protect(task, files, fresh)
        return CopiedFiles(await copy_files(files, fresh, protection, env.hidden), protection.suspect)
    except (OSError, ValueError) as error:
        raise _describe_unusable(error, "copied into a fresh slot") from error


@asynccontextmanager
async def open_judging_slot(task: Task, box: Sandbox, runner: Runner, limits: Limits) -> AsyncGenerator[Sandbox, None]:
    """The slot where `verify` runs after an agent has acted in `box`: a fresh one with the agent's files, or the same.

    Raises:
        FilesUnusable: the files cannot be read or copied.
    """
    env = runner.env
    files = await collect(env, box)
    if files is None:
        yield box
        return
    assert runner.pool is not None
    async with runner.pool.exchange(box) as fresh:
        await set_up(env, task, fresh, limits)
        await copy(files, fresh, env, task)
        yield fresh


def _describe_unusable(error: OSError | ValueError, what: str) -> Exception:
    if isinstance(error, TimeoutError | ConnectionError):  # the backend's trouble, not an answer of the slot
        outside = "the connection broke" if isinstance(error, ConnectionError) else ""
        return SandboxError(f"the agent's files could not be {what}: {error}", evidence=SlotEvidence(outside=outside))
    words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return FilesUnusable(f"the files left behind cannot be {what}: {words}")


def _may_pass(error: Exception) -> bool:
    """Whether another attempt could succeed, as far as the error says."""
    if isinstance(error, SandboxError) and error.evidence.inside:
        return False
    return not isinstance(error, RolloutError) or error.retryable
