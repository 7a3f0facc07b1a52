"""A run never waits without a word: the watchdog says what it waits for, and ends it if it is asked to.

    Activity.report() ──> quiet for a while? ──> on_quiet: say what each phase waits for, and since when
                                    └─ quiet for `limits.stall_seconds` ──> the run ends, and can be resumed

It sleeps until the next moment at which something could be due, so it costs nothing while a run goes on.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

from ludus.activity import ActivityReport, PhaseCount
from ludus.errors import RunStalled

FIRST_NOTICE = 60.0
"""How many seconds nothing moves before the first notice. Each further one comes after twice the time."""


class WatchStep(NamedTuple):
    """What to do at a moment, and when to look again."""

    tells: bool
    ends: bool
    sleep: float
    next_notice: float
    """The length of the silence at which the next notice is due."""


def decide_step(report: ActivityReport, next_notice: float, stall_seconds: float) -> WatchStep:
    """What a silence of this length asks for. `stall_seconds`: 0 if it never ends the run."""
    first = min(FIRST_NOTICE, stall_seconds / 2) if stall_seconds else FIRST_NOTICE
    if not report.running:
        return WatchStep(False, False, first, first)
    if report.quiet < next_notice / 2 or not next_notice:  # something has moved since the last notice
        next_notice = first
    if stall_seconds and report.quiet >= stall_seconds:
        return WatchStep(False, True, 0.0, next_notice)
    tells = report.quiet >= next_notice
    while report.quiet >= next_notice:
        next_notice *= 2
    until = min(next_notice, stall_seconds) if stall_seconds else next_notice
    return WatchStep(tells, False, until - report.quiet, next_notice)


async def watch_activity(
    read: Callable[[], ActivityReport], on_quiet: Callable[[ActivityReport], None], stall_seconds: float = 0.0
) -> ActivityReport:
    """Call `on_quiet` while nothing moves. Returns what the run waits for when that has been so for too long."""
    next_notice = 0.0
    while True:
        report = read()
        step = decide_step(report, next_notice, stall_seconds)
        next_notice = step.next_notice
        if step.ends:
            return report
        if step.tells:
            on_quiet(report)
        await asyncio.sleep(max(step.sleep, _SHORTEST))


_SHORTEST = 0.01
"""A timer may end a little early; it must not become a busy loop."""


@asynccontextmanager
async def watch_for_stall(
    read: Callable[[], ActivityReport], stall_seconds: float, on_quiet: Callable[[ActivityReport], None]
) -> AsyncGenerator[None, None]:
    """Call `on_quiet` while nothing moves in the block.

    Raises:
        RunStalled: nothing has moved for `stall_seconds`. The block was cancelled.
    """
    task, stalled = asyncio.current_task(), list[ActivityReport]()
    assert task is not None

    async def watch() -> None:
        stalled.append(await watch_activity(read, on_quiet, stall_seconds))
        task.cancel()

    watching = asyncio.create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        if not stalled:
            raise
        task.uncancel()
        raise RunStalled(f"{describe_wait(stalled[0])} (limits.stall_seconds {stall_seconds:g})") from None
    finally:
        watching.cancel()
        await asyncio.wait([watching])


def describe_wait(report: ActivityReport) -> str:
    """What a run waits for, in words."""
    return f"nothing has moved for {_format_seconds(report.quiet)}. It waits for: {describe_phases(report)}"


def describe_phases(report: ActivityReport) -> str:
    """What is under way, in a few words."""
    return "; ".join(map(_describe_phase, report.phases)) or "nothing is under way"


def _describe_phase(each: PhaseCount) -> str:
    where = f" on {each.node}" if each.node else ""
    return f"{each.phase} {each.count}{where} (longest {_format_seconds(each.oldest)}: {each.who})"


def _format_seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def format_metrics(report: ActivityReport, prefix: str) -> str:
    """What is under way in Prometheus' text format."""
    lines = [f"# TYPE {prefix}_{name} gauge" for name in ("waiting", "oldest_seconds", "quiet_seconds")]
    found = list_activity_values(report)
    phases = sorted({each.phase for each in report.phases})
    lines[1:1] = [f'{prefix}_waiting{{phase="{phase}"}} {found[f"activity/{phase}"]:g}' for phase in phases]
    lines[-1:-1] = [
        f'{prefix}_oldest_seconds{{phase="{phase}"}} {found[f"activity/{phase}_oldest_seconds"]:.3f}'
        for phase in phases
    ]
    return "\n".join([*lines, f"{prefix}_quiet_seconds {report.quiet:.3f}", ""])


def list_activity_values(report: ActivityReport) -> dict[str, float]:
    """What a run waits for as metrics."""
    counts: dict[str, float] = {}
    oldest: dict[str, float] = {}
    for each in report.phases:
        counts[each.phase] = counts.get(each.phase, 0.0) + each.count
        oldest[each.phase] = max(oldest.get(each.phase, 0.0), each.oldest)
    return {
        "activity/quiet_seconds": report.quiet,
        **{f"activity/{phase}": count for phase, count in counts.items()},
        **{f"activity/{phase}_oldest_seconds": seconds for phase, seconds in oldest.items()},
    }
