"""A model is ready before a run begins. Whole runs in token mode are in tests/cli/test_process.py."""

import asyncio

from ludus.agent import Policy
from ludus.config.token_mode import prepare_model
from ludus.envs.gsm8k import Gsm8k
from ludus.models.ledger import Ledger, MeteredModel


class SlowModel:
    """A model that has to be started."""

    name = "slow"

    def __init__(self) -> None:
        self.started = 0

    async def start(self) -> None:
        self.started += 1

    async def complete(self, messages, tools, sampling):
        raise AssertionError("the model must not be called here")

    async def close(self) -> None: ...


def test_a_model_is_started_before_the_run():
    model, ledger = SlowModel(), Ledger()
    for policy in (Policy(model), Policy(MeteredModel(model, ledger, "agent"))):
        asyncio.run(prepare_model(policy, Gsm8k(), print))
    assert model.started == 2
