"""Process and evaluate with a file: what its groups and evaluations leave in the run directory."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec

from ludus import trajectory_page as page
from ludus.batch import GROUPS, PAGE, group_outcomes, make_group_row
from ludus.compat.atropos_env.base_env import EvalReport
from ludus.compat.atropos_env.call_journal import SCOPE, CallScope
from ludus.compat.atropos_env.group_run import FileParts, GroupFailed, GroupRun
from ludus.compat.atropos_env.row_rollouts import encode_group
from ludus.errors import ConfigError, LudusError
from ludus.stats import RunSummary, summarize
from ludus.store import RunDir
from ludus.types import Group, to_json

ATROPOS_GROUPS = "atropos_groups.jsonl"
"""The groups of a run as the file returned them, one in each line."""
EVAL_METRICS, EVAL_SAMPLES = "metrics.json", "samples.jsonl"
DROP_LIMIT = 100
"""`process` stops after this many items in a row of which the file made no group."""


class NothingKept(LudusError):
    """The file drops group after group."""


@dataclass(frozen=True)
class FileProgress:
    """How far a run is."""

    total: int
    done: int
    failed: int
    mean: float | None


@dataclass
class _Counts:
    done: int = 0
    failed: int = 0
    begun: int = 0
    unkept: int = 0
    score: float = 0.0
    rows: int = 0
    is_over: bool = False

    @property
    def mean(self) -> float | None:
        return self.score / self.rows if self.rows else None


async def process_file(
    parts: FileParts,
    total: int,
    at_once: int,
    stop: asyncio.Event | None = None,
    on_group: Callable[[FileProgress], None] = lambda _: None,
) -> bool:
    """Make `total` groups, `at_once` at a time. Returns whether there are no more to make.

    Raises:
        NothingKept: the file drops every group.
        BudgetExhausted, ModelUnusable: what was made is kept.
    """
    groups, counts = GroupRun(parts), _Counts()
    numbers = iter(range(1_000_000_000))
    for each in groups.known.values():
        counts.done += each.counts
        counts.score, counts.rows = counts.score + sum(each.scores), counts.rows + each.rows
    counts.begun = counts.done

    async def work() -> None:
        while not (counts.is_over or counts.begun >= total or (stop and stop.is_set())):
            number = next(number for number in numbers if number not in groups.known)
            counts.begun += 1
            try:
                made = await groups.make_group(number)
            except GroupFailed:
                counts.failed += 1  # it counts as begun: it is made again when the run is resumed
            else:
                if made is None:
                    counts.is_over = True
                    return
                counts.begun -= not made.counts
                counts.done += made.counts
                counts.unkept = 0 if made.counts else counts.unkept + 1
                counts.score, counts.rows = counts.score + sum(made.scores), counts.rows + made.rows
                if counts.unkept >= DROP_LIMIT:
                    raise NothingKept(f"the file made no group of {DROP_LIMIT} items in a row: see its own conditions")
                await groups.log()
            on_group(FileProgress(total, counts.done, counts.failed, counts.mean))

    tasks = [asyncio.create_task(work()) for _ in range(max(1, at_once))]
    try:
        await _finish_all(tasks)
    finally:
        write_outputs(parts)
    return counts.is_over or counts.done + counts.failed >= total


async def _finish_all(tasks: list[asyncio.Task[None]]) -> None:
    """Wait for all tasks, also when one has failed: what runs is finished. Then raise the first error."""
    try:
        done = await asyncio.gather(*tasks, return_exceptions=True)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
    for each in done:
        if isinstance(each, BaseException):
            raise each


def write_outputs(parts: FileParts) -> None:
    """Write the files that are made from the store."""
    run, groups = parts.run, GroupRun(parts)
    ordered = [groups.known[number] for number in sorted(groups.known)]
    run.write(ATROPOS_GROUPS, (bytes(group) + b"\n" for each in ordered for group in each.groups))
    path = parts.env.config.data_path_to_save_groups
    if path:
        _copy_groups(run, Path(path))
    found = group_outcomes(run, parts.rules.group_size)
    run.write(GROUPS, (_encode_line(group, index, parts) + b"\n" for index, group in enumerate(found)))
    facts = {"environment": parts.provenance.versions["env"], "model": parts.provenance.model}
    rows = (to_json(make_group_row(group, index)) for index, group in enumerate(found))
    run.write(PAGE, page.render_page(run.path.resolve().name, facts, summarize_run(run, parts), rows))


def _encode_line(group: Group, index: int, parts: FileParts) -> bytes:
    return to_json({**msgspec.structs.asdict(make_group_row(group, index)), **parts.more(group)})


def summarize_run(run: RunDir, parts: FileParts) -> RunSummary:
    return summarize(group_outcomes(run, parts.rules.group_size))


def _copy_groups(run: RunDir, path: Path) -> None:
    """Write the groups to the file that the settings name. One that another run has written is not overwritten."""
    chosen = run.put_record("file/data_path", "file_path", str(_choose_path(path).resolve()).encode()).decode()
    target = Path(chosen)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(b"".join(line + b"\n" for line in run.read_lines(ATROPOS_GROUPS)))
    except OSError as error:
        raise ConfigError(f"env.data_path_to_save_groups: {target}: {error.strerror or error}") from None


def _choose_path(path: Path) -> Path:
    others = (path.with_name(f"{path.stem}_{number}{path.suffix}") for number in range(1, 100_000))
    return next(each for each in (path, *others) if not each.exists())


# ---- evaluations --------------------------------------------------------------------------------------------------


async def evaluate_file(parts: FileParts, step: int | None = None) -> None:
    """Call the file's `evaluate`, then its `wandb_log`. Calls of the model are remembered, so that an evaluation that
    was interrupted goes on where it was.

    Raises:
        GroupFailed: it raised.
        BudgetExhausted, ModelUnusable: it must end.
    """
    name = "evaluate" if step is None else f"evaluate/{step}"
    scope = CallScope(name, parts.seed)
    SCOPE.set(scope)
    try:
        await parts.host.run(parts.env.evaluate)
    except Exception as error:
        if parts.fatal.error is not None:
            raise parts.fatal.error from None
        if isinstance(error, LudusError):
            raise
        from ludus.compat.atropos_env.file_host import describe_trace

        raise ConfigError(f"the file's evaluate() raised:\n{describe_trace(error)}") from error
    if parts.fatal.error is not None:
        raise parts.fatal.error
    _tell_failures(scope, parts)
    groups = GroupRun(parts)
    groups.keep_rows(name, scope.rows)
    await groups.log()


def _tell_failures(scope: CallScope, parts: FileParts) -> None:
    """Tell about failures that the file has swallowed. Wrong settings end the evaluation."""
    wrong = next((each for each in scope.failures if isinstance(each, ConfigError)), None)
    if wrong is not None:
        raise wrong
    if scope.failures:
        parts.tell(
            f"{len(scope.failures)} calls of models or slots failed in evaluate(), the first with: "
            f"{scope.failures[0]}. The file went on; its numbers may count them as wrong"
        )


def write_eval(report: EvalReport, folder: Path) -> None:
    """Write what `evaluate_log` was given: `metrics.json` and `samples.jsonl`, in atroposlib's form."""
    folder.mkdir(parents=True, exist_ok=True)
    found = {
        "config_general": {
            "model_name": report.model,
            "total_evaluation_time_seconds": str(report.seconds),
            "generation_parameters": report.parameters,
        },
        "results": {f"atropos|{report.task}|0": report.metrics, "all": report.metrics},
    }
    (folder / EVAL_METRICS).write_bytes(msgspec.json.format(encode_group(found), indent=2))
    if report.samples:
        lines = (encode_group(sample) for sample in report.samples)
        (folder / EVAL_SAMPLES).write_bytes(b"".join(line + b"\n" for line in lines))


def read_eval(folder: Path) -> dict[str, Any]:
    """The metrics that the last evaluation wrote; empty if there are none. Some files write theirs themselves."""
    path = folder / EVAL_METRICS
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text("utf-8"))
    except ValueError:
        return {}
    own = cast(dict[str, Any], found) if isinstance(found, dict) else {}
    results = own.get("results")
    every = cast(dict[str, Any], results).get("all") if isinstance(results, dict) else own
    return cast(dict[str, Any], every) if isinstance(every, dict) else {}
