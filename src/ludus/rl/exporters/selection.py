"""Which rollouts are exported for fine-tuning, and why others are not.

    all rollouts ──> have a score? ──> good enough? ──> no duplicate? ──> among the best of their group? ──> rows

Everything that is left out is counted by its reason, so that an export of nothing says why.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from ludus.encoding import to_json
from ludus.suspects import SuspectPolicy, is_suspect, weigh_suspect
from ludus.types import Group, Rollout

Duplicates = Literal["keep", "drop"]


class ExportRules(Struct, frozen=True, kw_only=True):
    """Which rollouts a model should imitate."""

    threshold: float | None = None
    """The lowest score; None: those that passed."""
    best: int | None = None
    """At most this many of each group, those with the highest scores; None: all."""
    duplicates: Duplicates = "keep"
    """Whether a conversation that is equal to an earlier one is exported again."""
    suspects: SuspectPolicy = "zero"
    unjudged: bool = False
    """Whether rollouts that nothing judges are exported, too: those of a run without a checker."""


class RolloutSelection:
    """Chooses rollouts, group after group, and counts those that are left out."""

    def __init__(self, rules: ExportRules) -> None:
        self._rules = rules
        self._seen: set[bytes] = set()
        self.rollouts = 0
        self.left_out: Counter[str] = Counter()

    def choose(self, group: Group) -> list[Rollout]:
        """The rollouts of a group to export, in their order."""
        self.rollouts += len(group.rollouts)
        good = [rollout for rollout in group.rollouts if self._admit(self._judge(rollout))]
        new = [rollout for rollout in good if self._admit(self._find_duplicate(rollout))]
        if self._rules.best is None:
            return new
        best = _pick_best(new, self._rules.best)
        self.left_out[f"not among the {self._rules.best} best"] += len(new) - len(best)
        return best

    def _admit(self, reason: str) -> bool:
        self.left_out[reason] += bool(reason)
        return not reason

    def _judge(self, rollout: Rollout) -> str:
        """Why a rollout is not good enough; empty if it is."""
        if self._rules.unjudged and self._rules.threshold is None and rollout.score is None and not rollout.failure:
            return ""
        if reason := explain_missing_score(rollout):
            return reason
        rules = self._rules
        score = weigh_suspect(rollout, rules.suspects).score
        good = score is not None and (score.passed if rules.threshold is None else score.value >= rules.threshold)
        if good:
            return ""
        if is_suspect(rollout) and rules.suspects != "keep":
            return "suspect"
        return "did not pass" if rules.threshold is None else f"below {rules.threshold:g}"

    def _find_duplicate(self, rollout: Rollout) -> str:
        if self._rules.duplicates == "keep":
            return ""
        said = to_json(rollout.messages)
        if said in self._seen:
            return "duplicate"
        self._seen.add(said)
        return ""


def explain_missing_score(rollout: Rollout) -> str:
    """Why a rollout has no score; empty if it has one."""
    if rollout.failure is not None:
        return f"failed ({rollout.failure.boundary})"
    return "" if rollout.score is not None else "without a score"


def _pick_best(rollouts: Sequence[Rollout], most: int) -> list[Rollout]:
    """Those with the highest scores, and the first of equals, in their order. Those that nothing judges are equal."""
    ranked = sorted(range(len(rollouts)), key=lambda place: -_get_value(rollouts[place]))
    return [rollouts[place] for place in sorted(ranked[:most])]


def _get_value(rollout: Rollout) -> float:
    return rollout.score.value if rollout.score is not None else 0.0


def describe_selection(rows: int, rollouts: int, left_out: Counter[str]) -> str:
    """How many rows there are, and why there are not more, in a line."""
    reasons = ", ".join(f"{count} {reason}" for reason, count in left_out.most_common() if count)
    if not rollouts:
        return "nothing to export: the run has no rollouts that could be exported"
    start = f"{rows} rows of {rollouts} rollouts" if rows else f"nothing to export of {rollouts} rollouts"
    return f"{start}; left out: {reasons}" if reasons else start
