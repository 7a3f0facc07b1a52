"""How the tests are divided among the processes of `make test`: a module stays together, so that it opens its fixtures
once. The tests of remote slots stay together too, because they share daemons. The cases of long modules are spread.
What is long is begun first, so that the processes end at the same time."""

from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
REMOTE = "tests/sandbox/remote"
LONG = (
    "tests/docs/test_examples.py",
    "tests/envs/test_attacks_on_tasks.py",
    "tests/envs/test_harbor.py",
    "tests/harness/test_harness.py",
    "tests/sandbox/slotd/test_hostile_slots.py",
    "tests/sandbox/test_conformance.py",
    "tests/test_adversary.py",
    "tests/test_hostile_agents.py",
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling  # not installed where only some tests run, in one process

    class ModuleScheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.partition("::")[0]
            if path.startswith(REMOTE):
                return REMOTE
            return nodeid if path in LONG else path

    return ModuleScheduling(config, log)


def rank_test(item: pytest.Item) -> int:
    """Its place in the order: remote slots, long modules, the others."""
    path = item.path.relative_to(ROOT).as_posix()
    return 0 if path.startswith(REMOTE) else 1 if path in LONG else 2
