"""The fixtures of the core's tests, and the gateway kit for every test here."""

from tests.conftest import backend, bwrap, bwrap_problem, ludus, module_pools, pass_time, pool, pools
from tests.gateway_kit import kit

__all__ = ["backend", "bwrap", "bwrap_problem", "kit", "ludus", "module_pools", "pass_time", "pool", "pools"]
