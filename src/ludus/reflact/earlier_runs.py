"""What calls took in an earlier run, so that an estimate need not assume it.

The runs in one folder are looked through, the latest first, for one in the same environment with the same agent. Only
its `config.json` and `steps.jsonl` are read. What the optimizer was asked is taken over only if the optimizer and the
sizes of batches are the same too. A run that cannot be read is passed over: it is there to help, not to be judged.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from ludus.reflact.records import BatchReport, Spent, pooled, total
from ludus.reflact.report.run_files import STEPS
from ludus.store import CONFIG
from ludus.types import Usage

_MOST = 50
"""Runs that are looked at."""
_SIZES = ("update_mode", "batch_size", "minibatch_size", "merge_batch_size", "trajectory_tokens")

Record = Mapping[str, Any]
"""The settings of a run, as they are recorded."""


class Earlier(Struct, frozen=True):
    """What is known from an earlier run."""

    run: str = ""
    """Its directory; empty if there was none."""
    spent: tuple[Spent, ...] = ()
    failing: float | None = None
    """The share of its train rollouts that failed."""

    def each(self, role: str, stage: str) -> Usage | None:
        """What one call took, on average. A rollout takes about the same in any stage."""
        own = [entry for entry in self.spent if entry.role == role and (entry.stage == stage or role == "agent")]
        exact = [entry for entry in own if entry.stage == stage] or own
        calls = sum(entry.calls for entry in exact)
        if not calls:
            return None
        usage = sum((entry.usage for entry in exact), Usage())
        return Usage(usage.prompt_tokens // calls, usage.completion_tokens // calls)


class _Line(Struct, frozen=True):
    """What is of use in a line of `steps.jsonl`."""

    spent: tuple[Spent, ...] = ()
    batches: tuple[BatchReport, ...] = ()


_LINE = msgspec.json.Decoder(_Line)


def find(folder: Path, config: Record) -> Earlier:
    """The latest run in a folder that is like the one to come."""
    files = [path for path in folder.glob(f"*/{STEPS}") if path.is_file()]
    for path in sorted(files, key=lambda path: path.stat().st_mtime, reverse=True)[:_MOST]:
        try:
            found = _read(path.parent, config)
        except (OSError, msgspec.MsgspecError):
            continue
        if found.spent:
            return found
    return Earlier()


def _read(run: Path, config: Record) -> Earlier:
    other = msgspec.json.decode((run / CONFIG).read_bytes(), type=dict[str, Any])
    roles = [role for role, same in (("agent", _same_agent), ("optimizer", _same_optimizer)) if same(config, other)]
    if "agent" not in roles:
        return Earlier()
    lines = list(_lines((run / STEPS).read_bytes()))
    _, hard, _ = pooled([batch for line in lines for batch in line.batches])
    spent = total(*(line.spent for line in lines))
    kept = tuple(entry for entry in spent if entry.role in roles and entry.usage.tokens)
    return Earlier(str(run), kept, None if hard is None else 1.0 - hard)


def _lines(data: bytes) -> Iterable[_Line]:
    """All lines that are whole: the run may be going on."""
    for line in data.splitlines(keepends=True):
        if line.endswith(b"\n"):
            yield _LINE.decode(line)


def _same_agent(one: Record, other: Record) -> bool:
    return all(
        _said(one, key) == _said(other, key) for key in ("env.name", "model.type", "model.name", "agent.harness")
    )


def _same_optimizer(one: Record, other: Record) -> bool:
    return _optimizer(one) == _optimizer(other) and all(
        _said(one, f"train.{key}") == _said(other, f"train.{key}") for key in _SIZES
    )


def _optimizer(config: Record) -> tuple[Any, Any]:
    section = "model" if _said(config, "optimizer.type") == "same" else "optimizer"
    return _said(config, f"{section}.type"), _said(config, f"{section}.name")


def _said(config: Record, path: str) -> Any:
    section, key = path.split(".")
    values: Any = config.get(section)
    return values.get(key) if isinstance(values, dict) else None  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
