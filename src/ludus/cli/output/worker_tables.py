"""What `ludus serve` shows: a line while it runs, and a table at the end."""

import time
from typing import TYPE_CHECKING, TextIO

from ludus.cli.output.terminal import LiveLine, make_console

if TYPE_CHECKING:
    from ludus.rl.worker import WorkerProgress, WorkerReport


class WorkerLine(LiveLine):
    """A line with the progress of a worker. Call it with each progress."""

    def __init__(self, title: str, *, file: TextIO | None = None, every: float = 0.1) -> None:
        super().__init__(file)
        self._title = title
        self._every = every

    def __call__(self, progress: "WorkerProgress") -> None:
        if self._bar is None:
            return
        if self._row is None:
            self._row = self._bar.add_task(self._title, total=None, facts="")
        now = time.monotonic()
        if now - self._drawn >= self._every:
            self._drawn = now
            self._bar.update(self._row, completed=progress.sent, facts=describe_worker(progress))


def describe_worker(progress: "WorkerProgress") -> str:
    """The progress in a few words."""
    parts = [f"step {progress.step}", f"{progress.sent} groups sent"]
    if progress.rejected:
        parts.append(f"{progress.rejected} dropped")
    parts.append(f"{progress.running} running")
    if progress.reward is not None:
        parts.append(f"last reward {progress.reward:.3f}")
    return " · ".join(parts)


def print_worker_report(report: "WorkerReport") -> None:
    """Print how many groups were sent, and why others were not."""
    from rich.table import Table

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="dim")
    table.add_column()
    table.add_row("step", str(report.step))
    table.add_row("groups sent", str(report.verdicts.get("sent", 0)))
    for verdict, count in sorted(report.verdicts.items()):
        if verdict != "sent":
            table.add_row(f"not sent: {verdict.replace('_', ' ')}", str(count))
    if report.waiting:
        table.add_row("begun, not sent", f"{report.waiting} (with --resume they are finished and sent)")
    make_console().print(table)
