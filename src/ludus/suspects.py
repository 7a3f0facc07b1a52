"""What training does with suspects: rollouts whose verdict the agent may have changed instead of doing the task.

The store keeps a suspect as its verifier scored it, with the evidence (`Score.suspect`). Numbers of a run are shown
with and without suspects. Training sees what `weigh_suspect` makes of them, by the setting `run.suspects`.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from ludus.types import Group, Rollout

SuspectPolicy = Literal["zero", "keep", "drop"]


def is_suspect(rollout: Rollout) -> bool:
    return rollout.score is not None and bool(rollout.score.suspect)


def count_suspects(rollouts: Iterable[Rollout]) -> int:
    """How many of the rollouts that training sees are suspects. One that was dropped has neither score nor failure."""
    return sum(is_suspect(rollout) or (rollout.score is None and rollout.failure is None) for rollout in rollouts)


def weigh_suspect(rollout: Rollout, policy: SuspectPolicy) -> Rollout:
    """The rollout as training sees it. `zero`: a suspect has failed, and its feedback says why. `drop`: it has no
    score. `keep`: it counts as it was scored."""
    score = rollout.score
    if policy == "keep" or score is None or not score.suspect:
        return rollout
    if policy == "drop":
        return msgspec.structs.replace(rollout, score=None)
    why = f"The score {score.value:g} does not count: {'; '.join(score.suspect)}"
    failed = msgspec.structs.replace(
        score,
        value=min(0.0, score.value),  # a penalty stays: a suspect must not gain from being one
        passed=False,
        soft=0.0,
        feedback=f"{why}\n{score.feedback}".rstrip(),
    )
    return msgspec.structs.replace(rollout, score=failed)


def weigh_suspects(group: Group, policy: SuspectPolicy) -> Group:
    """The group as training sees it."""
    if policy == "keep" or not any(map(is_suspect, group.rollouts)):
        return group
    rollouts = tuple(weigh_suspect(rollout, policy) for rollout in group.rollouts)
    return msgspec.structs.replace(group, rollouts=rollouts)


def read_suspect_policy(recorded: Mapping[str, Any]) -> SuspectPolicy:
    """The policy of a run, by its recorded settings. A record leaves it out if it is the default."""
    return recorded.get("run", {}).get("suspects", "zero")


def describe_suspects(count: int, policy: SuspectPolicy) -> str:
    """What training did with suspects, for people; empty if there were none."""
    if not count:
        return ""
    done = {"zero": "counted as 0", "drop": "left out", "keep": "counted as they were scored"}[policy]
    return f"{count} suspect rollout{'' if count == 1 else 's'} {done} (run.suspects {policy})"
