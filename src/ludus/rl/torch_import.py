"""The one place that imports PyTorch, which is an extra of the package.

Modules that compute with it import `torch` from here. It is `Any` for the type checker, which runs without PyTorch.
"""

import importlib
from typing import Any

from ludus.errors import ConfigError

Tensor = Any
"""An array of PyTorch. Comments name its axes: B rows, T places, C channels, H heads, V vocabulary."""


def _import_torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ModuleNotFoundError as missing:
        raise ConfigError("the built-in trainer needs PyTorch: pip install 'ludus-train[rl]'") from missing


torch: Any = _import_torch()
