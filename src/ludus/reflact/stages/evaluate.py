"""Stage 6, and the last stage: what a text is worth.

A candidate is measured on the selection split and judged against the current skill. If the current text was not
measured yet (guidance that was forced, notes that were added) it is measured beside the candidate, and takes the best
skill's place if it is better. At the end the initial, the best and the final skill are run on the test split, together.
"""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from ludus.reflact.gate import Gate, Judged, Measure, Verdict, beats, judge, mean, score
from ludus.reflact.lab import Trial, measured
from ludus.reflact.records import Bucket, Held, Product, RunState, Tested
from ludus.reflact.splits import Finished
from ludus.reflact.training_run import Run
from ludus.skill import Skill
from ludus.stats import interval
from ludus.types import Rollout, Task


class Judgement(Struct, frozen=True):
    """The state after the gate; no verdict if there was no candidate."""

    state: RunState
    verdict: Verdict | None = None
    measure: Measure | None = None


async def evaluate(run: Run, state: RunState, candidate: Skill | None, origin: str, step: int, gate: Gate) -> Judgement:
    """Measure a candidate, and let the gate decide."""
    if candidate is None:
        return Judgement(state)
    beside = [state.current.skill] if state.current.measure is None and gate.enabled else []
    measure, *late = await measure_on_selection(run, [candidate, *beside], "evaluate")
    for its in late:
        state = with_measure(state, its, gate)
    held = Held(candidate, origin, step, measure)
    verdict = judge(gate, _judged(held), _judged(state.current), _judged(state.best))
    if verdict.decision.accepted:
        state = replace(state, current=held, best=held if verdict.new_best else state.best)
    return Judgement(state, verdict, measure)


async def measured_current(run: Run, state: RunState) -> RunState:
    """The state with its current skill measured, and promoted if it is the best."""
    if state.current.measure is not None:
        return state
    (measure,) = await measure_on_selection(run, [state.current.skill], "validate")
    return with_measure(state, measure, run.settings.gate)


def with_measure(state: RunState, measure: Measure, gate: Gate) -> RunState:
    current = replace(state.current, measure=measure)
    better = beats(gate, _judged(current), _judged(state.best))
    return replace(state, current=current, best=current if better else state.best)


async def measure_on_selection(run: Run, skills: Sequence[Skill], stage: str) -> list[Measure]:
    """What the selection split says of each of the skills."""
    settings = run.settings
    return await run.lab.measure(
        skills, run.selection, stage, seed=settings.seed, replicates=settings.selection_replicates
    )


def score_of(gate: Gate, held: Held) -> float | None:
    """A skill's score as the gate has it; None if it was not measured."""
    return None if held.measure is None else score(gate, held.skill, held.measure)


def _judged(held: Held) -> Judged:
    """A text that was not measured has no items in common with any."""
    return held.skill, held.measure or Measure(held.skill.hash)


# ---- the sealed split ---------------------------------------------------------------------------------------------


async def test(run: Run, finished: Finished) -> dict[Skill, Tested]:
    """Each of the skills on the test split, which is opened here."""
    settings = run.settings
    tasks = run.splits.test.unseal(finished)[: settings.test_size or None]
    skills = list(dict.fromkeys([finished.initial, finished.best, finished.final]))
    replicates = range(settings.test_replicates)
    trials = [Trial(skill, task, settings.seed, r) for skill in skills for task in tasks for r in replicates]
    rollouts = await run.lab.roll(trials, "test")
    size = len(tasks) * settings.test_replicates
    return {
        skill: tested(skill, tasks, rollouts[number * size : (number + 1) * size])
        for number, skill in enumerate(skills)
    }


def tested(skill: Skill, tasks: Sequence[Task], rollouts: Sequence[Rollout]) -> Tested:
    """The test of one skill, overall and by task type."""
    measure = measured(skill, rollouts)
    kinds = sorted({task.kind for task in tasks})
    by_kind = {kind: bucket(measure, [task for task in tasks if task.kind == kind]) for kind in kinds}
    return Tested(bucket(measure, tasks), by_kind if len(kinds) > 1 else {}, measure.failed)


def product(gate: Gate, held: Held, tested: Tested | None) -> Product:
    """A skill that the run ends with, and everything that was measured of it."""
    measure = held.measure or Measure(held.skill.hash)
    return Product(held.skill, held.origin, held.step, score_of(gate, held), measure.hard, measure.soft, tested)


def bucket(measure: Measure, tasks: Sequence[Task]) -> Bucket:
    marks = [measure.marks[task.id] for task in tasks if task.id in measure.marks]
    hard = [mark.hard for mark in marks]
    return Bucket(len(tasks), len(marks), mean(hard), mean([mark.soft for mark in marks]), interval(hard))
