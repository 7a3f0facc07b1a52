"""Process and evaluate with a file: what its groups and evaluations leave in the run directory."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec import Struct

from ludus.batch import GROUPS, SUMMARY, group_outcomes, make_group_row
from ludus.compat.atropos_env.base_env import EvalReport
from ludus.compat.atropos_env.call_journal import SCOPE, CallScope
from ludus.compat.atropos_env.file_host import describe_trace
from ludus.compat.atropos_env.group_run import FileParts, GroupFailed, GroupRun, make_task_id, read_file_groups
from ludus.compat.atropos_env.group_turns import read_shared
from ludus.compat.atropos_env.row_rollouts import encode_group
from ludus.encoding import to_json
from ludus.engine import fan_out
from ludus.errors import ConfigError, LudusError, raise_first
from ludus.runner import RunOptions
from ludus.stats import RunSummary, summarize
from ludus.store import RunDir
from ludus.types import Group

ATROPOS_GROUPS = "atropos_groups.jsonl"
"""The groups of a run as the file returned them, one in each line."""
NOT_CALLED_KIND = "file_not_called"
EVAL_METRICS, EVAL_SAMPLES = "metrics.json", "samples.jsonl"
DROP_LIMIT = 100
"""`process` stops after this many items in a row of which the file made no group."""


class GroupCounts(Struct, frozen=True, kw_only=True):
    """What became of the items of a run, and of the file's own ways."""

    kept: int
    """Groups in `atropos_groups.jsonl`, or sent."""
    dropped: dict[str, int]
    """Groups that were not kept, by reason. `no_group`: items of which the file made none."""
    failed: int
    """Items of which no group could be made."""
    one_at_a_time: list[str]
    """The attributes for which groups were not made side by side."""
    not_called: list[str]
    """What the file defines and Ludus does not call."""

    def list_values(self) -> dict[str, float]:
        """The counts as metrics."""
        dropped = {f"groups/dropped_{reason}": float(count) for reason, count in self.dropped.items()}
        return {"groups/kept": float(self.kept), "groups/failed": float(self.failed), **dropped}


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
    options: RunOptions,
    width: int,
    on_group: Callable[[FileProgress], None] = lambda _: None,
) -> bool:
    """Make `total` groups of `width` rollouts, as many at a time as the options say. Returns whether there are no more
    to make.

    Raises:
        NothingKept: the file drops every group.
        BudgetExhausted, ModelUnusable: what was made is kept.
    """
    groups, counts = GroupRun(parts), _Counts()
    numbers = iter(range(1_000_000_000))
    for each in groups.known.values():
        counts.done += each.counts
        counts.score, counts.rows = counts.score + sum(each.scores), counts.rows + len(each.scores)
    counts.begun = counts.done

    def list_numbers() -> Iterator[int]:
        while counts.begun < total and not counts.is_over and counts.unkept < DROP_LIMIT:
            counts.begun += 1
            yield next(number for number in numbers if number not in groups.known)

    async def work(number: int) -> None:
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
            counts.score, counts.rows = counts.score + sum(made.scores), counts.rows + len(made.scores)
            await groups.log()
        on_group(FileProgress(total, counts.done, counts.failed, counts.mean))

    try:
        with raise_first():
            while counts.begun < total and not (counts.is_over or options.is_stopping):
                await fan_out(list_numbers(), work, options, width=width)
                if counts.unkept >= DROP_LIMIT:
                    raise NothingKept(f"the file made no group of {DROP_LIMIT} items in a row: see its own conditions")
    finally:
        write_outputs(parts)
    return counts.is_over or counts.done + counts.failed >= total


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
    summary, counts = summarize(found), count_groups(run, found)
    write_summary(run, summary, counts)
    parts.env.services.log_metrics({**counts.list_values()})


def write_summary(run: RunDir, summary: RunSummary, counts: GroupCounts) -> None:
    """Write `summary.json`: the numbers of a run, and what became of its groups."""
    told = {**msgspec.to_builtins(summary), "groups": counts}
    run.write(SUMMARY, msgspec.json.format(to_json(told), indent=2) + b"\n")


def count_groups(run: RunDir, outcomes: Iterable[Group]) -> GroupCounts:
    """Count the groups of a run. `outcomes`: its rollouts by item."""
    made, dropped = read_file_groups(run), Counter[str]()
    for each in made:
        dropped.update(each.dropped)
    done = {make_task_id(each.number) for each in made}
    return GroupCounts(
        kept=sum(len(each.groups) for each in made),
        dropped=dict(sorted(dropped.items())),
        failed=sum(group.task.split != "test" and group.task.id not in done for group in outcomes),
        one_at_a_time=read_shared(run),
        not_called=[body.decode() for _, body in run.read_records(NOT_CALLED_KIND)],
    )


def _encode_line(group: Group, index: int, parts: FileParts) -> bytes:
    return to_json({**msgspec.structs.asdict(make_group_row(group, index)), **parts.more(group)})


def summarize_run(run: RunDir, group_size: int) -> tuple[RunSummary, GroupCounts]:
    """The numbers of a run, and what became of its groups."""
    outcomes = group_outcomes(run, group_size)
    return summarize(outcomes), count_groups(run, outcomes)


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
    scope = CallScope(name, parts.seed, parts.system)
    SCOPE.set(scope)
    try:
        async with parts.turns.enter():
            await parts.host.run(parts.env.evaluate)
    except Exception as error:
        if parts.fatal.error is not None:
            raise parts.fatal.error from None
        if isinstance(error, LudusError):
            raise
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
