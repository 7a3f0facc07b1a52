"""A race: measure a candidate and the current skill on more and more items, until the gate's decision is clear.

The order of the items and when to stop are the rule's (`ludus.reflact.early_gates`). The items of a block run side by
side. A skill is measured once or several times on an item; each time means `selection_replicates` rollouts with seeds
of their own, and the item's mark is the mean of all of them. Rollouts that the store has are found, not run: so a
partial measure of the current skill is completed, and a resumed run makes the same decision.
"""

from collections.abc import Sequence

from ludus.reflact.early_gates import EarlyRule, split_blocks
from ludus.reflact.gate import Contender, Gate, Measure
from ludus.reflact.measure import Trial, make_measure
from ludus.reflact.training_run import TrainingRun
from ludus.skill import Skill
from ludus.types import Rollout


async def measure_until_clear(
    run: TrainingRun, candidate: Skill, current: Contender, step: int, gate: Gate, refresh: bool
) -> tuple[Measure, Measure]:
    """The measures of the candidate and of the current skill that the decision needs.

    With `refresh`, the current skill is measured once more than the candidate.
    """
    rule = run.rule if isinstance(run.rule, EarlyRule) else _AllAtOnce()
    order = rule.arrange(gate, current.measure, [task.id for task in run.selection], run.settings.seed + step)
    race = _Race(run, candidate, current)
    for times in range(1, rule.count_passes(gate) + 1):
        for block, left in split_blocks(order, len(order) if isinstance(rule, _AllAtOnce) else gate.block):
            await race.measure(block, times, times + refresh)
            if rule.is_clear(gate, race.get_candidate(), race.get_current(), left if times == 1 else ()):
                return race.get_candidate().measure, race.get_current().measure
    return race.get_candidate().measure, race.get_current().measure


class _AllAtOnce(EarlyRule):
    """One look, at all items: for rules that do not decide early."""

    def is_clear(self, gate: Gate, candidate: Contender, current: Contender, left: Sequence[str]) -> bool:
        return True


class _Race:
    """The rollouts of the two skills so far, by item."""

    def __init__(self, run: TrainingRun, candidate: Skill, current: Contender) -> None:
        self._run = run
        self._tasks = {task.id: task for task in run.selection}
        self._candidate = candidate
        self._current = current
        self._own: dict[str, list[Rollout]] = {}
        self._more: dict[str, list[Rollout]] = {}

    async def measure(self, items: Sequence[str], own: int, current: int) -> None:
        """Measure the candidate `own` times, and the current skill `current` times, on each item."""
        wanted = self._run.settings.selection_replicates * current
        lacking = [item for item in items if self._count_known(item) < wanted]
        trials = [
            *self._make_trials(self._candidate, items, own),
            *self._make_trials(self._current.skill, lacking, current),
        ]
        earlier = [rollout for part in (*self._own.values(), *self._more.values()) for rollout in part]
        rollouts = iter(await self._run.runner.run_trials(trials, "evaluate", earlier=earlier))
        for found, part, times in ((self._own, items, own), (self._more, lacking, current)):
            size = self._run.settings.selection_replicates * times
            found |= {item: [next(rollouts) for _ in range(size)] for item in part}

    def _make_trials(self, skill: Skill, items: Sequence[str], times: int) -> list[Trial]:
        settings = self._run.settings
        replicates = range(settings.selection_replicates * times)
        return [Trial(skill, self._tasks[item], settings.seed, r) for item in items for r in replicates]

    def _count_known(self, item: str) -> int:
        mark = self._current.measure.marks.get(item)
        return mark.rollouts if mark else 0

    def get_candidate(self) -> Contender:
        return Contender(self._candidate, _collect(self._candidate, self._own))

    def get_current(self) -> Contender:
        """The current skill, with what was known about it before."""
        known, more = self._current.measure, _collect(self._current.skill, self._more)
        marks = dict(sorted({**known.marks, **more.marks}.items()))
        return Contender(self._current.skill, Measure(known.skill, marks, more.failed if self._more else known.failed))


def _collect(skill: Skill, rollouts: dict[str, list[Rollout]]) -> Measure:
    return make_measure(skill, [rollout for part in rollouts.values() for rollout in part])
