"""What an RL run takes, before it starts: tokens, time and money.

What one rollout takes comes from the latest RL run in the same folder with the same environment and policy. Without
one, its tokens are counted as far as they are known (the first prompt, and the longest reply for each turn), and its
time is not known: it depends on the machine, and the first steps of a run show it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from ludus.errors import LudusError
from ludus.run_info import read_spent

_MOST_RUNS = 20
"""How many runs are looked at, the latest first."""


class RolloutCost(Struct, frozen=True):
    """What one rollout takes."""

    prompt_tokens: float
    completion_tokens: float
    seconds: float | None = None
    """Of the whole run, with its updates, by its rollouts; None: not known."""
    source: str = ""
    """The run that it was measured in; empty: it is assumed."""


class RlCost(Struct, frozen=True, kw_only=True):
    """What a run takes."""

    rollouts: int
    prompt_tokens: int
    completion_tokens: int
    update_tokens: int
    """Tokens of the rollouts of one update, if all of them are learned from."""
    seconds: float | None
    dollars: float | None
    """None: no price was given, or the time that it is for is not known."""
    is_part: bool = False
    """Whether there is a price for time, and the time is not known."""
    each: RolloutCost


def estimate_cost(
    rollouts: Mapping[str, int], per_update: int, each: RolloutCost, per_hour: float | None, per_million: float | None
) -> RlCost:
    """The cost of a run with so many rollouts. Prices are in dollars for an hour of the machine, and for a million
    tokens."""
    total = sum(rollouts.values())
    prompt, completion = round(total * each.prompt_tokens), round(total * each.completion_tokens)
    seconds = None if each.seconds is None else total * each.seconds
    hourly = None if per_hour is None or seconds is None else per_hour * seconds / 3600
    by_tokens = None if per_million is None else per_million * (prompt + completion) / 1e6
    known = [part for part in (hourly, by_tokens) if part is not None]
    return RlCost(
        rollouts=total,
        prompt_tokens=prompt,
        completion_tokens=completion,
        update_tokens=round(per_update * (each.prompt_tokens + each.completion_tokens)),
        seconds=seconds,
        dollars=sum(known) if known else None,
        is_part=per_hour is not None and seconds is None,
        each=each,
    )


class _SummaryFile(Struct, frozen=True):
    """The part of `summary.json` that is used here."""

    rollouts: int
    evaluated: int
    seconds: float


def find_rollout_cost(folder: Path, config: Mapping[str, Any]) -> RolloutCost | None:
    """What a rollout took in the latest RL run in a folder with the same environment and policy; None if there is
    none."""
    files = sorted(folder.glob("*/summary.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in files[:_MOST_RUNS]:
        try:
            if found := _read_cost(path.parent, config):
                return found
        except (OSError, ValueError, RecursionError, LudusError):  # not a run of this kind, or not whole
            continue
    return None


def _read_cost(run: Path, config: Mapping[str, Any]) -> RolloutCost | None:
    other = msgspec.json.decode((run / "config.json").read_bytes(), type=dict[str, Any])
    summary = msgspec.json.decode((run / "summary.json").read_bytes(), type=_SummaryFile)
    spent = read_spent(run).get("agent")
    rollouts = summary.rollouts + summary.evaluated
    if _list_policy(other) != _list_policy(config) or spent is None or not rollouts:
        return None
    usage = spent.usage
    seconds = summary.seconds / rollouts
    return RolloutCost(usage.prompt_tokens / rollouts, usage.completion_tokens / rollouts, seconds, str(run))


def _list_policy(config: Mapping[str, Any]) -> tuple[Any, ...]:
    """What decides the cost of a rollout most."""
    trainer = config.get("trainer", {})
    weights = [trainer.get(name) for name in ("type", "weights", "base_model", "vllm", "lora_rank")]
    return config["env"].get("name"), config.get("agent", {}).get("harness"), *weights
