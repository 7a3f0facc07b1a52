"""Trackers that use the client library of a service: Weights & Biases and Trackio. Both are extras of the package.

The two libraries have the same interface: `init`, `log`, `finish` and `Table`. Each reads its own key from the
environment. Trackio keeps its values on this machine; `trackio show` shows them.
"""

import importlib
from abc import ABC, abstractmethod
from typing import Any, Literal

from ludus.errors import ConfigError
from ludus.trackers import Table, TrackedRun, Values


def import_client(module: str, extra: str) -> Any:
    """A module of a tracker's client library. Raises `ConfigError` if its extra is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"tracking.use: {extra} is not installed ({error}): pip install 'ludus-train[{extra}]'"
        ) from None


class ClientTracker(ABC):
    """A run of a service, through the module of its client library."""

    def __init__(self, module: str) -> None:
        self._module = import_client(module, module)
        self._run: Any = None

    @abstractmethod
    def list_options(self, run: TrackedRun) -> dict[str, Any]:
        """What `init` gets beside project, group, name and config."""

    def start(self, run: TrackedRun) -> None:
        self._run = self._module.init(
            project=run.project,
            group=run.group or None,
            name=run.name,
            config=run.config,
            **self.list_options(run),
        )

    def log(self, values: Values, step: int) -> None:
        made = {name: self._convert(value) if isinstance(value, Table) else value for name, value in values.items()}
        self._run.log(made, step=step)

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()

    def _convert(self, table: Table) -> Any:
        return self._module.Table(columns=list(table.columns), data=[list(row) for row in table.rows])


class WandbTracker(ClientTracker):
    """Weights & Biases. `mode` is `online` (with WANDB_API_KEY) or `offline` (files to send later: `wandb sync`)."""

    def __init__(self, mode: Literal["online", "offline"] = "online", entity: str = "") -> None:
        super().__init__("wandb")
        self._mode = mode
        self._entity = entity

    def list_options(self, run: TrackedRun) -> dict[str, Any]:
        return {"dir": str(run.folder), "mode": self._mode, "entity": self._entity or None}


class TrackioTracker(ClientTracker):
    """Trackio. `space` names a Hugging Face Space that gets the values too."""

    def __init__(self, space: str = "") -> None:
        super().__init__("trackio")
        self._space = space

    def list_options(self, run: TrackedRun) -> dict[str, Any]:
        return {"space_id": self._space or None, "resume": "allow", "embed": False}
