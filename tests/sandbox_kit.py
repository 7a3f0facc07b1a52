"""Which sandbox backends of this host tests can use."""

import pytest

from ludus.errors import ConfigError
from ludus.sandbox.pool import open_pool


@pytest.fixture(scope="session")
def bwrap_problem() -> str:
    try:
        open_pool("bwrap")
    except ConfigError as error:
        return str(error)
    return ""


@pytest.fixture(params=["bwrap", "local"])
def backend(request: pytest.FixtureRequest, bwrap_problem: str) -> str:
    if request.param == "bwrap" and bwrap_problem:
        pytest.skip(bwrap_problem)
    return request.param


@pytest.fixture
def bwrap(bwrap_problem: str) -> str:
    """For tests of isolation, which `local` does not have."""
    if bwrap_problem:
        pytest.skip(bwrap_problem)
    return "bwrap"
