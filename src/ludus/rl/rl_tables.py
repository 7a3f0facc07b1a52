"""An RL run on a terminal: its progress while it runs, then its steps and its curve."""

import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from ludus.command.terminal import (
    LiveLine,
    format_count,
    format_duration,
    format_money,
    format_number,
    make_console,
    make_text,
)
from ludus.control import RunControl
from ludus.encoding import to_json
from ludus.rl.records import RlStep, encode_step, read_steps
from ludus.rl.rl_estimate import RlCost
from ludus.rl.run_health import find_troubles
from ludus.run_info import read_failure_ledger
from ludus.stats import describe_failures
from ludus.store import RunDir
from ludus.suspects import describe_suspects, read_suspect_policy
from ludus.types import Rollout

if TYPE_CHECKING:  # importing rich takes a while, and most commands do not draw
    from rich.console import Console

ROWS, WIDTH = 10, 72


class RlBar(LiveLine):
    """A line with the progress of an RL run. Call it with each rollout; `record` prints a line for each step."""

    def __init__(
        self, steps: int, rollouts: int, *, file: TextIO | None = None, control: RunControl | None = None
    ) -> None:
        super().__init__("steps", file, control=control)
        self._steps = steps
        self._rollouts = rollouts
        """Of one step."""
        self._done = 0
        self._in_step = 0
        self._sampled = 0
        self._started = time.monotonic()
        self._last = ""

    def __call__(self, rollout: Rollout) -> None:
        self._in_step += 1
        self._sampled += rollout.usage.completion_tokens
        rate = self._sampled / max(0.001, time.monotonic() - self._started)
        words = [f"rollouts {self._in_step}/{self._rollouts}", self._last, f"{format_count(round(rate))} tokens/s"]
        self.draw(self._done, self._steps, " · ".join(word for word in words if word))

    def record(self, record: RlStep, *, quiet: bool = False) -> None:
        """Show that a step is finished. `quiet`: it was finished by an earlier process."""
        self._done, self._in_step = record.step, 0
        self._last = f"reward {format_optional(record.reward)}" if record.step else ""
        if not quiet:
            self.print(describe_step(record, self._steps))


def describe_step(record: RlStep, steps: int) -> str:
    """A finished step in one line."""
    held = record.held_out
    measured = ""
    if held is not None:
        band = f" [{format_number(held.interval.low)}, {format_number(held.interval.high)}]" if held.interval else ""
        measured = f"{held.split} {format_optional(held.mean)}{band} of {held.tasks} tasks"
        measured += f" ({held.suspects} suspect)" if held.suspects else ""
    if not record.step:
        return ", ".join(["start", *([measured] if measured else [])])
    metrics, seconds = record.metrics, record.seconds.get("whole", 0.0)
    dropped = [group.dropped for group in record.groups if group.dropped]
    sampled = (record.length or 0.0) * (record.rollouts - record.failed)
    parts = [
        f"step {record.step}/{steps}: reward {format_optional(record.reward)}",
        f"length {format_optional(record.length, 1)}",
        f"kl {format_optional(metrics.kl, 4)}",
        f"entropy {format_optional(metrics.entropy)}",
        f"staleness {record.staleness:.2g}" if record.stalest else "",
        f"{len(dropped)} of {len(record.groups)} groups dropped ({', '.join(sorted(set(dropped)))})" if dropped else "",
        f"{record.failed} failed" if record.failed else "",
        f"{record.suspects} suspect" if record.suspects else "",
        measured,
        f"{seconds:.1f} s, {format_count(round(sampled / seconds))} tokens/s" if seconds else "",
    ]
    return ", ".join(part for part in parts if part)


def format_optional(value: float | None, digits: int = 3) -> str:
    return "none" if value is None else f"{value:.{digits}f}"


def _describe_money(cost: RlCost) -> str:
    if cost.dollars is not None:
        rest = (
            ", without the hours of the machine: their number is not known before a first run" if cost.is_part else ""
        )
        return f"about {format_money(cost.dollars)}{rest}"
    if cost.is_part:
        return "not known: rl.dollars_per_hour is for a time that is not known before a first run"
    return "not known: set rl.dollars_per_million, or rl.dollars_per_hour, which needs a known time: a first run's"


def describe_cost(cost: RlCost) -> list[str]:
    """What a run takes, in lines."""
    prompt, completion = format_count(cost.prompt_tokens), format_count(cost.completion_tokens)
    update = format_count(cost.update_tokens)
    each = cost.each
    lines = [f"tokens: {prompt} in prompts, {completion} sampled; {update} for each update, if all groups are used"]
    lines.append(f"time: {'not known' if cost.seconds is None else 'about ' + format_duration(cost.seconds)}")
    lines.append(f"money: {_describe_money(cost)}")
    if each.source:
        return [*lines, f"As in {each.source}: {each.prompt_tokens + each.completion_tokens:.0f} tokens a rollout."]
    assumed = f"{each.prompt_tokens:.0f} prompt and {each.completion_tokens:.0f} sampled tokens a rollout"
    return [*lines, f"Assumed: {assumed}, as replies may be that long. After a run here, its figures are used."]


def show_rl_run(run: RunDir, *, as_json: bool) -> None:
    """Print an RL run, finished or not, from its store."""
    records = read_steps(run)
    if as_json:
        failures = json.loads(to_json(read_failure_ledger(run)))
        steps = [json.loads(encode_step(record)) for record in records]
        facts = {"run": str(run.path), "failures": failures, "records": steps, "troubles": find_troubles(records)}
        print(json.dumps(facts))
        return
    print_rl(records, run.config["rl"]["steps"])
    if words := describe_failures(read_failure_ledger(run)):
        print(words)
    if words := describe_suspects(sum(record.suspects for record in records), read_suspect_policy(run.config)):
        print(words)


def print_rl(records: Sequence[RlStep], steps: int, console: "Console | None" = None) -> None:
    """Print some steps, all evaluations and the curve of a run."""
    console = console or make_console()
    if not records:
        console.print("nothing is finished yet")
        return
    every = max(1, len(records) // 12)
    shown = [r for r in records if r.held_out is not None or r.step % every == 0 or r is records[-1]]
    for record in shown:
        console.print(make_text(describe_step(record, steps)), soft_wrap=True)
    if plot := plot_rewards(records):
        console.print(make_text(f"\n{plot}"), soft_wrap=True)
    if records[-1].step >= steps:
        for trouble in find_troubles(records):
            console.print(make_text(f"\nwarning: {trouble}", "yellow"), soft_wrap=True)


def plot_rewards(records: Sequence[RlStep]) -> str:
    """The mean reward by step as dots, and the evaluations as circles, drawn with characters."""
    rewards = [(r.step, r.reward) for r in records if r.reward is not None]
    held = [(r.step, r.held_out.mean) for r in records if r.held_out is not None and r.held_out.mean is not None]
    if len(rewards) < 2:
        return ""
    last = max(step for step, _ in (*rewards, *held))
    values = [value for _, value in (*rewards, *held)]
    low, high = min(0.0, *values), max(1.0, *values)
    grid = [[" "] * (WIDTH + 1) for _ in range(ROWS)]
    for mark, points in (("·", rewards), ("●", held)):
        for step, value in points:
            grid[round((high - value) / (high - low) * (ROWS - 1))][round(step / last * WIDTH)] = mark
    labels = [f"{high - (high - low) * n / (ROWS - 1):.2f}" if n % 3 == 0 else "" for n in range(ROWS)]
    lines = [f"{label:>6} │{''.join(cells)}".rstrip() for label, cells in zip(labels, grid, strict=True)]
    scale = f"{'step':>6}  {'0':<{WIDTH - len(str(last)) + 1}}{last}"
    legend = f"{'':>8}· mean reward of a step" + ("   ● held-out tasks" if held else "")
    return "\n".join([*lines, f"{'':>6} └{'─' * (WIDTH + 1)}", scale, legend])
