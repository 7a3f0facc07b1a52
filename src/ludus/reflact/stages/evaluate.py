"""Stage 6, and the test at the end: measure skills.

A candidate is measured on the selection split and compared with the current skill. If the current text was not measured
yet (after forced guidance or added notes), it is measured together with the candidate, and becomes the best skill if it
is better. At the end the initial skill, the one that is shipped and the final one are run on the test split, together.

With a rule that may decide early (`ludus.reflact.early_gates`) the candidate is measured block by block, and only until
the decision is clear. The current skill is measured where it has too few rollouts: a partial measure is completed, and
rollouts that the store has are not run again.
"""

from collections.abc import Sequence

from msgspec import UNSET, Struct
from msgspec.structs import replace

from ludus.errors import ConfigError
from ludus.reflact.early_gates import EarlyRule
from ludus.reflact.gate import Contender, Decision, Gate, Measure, Rule, Verdict, beats, compare, judge, mean, score
from ludus.reflact.measure import Trial, make_measure
from ludus.reflact.records import MeasuredSkill, Product, RunState, ScoreBucket, SplitScores
from ludus.reflact.splits import FinishedSkills
from ludus.reflact.stages.race import measure_until_clear
from ludus.reflact.training_run import TrainingRun
from ludus.skill import Skill
from ludus.stats import compute_interval
from ludus.types import Rollout, Task


class Judgement(Struct, frozen=True):
    """The state after the gate. Without a candidate there is no verdict."""

    state: RunState
    verdict: Verdict | None = None
    measure: Measure | None = None


async def evaluate(
    run: TrainingRun, state: RunState, candidate: Skill | None, origin: str, step: int, gate: Gate
) -> Judgement:
    """Measure a candidate and let the gate decide."""
    if candidate is None:
        return Judgement(state)
    rule = run.rule if gate.enabled else judge
    if gate.enabled and (gate.refresh or isinstance(rule, EarlyRule)):
        state, measure = await _measure_early(run, state, candidate, step, gate)
    else:
        state, measure = await _measure_fully(run, state, candidate, gate)
    measured = MeasuredSkill(candidate, origin, step, measure)
    own, current = make_contender(measured), make_contender(state.current)
    verdict = rule(gate, own, current, make_contender(state.best))
    _require_verdict(verdict, rule)
    excluded = measure.failed + (state.current.measure.failed if state.current.measure else 0)
    verdict = replace(verdict, excluded=excluded or UNSET, paired=compare(gate, own, current) or UNSET)
    if verdict.decision.accepted:
        state = replace(state, current=measured, best=measured if verdict.new_best else state.best)
    return Judgement(state, verdict, measure)


async def _measure_fully(run: TrainingRun, state: RunState, candidate: Skill, gate: Gate) -> tuple[RunState, Measure]:
    """The measure of a candidate on all items. A current skill that was not measured is measured beside it."""
    unmeasured = [state.current.skill] if state.current.measure is None and gate.enabled else []
    measure, *current_measure = await measure_on_selection(run, [candidate, *unmeasured], "evaluate")
    for found in current_measure:
        state = set_measure(state, found, gate)
    return state, measure


async def _measure_early(
    run: TrainingRun, state: RunState, candidate: Skill, step: int, gate: Gate
) -> tuple[RunState, Measure]:
    """The measure of a candidate as far as the decision needs it. The current skill's measure is completed."""
    refresh = gate.refresh and state.current.skill != state.initial.skill
    before = state.current.measure
    measure, found = await measure_until_clear(run, candidate, make_contender(state.current), step, gate, refresh)
    state = set_measure(state, found, gate) if before is None else update_measure(state, state.current.skill, found)
    return state, measure


def _require_verdict(verdict: object, rule: Rule) -> None:
    """Raise ConfigError if a rule of the user's own returned something else than a verdict."""
    if not isinstance(verdict, Verdict) or not isinstance(verdict.decision, Decision):  # pyright: ignore[reportUnnecessaryIsInstance]
        name = getattr(rule, "__qualname__", type(rule).__qualname__)
        kind = type(verdict).__name__
        given = f"a Verdict whose decision is {verdict.decision!r}" if isinstance(verdict, Verdict) else kind
        raise ConfigError(
            f"train.gate.rule: {name} returned {given}, not a Verdict with a Decision (ludus.reflact.gate)"
        )


def update_measure(state: RunState, skill: Skill, measure: Measure) -> RunState:
    """Replace the measure of a skill wherever the state has it."""
    held = {name: getattr(state, name) for name in ("initial", "current", "best")}
    return replace(
        state, **{name: replace(it, measure=measure) for name, it in held.items() if it.skill == skill and it.measure}
    )


def set_measure(state: RunState, measure: Measure, gate: Gate) -> RunState:
    """Add the measure of the current skill, and make this skill the best one if it is."""
    current = replace(state.current, measure=measure)
    better = beats(gate, make_contender(current), make_contender(state.best))
    return replace(state, current=current, best=current if better else state.best)


async def measure_on_selection(run: TrainingRun, skills: Sequence[Skill], stage: str) -> list[Measure]:
    """Measure each skill on the selection split."""
    settings = run.settings
    return await run.runner.measure(
        skills, run.selection, stage, seed=settings.seed, replicates=settings.selection_replicates
    )


def compute_score(gate: Gate, measured: MeasuredSkill) -> float | None:
    """The score of a skill by the gate's metric; None if it was not measured."""
    return None if measured.measure is None else score(gate, measured.skill, measured.measure)


def make_contender(measured: MeasuredSkill) -> Contender:
    """A skill as the gate compares it. One that was not measured shares no items with any other."""
    return Contender(measured.skill, measured.measure or Measure(measured.skill.hash))


# ---- the sealed split -----------------------------------------------------------------------------------------------


class TestResult(Struct, frozen=True):
    """A skill on the test split: task by task, and summed up."""

    __test__ = False  # not a class of tests

    measure: Measure
    scores: SplitScores


async def run_test(run: TrainingRun, finished: FinishedSkills) -> dict[Skill, TestResult]:
    """Run the finished skills on the test split, with equal seeds. Only this unseals it."""
    settings = run.settings
    tasks = run.splits.test.unseal(finished)[: settings.test_size or None]
    final = [finished.final] if settings.tests_final else []
    skills = list(dict.fromkeys([finished.initial, finished.best, *final]))
    replicates = range(settings.test_replicates)
    trials = [Trial(skill, task, settings.seed, r) for skill in skills for task in tasks for r in replicates]
    rollouts = await run.runner.run_trials(trials, "test")
    size = len(tasks) * settings.test_replicates
    return {
        skill: summarize_test(skill, tasks, rollouts[number * size : (number + 1) * size])
        for number, skill in enumerate(skills)
    }


def summarize_test(skill: Skill, tasks: Sequence[Task], rollouts: Sequence[Rollout]) -> TestResult:
    """The test result of one skill, overall and by task type."""
    measure = make_measure(skill, rollouts)
    found = {rollout.task.id: rollout.kind for rollout in rollouts if rollout.kind}
    kinds = sorted({found.get(task.id, task.kind) for task in tasks})
    by_kind = {
        kind: make_bucket(measure, [task for task in tasks if found.get(task.id, task.kind) == kind]) for kind in kinds
    }
    scores = SplitScores(make_bucket(measure, tasks), by_kind if len(kinds) > 1 else {}, measure.failed)
    return TestResult(measure, scores)


def make_product(gate: Gate, measured: MeasuredSkill, tested: SplitScores | None, untested: str = "") -> Product:
    """One of the skills at the end of the run, with all its scores. `untested`: why it has no test result, if so."""
    measure = measured.measure or Measure(measured.skill.hash)
    return Product(
        measured.skill,
        measured.origin,
        measured.step,
        compute_score(gate, measured),
        measure.hard,
        measure.soft,
        tested,
        "" if tested else untested,
    )


def make_bucket(measure: Measure, tasks: Sequence[Task]) -> ScoreBucket:
    """The scores of some of the tasks."""
    marks = [measure.marks[task.id] for task in tasks if task.id in measure.marks]
    hard = [mark.hard for mark in marks]
    return ScoreBucket(len(tasks), len(marks), mean(hard), mean([mark.soft for mark in marks]), compute_interval(hard))
