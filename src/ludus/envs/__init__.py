"""The environments that come with Ludus, one file each. `BUILTIN` has their names and where they are."""

from collections.abc import Mapping
from types import MappingProxyType

BUILTIN: Mapping[str, str] = MappingProxyType(
    {
        "gsm8k": "ludus.envs.gsm8k:Gsm8k",
        "orders": "ludus.envs.orders:Orders",
        "parcels": "ludus.envs.parcels:Parcels",
        "terminal-test": "ludus.envs.terminal_test:TerminalTest",
    }
)
