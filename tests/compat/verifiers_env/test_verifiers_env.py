"""Which interface of verifiers is used, and what a rollout without a reward is."""

import asyncio
import sys
import types

import pytest
from tests.build import make_rollout

from ludus.compat.verifiers_env import VerifiersEnv, find_interface
from ludus.errors import ConfigError, VerifierError
from ludus.types import StopReason


@pytest.mark.parametrize(("version", "interface"), [("0.1.14", "v0"), ("0.1.9.post3", "v0"), ("0.4.0", "v1")])
def test_the_release_decides_the_interface(version: str, interface: str):
    assert find_interface(version) == interface


@pytest.mark.parametrize("version", ["0.3.1", "0.5.0", "1.0", "unknown"])
def test_another_release_is_refused_with_those_that_fit(version: str):
    with pytest.raises(ConfigError, match=rf"verifiers {version} is installed.*0\.1\.14.*0\.4\.0"):
        find_interface(version)


def test_without_the_package_the_error_names_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "verifiers", None)
    with pytest.raises(ConfigError, match=r"pip install 'verifiers==0\.1\.14'"):
        list(VerifiersEnv(id="x").tasks("test"))


def test_splits_are_refused_where_environments_have_their_own(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "verifiers", types.SimpleNamespace(__version__="0.1.14"))
    with pytest.raises(ConfigError, match=r"env\.splits is for tasksets"):
        list(VerifiersEnv(id="x", splits={"test": {}}).tasks("test"))


@pytest.mark.parametrize(
    ("stop", "words"), [(StopReason.TIMEOUT, r"limits\.rollout_seconds"), (StopReason.FINISHED, "VerifiersActor")]
)
def test_a_rollout_without_a_reward_is_no_zero(stop: StopReason, words: str):
    with pytest.raises(VerifierError, match=words):
        asyncio.run(VerifiersEnv(id="x").verify(make_rollout(stop=stop), None))
