"""The outcomes of a training run by skill and task: everything that the run knows about a text. Pure.

A skill may have been measured in several parts of a run, on some items or with several replicates. The index puts all
of its scored rollouts on the selection split together, so that another gate can be applied without a rollout
(`ludus.reflact.regate`). Rollouts for shipping do not count: only the skills that were candidates there have them. Nor
do canary items, which are other tasks.
"""

from collections.abc import Iterable, Mapping

from ludus.reflact.gate import Measure
from ludus.reflact.measure import make_measure
from ludus.reflact.rollout_origins import Origin
from ludus.skill import Skill
from ludus.types import Rollout


class OutcomeIndex:
    """The rollouts of the selection split by the hash of their skill."""

    def __init__(self, outcomes: Iterable[tuple[str, Rollout]], origins: Mapping[str, Origin]) -> None:
        self._rollouts: dict[str, list[Rollout]] = {}
        for key, rollout in outcomes:
            origin = origins.get(key)
            if origin is not None and origin.split == "selection" and origin.stage not in ("ship", "canary"):
                self._rollouts.setdefault(rollout.provenance.skill, []).append(rollout)

    def get_measure(self, skill: Skill) -> Measure | None:
        """Everything that is known about a skill; None if it was not measured, or not by this version."""
        rollouts = self._rollouts.get(skill.hash)
        return make_measure(skill, rollouts) if rollouts else None
