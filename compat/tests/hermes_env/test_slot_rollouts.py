"""Rows of rollouts, and the manager of a run."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from ludus.errors import ConfigError

pytest.importorskip("pydantic")

from ludus.compat.hermes_env.slot_rollouts import SlotRolloutEnv, fit_columns


@pytest.mark.parametrize(
    ("row", "fitted"),
    [
        (None, None),
        ({"tokens": [1]}, {"tokens": [1]}),
        ({"tokens": [1], "inference_logprobs": [0.1, 0.2]}, {"tokens": [1], "inference_logprobs": [0.1]}),
    ],
)
def test_logprobs_are_as_long_as_the_ids(row: Any, fitted: Any):
    assert fit_columns(row) == fitted


async def test_a_manager_that_does_not_hold_the_run_is_refused():
    class Brief(SlotRolloutEnv):
        def __init__(self) -> None:
            self.services: Any = SimpleNamespace(command="process")
            self._is_set_up, self._is_over, self._manager = asyncio.Event(), asyncio.Event(), None

        async def process_manager(self) -> None:
            """Does not call the base class."""

    with pytest.raises(ConfigError, match=r"call super\(\)\.process_manager\(\)"):
        await Brief().begin_run()
