"""What `ludus serve` shows: a line while it runs, and a table at the end."""

from typing import TYPE_CHECKING

from ludus.command.terminal import LiveLine, make_console, make_facts_table
from ludus.suspects import SuspectPolicy, describe_suspects

if TYPE_CHECKING:
    from ludus.rl.worker import WorkerProgress, WorkerReport


class WorkerLine(LiveLine):
    """A line with the progress of a worker. Call it with each progress."""

    def __call__(self, progress: "WorkerProgress") -> None:
        self.draw(progress.sent, None, describe_worker(progress))


def describe_worker(progress: "WorkerProgress") -> str:
    """The progress in a few words."""
    parts = [f"step {progress.step}", f"{progress.sent} groups sent"]
    if progress.rejected:
        parts.append(f"{progress.rejected} dropped")
    if progress.suspects:
        parts.append(f"{progress.suspects} suspect")
    parts.append(f"{progress.running} running")
    if progress.reward is not None:
        parts.append(f"last reward {progress.reward:.3f}")
    return " · ".join(parts)


def print_worker_report(report: "WorkerReport", policy: SuspectPolicy = "zero") -> None:
    """Print how many groups were sent, and why others were not. `policy`: what was done with suspects."""
    table = make_facts_table()
    table.add_row("step", str(report.step))
    table.add_row("groups sent", str(report.verdicts.get("sent", 0)))
    for verdict, count in sorted(report.verdicts.items()):
        if verdict != "sent":
            table.add_row(f"not sent: {verdict.replace('_', ' ')}", str(count))
    if words := describe_suspects(report.suspects, policy):
        table.add_row("suspects", words)
    if report.waiting:
        table.add_row("begun, not sent", f"{report.waiting} (with --resume they are finished and sent)")
    make_console().print(table)
