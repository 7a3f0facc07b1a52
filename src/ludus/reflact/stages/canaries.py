"""Canary items at the end of a run: does the skill to be shipped pass what no honest answer passes?

See `ludus.reflact.guards`. The skill and the initial skill run on the same items. If only the new skill passes some of
them, it games the verifier, and it is not shipped.
"""

from ludus.reflact.guards import CanaryReport, make_canaries
from ludus.reflact.measure import Trial, make_measure
from ludus.reflact.training_run import TrainingRun
from ludus.skill import Skill


async def watch_canaries(run: TrainingRun, initial: Skill, shipped: Skill) -> CanaryReport | None:
    """Run both skills on canary items; None if the run has none, or if the initial skill is shipped anyway."""
    settings = run.settings
    canaries = make_canaries(run.selection, settings.guards.canaries, settings.seed)
    if not canaries or shipped == initial:
        return None
    trials = [Trial(skill, task, settings.seed) for skill in (initial, shipped) for task in canaries]
    rollouts = await run.runner.run_trials(trials, "canary")
    before = make_measure(initial, rollouts[: len(canaries)]).marks
    after = make_measure(shipped, rollouts[len(canaries) :]).marks
    shared = before.keys() & after.keys()
    passed = [sum(marks[item].hard > 0 for item in shared) for marks in (before, after)]
    return CanaryReport(len(shared), *passed)
