"""TensorBoard: metrics of a run as an event file. An extra of the package: `tensorboardX`, which only writes.

`tensorboard --logdir runs` shows the runs of a folder beside each other; it need not be installed where runs run.
"""

import math
from pathlib import Path
from typing import Any

from ludus.trackers import Table, TrackedRun, Values
from ludus.trackers.client_trackers import import_client
from ludus.trackers.mlflow_tracker import list_setting_texts

FOLDER = "tensorboard"


class TensorBoardTracker:
    """An event file. `folder`: where; empty: `tensorboard` in the run directory. `flush_seconds`: how often values that
    wait are written."""

    def __init__(self, folder: str = "", flush_seconds: int = 10) -> None:
        self._make = import_client("tensorboardX", "tensorboard").SummaryWriter
        self._folder = folder
        self._flush = flush_seconds
        self._writer: Any = None

    def start(self, run: TrackedRun) -> None:
        place = Path(self._folder, run.name) if self._folder else run.folder / FOLDER
        self._writer = self._make(logdir=str(place), flush_secs=self._flush)
        rows = tuple((name, text) for name, text in list_setting_texts(run.config))
        self._writer.add_text("settings", write_markdown(Table(("setting", "value"), rows)), 0)

    def log(self, values: Values, step: int) -> None:
        for name, value in values.items():
            if isinstance(value, Table):
                self._writer.add_text(name, write_markdown(value), step)
            elif isinstance(value, str):
                self._writer.add_text(name, _quote(value), step)
            elif math.isfinite(value):
                self._writer.add_scalar(name, float(value), step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def write_markdown(table: Table) -> str:
    """A table in Markdown, as TensorBoard shows texts. What models wrote is shown as it is, not as markup."""
    rows = (f"| {' | '.join(_escape(str(cell)) for cell in row)} |" for row in table.rows)
    return "\n".join([f"| {' | '.join(table.columns)} |", "|---" * len(table.columns) + "|", *rows])


def _escape(text: str) -> str:
    for mark, instead in (("&", "&amp;"), ("<", "&lt;"), ("|", "&#124;"), ("\r", ""), ("\n", "<br>")):
        text = text.replace(mark, instead)
    return text


def _quote(text: str) -> str:
    """A text as a code block."""
    return "\n".join(f"    {line}" for line in text.split("\n"))
