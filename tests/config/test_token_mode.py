"""A model is ready before a run begins. Whole runs in token mode are in tests/cli/test_process.py."""

import subprocess
import sys

import pytest

from ludus.config.token_mode import prepare_model
from ludus.envs.gsm8k import Gsm8k
from ludus.models.ledger import Ledger, MeteredModel
from ludus.policy import Policy


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


async def test_a_model_is_started_before_the_run():
    model, ledger = SlowModel(), Ledger()
    for policy in (Policy(model), Policy(MeteredModel(model, ledger, "agent"))):
        await prepare_model(policy, Gsm8k(), print)
    assert model.started == 2


BUILD = """
import sys

sys.modules[sys.argv[1]] = None  # as if it were not installed
import ludus.models.weights
from ludus.config.token_mode import build_embedded_model
from ludus.errors import ConfigError
from ludus.models.embedded import EmbeddedSettings


def fetch(*_, **__):
    raise AssertionError("the weights were fetched")


ludus.models.weights.find_weights = fetch
try:
    build_embedded_model(EmbeddedSettings(mode="token"), print, "model")
except ConfigError as error:
    print(error)
"""


@pytest.mark.parametrize(("package", "extra"), [("tokenizers", "tokens"), ("jinja2", "tokens"), ("xllamacpp", "local")])
def test_a_missing_extra_is_reported_before_weights_are_fetched(package: str, extra: str):
    for needed in ("tokenizers", "jinja2"):
        pytest.importorskip(needed, reason="the extra 'tokens' is not installed")
    done = subprocess.run([sys.executable, "-c", BUILD, package], capture_output=True, text=True, check=False)
    assert f"pip install 'ludus-train[{extra}]'" in done.stdout, done.stderr
