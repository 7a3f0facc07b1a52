"""A batch of prompts on a terminal: a line while it runs, and its numbers at the end."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from ludus.command.terminal import (
    LiveLine,
    format_count,
    format_money,
    format_number,
    make_console,
    make_facts_table,
    make_table,
    make_text,
)
from ludus.errors import StoreError
from ludus.trajectories.shards import INDEX, Shard
from ludus.trajectories.statistics import STATISTICS, BatchStatistics
from ludus.types import Usage


def draw_progress(line: LiveLine, done: int, total: int, failed: int, usage: Usage) -> None:
    words = [f"{failed} failed"] if failed else []
    words.append(f"{format_count(usage.tokens)} tokens")
    if usage.dollars:
        words.append(format_money(usage.dollars))
    line.draw(done, total, " · ".join(words))


def show_batch_run(run: Path, *, as_json: bool) -> None:
    """Print the numbers of a run, as it wrote them when it last ended."""
    try:
        text = (run / STATISTICS).read_bytes()
    except FileNotFoundError:
        raise StoreError(f"{run} has no {STATISTICS} yet: it is written when the run ends") from None
    if as_json:
        print(text.decode(), end="")
        return
    print_statistics(msgspec.json.decode(text, type=BatchStatistics))
    print_shards(msgspec.json.decode((run / INDEX).read_bytes(), type=list[Shard]), run)


def print_statistics(numbers: BatchStatistics, spent: Usage | None = None) -> None:
    console, table = make_console(), make_facts_table()
    for name, value in _list_numbers(numbers, spent or numbers.usage):
        table.add_row(name, make_text(value))
    console.print(table)
    if not numbers.tools:
        return
    tools = make_table("tool", "calls", "errors", "success", whole=(1, 2, 3))
    for use in numbers.tools:
        success = f"{100 * (use.calls - use.errors) / use.calls:.1f} %" if use.calls else ""
        tools.add_row(make_text(use.tool), str(use.calls), str(use.errors), success)
    console.print()
    console.print(tools)


def _list_numbers(numbers: BatchStatistics, usage: Usage) -> Iterator[tuple[str, str]]:
    left_out = [(numbers.bad_rows, "bad"), (numbers.repeated_rows, "repeated")]
    rows = "".join(f", {what} rows left out: {count}" for count, what in left_out if count)
    yield "prompts", f"{numbers.rollouts} of {numbers.rows} rollouts have ended{rows}"
    yield "written", f"{numbers.written} trajectories"
    if numbers.dropped:
        yield "dropped", _format_counts(numbers.dropped)
    if numbers.failures:
        yield "failed at", _format_counts(numbers.failures)
    if numbers.mean is not None:
        yield "check", f"{numbers.passed} of {numbers.checked} passed, mean {format_number(numbers.mean)}"
    yield "ended as", _format_counts(numbers.stops)
    share = numbers.reasoning.share
    if share is not None:
        without = numbers.reasoning.rollouts_without
        yield "thinking", f"in {100 * share:.1f} % of {numbers.reasoning.turns} replies; {without} rollouts without any"
    if numbers.toolsets:
        yield "toolsets", _format_counts(numbers.toolsets)
    yield "tokens", f"{format_count(usage.prompt_tokens)} in, {format_count(usage.completion_tokens)} out"
    if usage.dollars:
        yield "cost", format_money(usage.dollars)
    if numbers.left_over:
        yield "left over", f"{numbers.left_over} stored rollouts whose rows are no longer in the file: not written"


def _format_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def print_shards(shards: Sequence[Shard], out: Path) -> None:
    """Print where the trajectories are, and what to do next."""
    print(f"\n{out}")
    for shard in shards[:10]:
        print(f"  {shard.name}   {shard.rows} rows, {format_count(shard.bytes)} bytes")
    if len(shards) > 10:
        print(f"  … and {len(shards) - 10} more")
    place = shlex.quote(str(out))
    print(f"  ludus show {place} ID   a transcript")
    print(f"  ludus export {place} --format sharegpt --to rows.jsonl   in the form of another system")
