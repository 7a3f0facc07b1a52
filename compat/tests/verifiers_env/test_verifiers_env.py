"""Which interface of verifiers is used, and what a rollout without a reward is."""

import sys
import types
from pathlib import Path

import pytest
from tests.build import make_rollout

from ludus.compat.verifiers_env import VerifiersEnv, add_results, choose_interface, is_v0_environment
from ludus.errors import ConfigError, VerifierError
from ludus.types import Call, Completion, Message, StopReason, ToolResult, Turn


@pytest.mark.parametrize(
    ("version", "interface"), [("0.1.14", "v0"), ("0.1.9.post3", "v0"), ("0.4.0", "v1"), ("", "standin")]
)
def test_the_release_decides_the_interface(version: str, interface: str):
    assert choose_interface(version, "no-such-env") == interface


@pytest.mark.parametrize("version", ["0.3.1", "0.5.0", "1.0", "unknown"])
def test_another_release_is_refused_with_the_one_that_fits(version: str):
    with pytest.raises(ConfigError, match=rf"verifiers {version} is installed.*0\.4\.0"):
        choose_interface(version, "no-such-env")


def test_an_environment_of_0_1_needs_no_package_and_runs_beside_a_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "old_env_b.py").write_text("import verifiers as vf\ndef load_environment(): ...\n")
    (tmp_path / "new_taskset_b.py").write_text("import verifiers.v1 as vf\n")
    assert is_v0_environment("old-env-b") and is_v0_environment("owner/old-env-b") and is_v0_environment("m:Class")
    assert not is_v0_environment("new-taskset-b") and not is_v0_environment("no-such-env")
    assert choose_interface("0.4.0", "old-env-b") == "standin"
    assert choose_interface("0.4.0", "new-taskset-b") == "v1"


def test_splits_are_refused_where_environments_have_their_own(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "verifiers", types.SimpleNamespace(__version__="0.1.14"))
    with pytest.raises(ConfigError, match=r"env\.splits is for tasksets"):
        list(VerifiersEnv(id="x", splits={"test": {}}).tasks("test"))


@pytest.mark.parametrize(
    ("stop", "words"), [(StopReason.TIMEOUT, r"limits\.rollout_seconds"), (StopReason.FINISHED, "agent must be")]
)
async def test_a_rollout_without_a_reward_is_no_zero(stop: StopReason, words: str):
    with pytest.raises(VerifierError, match=words):
        await VerifiersEnv(id="x").verify(make_rollout(stop=stop), None)


def test_results_that_no_request_has_are_added():
    first, second = Call("c1", "look", "{}"), Call("c2", "submit", "{}")
    turn = Turn(Completion(Message("assistant", calls=(first, second))), (ToolResult(first, "seen"),))
    (found,) = add_results([turn], {"c1": "other", "c2": "thanks", "c3": "nobody's"})
    assert [(result.call.name, result.content) for result in found.results] == [("look", "seen"), ("submit", "thanks")]
    assert add_results([turn], {}) == (turn,)
