"""Measure skills: run them on tasks, and turn the rollouts into measures.

`SkillRunner` runs every rollout through `ludus.engine.run_stored`. The content address covers the environment, the
task, the replicate, the seed and the policy with the skill. So a rollout that was run once is always found again, and a
score is found only for exactly the text that it was measured at. A rollout that failed is run again, then left out of
the measure and counted; it is never a zero. A suspect counts as `run.suspects` says. If most of them fail, `Outage`
stops the run: all finished work is kept, and resuming runs the failed ones again.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from msgspec import UNSET

from ludus.engine import derive_seed, list_addresses, run_stored
from ludus.errors import TRACEBACK, LudusError
from ludus.policy import Policy
from ludus.reflact.gate import Gate, Mark, Measure, ScoreTally, mean, project, resolve_metric
from ludus.reflact.journal import Journal
from ludus.reflact.rollout_origins import record_stage
from ludus.runner import Job, Runner
from ludus.skill import Skill
from ludus.suspects import count_suspects
from ludus.types import Failure, Rollout, Task

OnRollout = Callable[[int, Rollout], None]
"""Called with the index of a trial and its rollout."""

MIN_FAILURES = 3
"""The minimum number of failures for an outage."""


class Outage(LudusError):
    """Most rollouts of a measurement failed. Fix the cause, then resume."""


class Stopped(LudusError):
    """The run was asked to stop, and has finished the rollouts that were running."""


class Trial(NamedTuple):
    """One rollout of a skill on a task. Equal seeds make a fair comparison of two skills."""

    skill: Skill
    task: Task
    seed: int
    replicate: int = 0


@dataclass(frozen=True)
class SkillRunner:
    """Runs skills on tasks: the rollouts of one policy with changing skills."""

    runner: Runner
    policy: Policy
    journal: Journal
    max_failed: float = 0.5

    async def run_trials(
        self,
        trials: Sequence[Trial],
        stage: str,
        on_rollout: OnRollout | None = None,
        earlier: Sequence[Rollout] = (),
    ) -> list[Rollout]:
        """The rollouts of the trials, in their order. `on_rollout` is called with each when it ends or is found.

        `earlier` are rollouts of the same measurement. They count when the share of failures is computed.
        """
        skills = dict.fromkeys(trial.skill for trial in trials)
        policy = self.policy
        if policy.agent is not None:
            policy = dataclasses.replace(policy, agent=policy.agent.use_stage(stage))
        policies = {skill: policy.use_skill(skill) for skill in skills}
        jobs = [make_job(trial.task, policies[trial.skill], trial.seed, trial.replicate) for trial in trials]
        keys = list_addresses(jobs, self.runner.env)
        places: dict[str, list[int]] = {}
        for index, key in enumerate(keys):
            places.setdefault(key, []).append(index)
        done: dict[str, Rollout] = {}

        def on_outcome(key: str, rollout: Rollout) -> None:
            done[key] = rollout
            self.journal.book_outcome(key, stage, rollout.usage, count_suspects([rollout]))
            for index in places[key]:
                if on_rollout is not None:
                    on_rollout(index, rollout)
            self.journal.report_progress(stage, len(done), len(places))

        record_stage(self.runner.store, stage, places)
        # With read_back: the optimizer must see the same text now and after a resume.
        await run_stored(dict(zip(keys, jobs, strict=True)), self.runner, on_outcome=on_outcome)
        if len(done) < len(places):
            raise Stopped("the run was asked to stop")
        measured = [*earlier, *done.values()]
        failures = [rollout.failure for rollout in measured if rollout.failure is not None]
        check_outage(failures, len(measured), stage, self.max_failed)
        if warning := warn_of_unloaded(stage, list(done.values())):
            self.journal.warn(warning)
        return [done[key] for key in keys]

    def check_stop(self) -> None:
        """Raises `Stopped` if the run was asked to."""
        if self.runner.options.is_stopping:
            raise Stopped("the run was asked to stop")

    async def measure(
        self, skills: Sequence[Skill], tasks: Sequence[Task], stage: str, *, seed: int, replicates: int = 1
    ) -> list[Measure]:
        """A measure of each skill on the tasks. The skills run side by side."""
        trials = [Trial(skill, task, seed, r) for skill in skills for task in tasks for r in range(replicates)]
        rollouts = await self.run_trials(trials, stage)
        size = len(tasks) * replicates
        return [
            make_measure(skill, rollouts[number * size : (number + 1) * size]) for number, skill in enumerate(skills)
        ]


def warn_of_unloaded(stage: str, rollouts: Sequence[Rollout]) -> str:
    """A warning that no rollout has loaded the skill that lay in its slot; empty if one has, or if that is not known.
    Then the scores say nothing about the skill's text: what has to change is its description."""
    uses = [rollout.skill_use for rollout in rollouts if rollout.skill_use is not None]
    if not uses or any(use.loaded is not False for use in uses):
        return ""
    return (
        f"{stage}: none of {len(uses)} rollouts loaded the skill, so their scores say nothing about its text. Agents "
        "choose a skill by its description: improve that, or use agent.skill_as file"
    )


def make_measure(skill: Skill, rollouts: Sequence[Rollout]) -> Measure:
    """Make the measure of a skill from its rollouts: one mark for each task with a scored rollout."""
    by_task: dict[str, list[Mark]] = {}
    for rollout in rollouts:
        if rollout.score is not None:
            by_task.setdefault(rollout.task.id, []).append(Mark(float(rollout.score.passed), rollout.score.soft))
    marks = {task: _average(marks) for task, marks in sorted(by_task.items())}
    return Measure(skill.hash, marks, sum(rollout.score is None for rollout in rollouts))


def _average(marks: Sequence[Mark]) -> Mark:
    hard, soft = mean([mark.hard for mark in marks]), mean([mark.soft for mark in marks])
    return Mark(hard or 0.0, soft or 0.0, len(marks) if len(marks) > 1 else UNSET)


def merge_measures(one: Measure, other: Measure) -> Measure:
    """The measure of both together: replicates of one text, run at different times."""
    if one.skill != other.skill:
        raise ValueError("measures of different texts cannot be merged")
    marks = dict(one.marks)
    for task, mark in other.marks.items():
        marks[task] = marks[task].merge(mark) if task in marks else mark
    return Measure(one.skill, dict(sorted(marks.items())), one.failed + other.failed)


def is_success(rollout: Rollout, success_at: float | None) -> bool:
    """Whether analysts and comparisons count a rollout as a success."""
    score = rollout.score
    return score is not None and (score.passed if success_at is None else score.soft >= success_at)


_NEARLY = 0.9
"""The share of the best score so far that counts as a success where no rollout ever passes."""


def choose_success_at(success_at: float | None, gate: Gate, tally: ScoreTally) -> float | None:
    """From which score on analysts count a rollout as a success; None: if it passed.

    A judge that never gives the full score would make every rollout a failure, and analysts would have to name what
    spoiled the best ones. So if no rollout has passed so far, those nearly as good as the best one are successes,
    unless all are alike.
    """
    bar = _NEARLY * tally.highest
    if success_at is not None or tally.passed or tally.lowest >= bar or resolve_metric(gate, tally).metric == "hard":
        return success_at
    return bar


def tally_scores(tally: ScoreTally, rollouts: Iterable[Rollout]) -> ScoreTally:
    """Count the scores of these rollouts, and those of them that are between fail and pass."""
    return tally.add((rollout.score.passed, rollout.score.soft) for rollout in rollouts if rollout.score is not None)


def read_graded_score(rollout: Rollout, gate: Gate) -> float | None:
    """The score by the gate's metric, if that says more than whether the rollout passed. `auto` uses what there is."""
    score = rollout.score
    if score is None or gate.metric == "hard" or score.soft == float(score.passed):
        return None
    graded = score.soft if gate.metric == "auto" else project(gate, float(score.passed), score.soft)
    return min(1.0, max(0.0, graded))


def make_job(task: Task, policy: Policy, seed: int, replicate: int) -> Job:
    """A rollout of a task. Jobs with equal tasks, seeds and replicates have the same seed, whatever their policies."""
    return Job(task, policy, replicate, derive_seed(seed, task.id, replicate))


def _describe_failure(failure: Failure) -> str:
    """A failure in one line: without the traceback of a bug."""
    return f"{failure.boundary}: {failure.message.partition(TRACEBACK)[0]}"


def check_outage(failures: Sequence[Failure], rollouts: int, stage: str, max_failed: float) -> None:
    """Raise `Outage` if too many rollouts of a measurement have failed."""
    if len(failures) < MIN_FAILURES or len(failures) <= max_failed * rollouts:
        return
    (why, times), *_ = Counter(map(_describe_failure, failures)).most_common(1)
    often = f"Most often ({times} times)" if times > 1 else "For example"
    raise Outage(
        f"{stage}: {len(failures)} of {rollouts} rollouts failed, so they say nothing about the skill. "
        f"{often}: {why}. Fix this and resume; all finished work is kept"
    )
