"""Environments that act themselves. Whole runs are in tests/compat."""

import sys

import pytest

from ludus.cli.acting_envs import make_actor, redirect_prints
from ludus.compat.verifiers_env import VerifiersActor, VerifiersEnv
from ludus.envs.gsm8k import Gsm8k
from ludus.models.scripted import ScriptedModel


@pytest.mark.parametrize(
    "env", ["ludus.compat.skillopt.adapters:AdapterEnv", "ludus.compat.verifiers_env:VerifiersEnv"]
)
def test_only_such_environments_print_to_stderr(env: str, capsys: pytest.CaptureFixture[str]):
    with redirect_prints(env):
        print("chatter")
    with redirect_prints("gsm8k"):
        print("result", file=sys.stdout)
    assert capsys.readouterr() == ("result\n", "chatter\n")


def test_an_environment_of_verifiers_acts_and_a_built_in_one_does_not():
    model = ScriptedModel(["x"], "m")
    actor = make_actor(VerifiersEnv(id="my-env"), model)
    assert isinstance(actor, VerifiersActor) and actor.name == "verifiers/my-env/m"
    assert make_actor(Gsm8k(), model) is None
