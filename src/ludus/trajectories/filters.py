"""Which trajectories are left out of the shards, and for what reason. Pure functions.

A failed rollout has no trajectory and is never written. The other filters are chosen by `batch.drop`. A trajectory is
counted under the first filter, in the order of `FILTERS`, that does not want it.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping

from ludus.batch_settings import BatchSettings, FilterName
from ludus.chat_form import decode_arguments
from ludus.encoding import to_json
from ludus.types import Call, Message, Rollout, StopReason

FAILED = "failed"
"""The reason of a rollout that the world broke."""
ENDED = (StopReason.FINISHED, StopReason.SUBMITTED)
"""How a trajectory ends that is whole."""
_THINKING = re.compile(r"<think(?:ing)?>\s*[^\s<]|<REASONING_SCRATCHPAD>\s*[^\s<]")


def has_reasoning(message: Message) -> bool:
    """Whether a reply has thinking, in a field of its own or in tags."""
    if message.reasoning is not None and message.reasoning.text.strip():
        return True
    return _THINKING.search(message.content) is not None


def is_valid_call(call: Call, offered: Collection[str]) -> bool:
    """Whether a call is of a tool that was offered, with an object as its arguments. Nothing at all is an empty one."""
    return call.name in offered and (not call.arguments.strip() or decode_arguments(call.arguments) is not None)


def _lacks_reasoning(rollout: Rollout, settings: BatchSettings) -> bool:
    return not any(has_reasoning(turn.completion.message) for turn in rollout.turns)


def _has_invalid_call(rollout: Rollout, settings: BatchSettings) -> bool:
    offered = frozenset(rollout.provenance.tools)
    return any(not is_valid_call(call, offered) for turn in rollout.turns for call in turn.completion.message.calls)


def _is_unfinished(rollout: Rollout, settings: BatchSettings) -> bool:
    return rollout.stop not in ENDED


def _is_short(rollout: Rollout, settings: BatchSettings) -> bool:
    return len(rollout.turns) < settings.min_turns


def _fails_check(rollout: Rollout, settings: BatchSettings) -> bool:
    return rollout.score is not None and not rollout.score.passed


FILTERS: Mapping[FilterName, Callable[[Rollout, BatchSettings], bool]] = {
    "failed-check": _fails_check,
    "unfinished": _is_unfinished,
    "short": _is_short,
    "no-reasoning": _lacks_reasoning,
    "invalid-calls": _has_invalid_call,
}
"""Those that look at one trajectory, by name. `duplicates` comes last: it needs those before."""


class TrajectoryFilter:
    """Chooses trajectories one after the other, and counts those that are left out."""

    def __init__(self, settings: BatchSettings) -> None:
        self._settings = settings
        self._seen: set[bytes] = set()
        self.dropped: Counter[str] = Counter()
        """By the filter."""

    def admit(self, rollout: Rollout) -> bool:
        reason = self.find_reason(rollout)
        if reason:
            self.dropped[reason] += 1
        return not reason

    def find_reason(self, rollout: Rollout) -> str:
        """Why a trajectory is left out; empty if it is not."""
        if rollout.failure is not None:
            return FAILED
        chosen = self._settings.drop
        for name, is_unwanted in FILTERS.items():
            if name in chosen and is_unwanted(rollout, self._settings):
                return name
        return "duplicates" if "duplicates" in chosen and self._is_repeated(rollout) else ""

    def _is_repeated(self, rollout: Rollout) -> bool:
        digest = hashlib.sha256(to_json(rollout.messages)).digest()[:16]
        is_repeated = digest in self._seen
        self._seen.add(digest)
        return is_repeated
