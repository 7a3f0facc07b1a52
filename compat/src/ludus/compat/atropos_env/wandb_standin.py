"""A module in place of `wandb` where that is not installed: files import it, and use it even with logging off.

Tables keep their rows. Everything else can be called and does nothing. Metrics that a file logs through `wandb_log`
are in the run's `metrics.jsonl` in any case.
"""

from types import ModuleType
from typing import Any


class WandbTable:
    """`wandb.Table`: columns and rows."""

    def __init__(self, columns: Any = None, data: Any = None, **_: Any) -> None:
        self.columns: list[str] = list(columns or ())
        self.data: list[list[Any]] = [list(row) for row in data or ()]

    def add_data(self, *row: Any) -> None:
        self.data.append(list(row))


class WandbObject:
    """Anything else of `wandb`: it takes all arguments and has all attributes."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __call__(self, *_: Any, **__: Any) -> "WandbObject":
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return WandbObject()


class _Wandb(ModuleType):
    Table = WandbTable

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return WandbObject if name[:1].isupper() else WandbObject()


def make_wandb() -> ModuleType:
    """The module. `wandb.run` is None: no run is open."""
    module = _Wandb("wandb", __doc__)
    module.__dict__["run"] = None
    module.__dict__["__path__"] = []
    return module
