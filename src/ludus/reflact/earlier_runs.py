"""The tokens per call of an earlier run, for estimates.

The runs in one folder are searched, the latest first, for one with the same environment and the same agent. Only its
`config.json`, `steps.jsonl` and `summary.json` are read. The optimizer's calls are used only if the optimizer and the
batch sizes are the same too. A run that cannot be read is skipped.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
from msgspec import Struct

from ludus.reflact.records import BatchReport, StageCost, add_costs, pool_scores
from ludus.reflact.report.run_files import STEPS, SUMMARY
from ludus.store import CONFIG
from ludus.types import Usage

_MAX_RUNS = 50
"""The largest number of runs to look at."""
_SIZES = ("update_mode", "batch_size", "minibatch_size", "merge_batch_size", "trajectory_tokens")

ConfigRecord = Mapping[str, Any]
"""The recorded settings of a run."""


class StepPace(Struct, frozen=True):
    """The mean seconds of a step."""

    batch: float
    """Its rollouts."""
    rollout: float
    reflect: float


class EarlierRun(Struct, frozen=True):
    """The measured usage of an earlier run."""

    run: str = ""
    """The run directory; empty if there is no earlier run."""
    spent: tuple[StageCost, ...] = ()
    failing: float | None = None
    """The share of its train rollouts that failed."""
    pace: "StepPace | None" = None
    """How long its steps took, with the recipe `ledger`; None if that is not known."""

    def estimate_seconds(self, steps: int, batch: int, concurrency: int) -> float | None:
        """How long the steps of training take, with this many tasks each; None if it is not known."""
        if self.pace is None:
            return None
        rounds = math.ceil(batch / concurrency) / math.ceil(self.pace.batch / concurrency)
        return steps * (self.pace.rollout * rounds + self.pace.reflect)

    def average_usage(self, role: str, stage: str) -> Usage | None:
        """The mean usage of one call; None if it is not known. A rollout takes about the same in every stage."""
        own = [entry for entry in self.spent if entry.role == role and (entry.stage == stage or role == "agent")]
        exact = [entry for entry in own if entry.stage == stage] or own
        calls = sum(entry.calls for entry in exact)
        if not calls:
            return None
        usage = sum((entry.usage for entry in exact), Usage())
        return Usage(usage.prompt_tokens // calls, usage.completion_tokens // calls, usage.cached_tokens // calls)


class _StepLine(Struct, frozen=True):
    """The fields of a line of `steps.jsonl` that are used here."""

    spent: tuple[StageCost, ...] = ()
    batches: tuple[BatchReport, ...] = ()


_LINE = msgspec.json.Decoder(_StepLine)


def find_earlier_run(folder: Path, config: ConfigRecord) -> EarlierRun:
    """The latest run in a folder with the same environment and agent."""
    files = [path for path in folder.glob(f"*/{STEPS}") if path.is_file()]
    for path in sorted(files, key=lambda path: path.stat().st_mtime, reverse=True)[:_MAX_RUNS]:
        try:
            found = _read_run(path.parent, config)
        except (OSError, ValueError, RecursionError):  # msgspec's errors are ValueErrors
            continue
        if found.spent:
            return found
    return EarlierRun()


def _read_run(run: Path, config: ConfigRecord) -> EarlierRun:
    other = msgspec.json.decode((run / CONFIG).read_bytes(), type=dict[str, Any])
    roles = [
        role for role, same in (("agent", _has_same_agent), ("optimizer", _has_same_optimizer)) if same(config, other)
    ]
    if "agent" not in roles:
        return EarlierRun()
    lines = list(_read_lines((run / STEPS).read_bytes()))
    _, hard, _ = pool_scores([batch for line in lines for batch in line.batches])
    spent = add_costs(*(line.spent for line in lines))
    kept = tuple(entry for entry in spent if entry.role in roles and entry.usage.tokens)
    return EarlierRun(str(run), kept, None if hard is None else 1.0 - hard, _read_pace(run, lines))


class _Times(Struct, frozen=True):
    """The part of `summary.json` that says how long the stages took."""

    steps: int = 0
    seconds: Mapping[str, float] = {}


def _read_pace(run: Path, lines: Sequence[_StepLine]) -> StepPace | None:
    """How long the steps of a finished run with the recipe `ledger` took."""
    batches = [sum(each.tasks for each in line.batches) for line in lines if line.batches]
    path = run / SUMMARY
    times = msgspec.json.decode(path.read_bytes(), type=_Times) if path.exists() else _Times()
    if not batches or not times.steps or not {"draw", "rollout", "reflect"} <= times.seconds.keys():
        return None
    return StepPace(fmean(batches), *(times.seconds[stage] / times.steps for stage in ("rollout", "reflect")))


def _read_lines(data: bytes) -> Iterable[_StepLine]:
    """All complete lines. The run may still be writing the last one."""
    for line in data.splitlines(keepends=True):
        if line.endswith(b"\n"):
            yield _LINE.decode(line)


def _has_same_agent(one: ConfigRecord, other: ConfigRecord) -> bool:
    return all(
        _get_value(one, key) == _get_value(other, key)
        for key in ("env.name", "model.type", "model.name", "agent.harness")
    )


def _has_same_optimizer(one: ConfigRecord, other: ConfigRecord) -> bool:
    return _get_optimizer(one) == _get_optimizer(other) and all(
        _get_value(one, f"train.{key}") == _get_value(other, f"train.{key}") for key in _SIZES
    )


def _get_optimizer(config: ConfigRecord) -> tuple[Any, Any]:
    section = "model" if _get_value(config, "optimizer.type") == "same" else "optimizer"
    return _get_value(config, f"{section}.type"), _get_value(config, f"{section}.name")


def _get_value(config: ConfigRecord, path: str) -> Any:
    section, key = path.split(".")
    values: Any = config.get(section)
    return values.get(key) if isinstance(values, dict) else None  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
