"""The settings of the agent."""

import msgspec
import pytest

from ludus.agent_settings import AgentSettings, HarnessSettings
from ludus.config import load
from ludus.errors import ConfigError


def test_by_default_the_loop_acts_and_a_skill_is_text():
    found = load().agent
    assert found == AgentSettings()
    assert (found.harness, found.skill_as, found.examples_as) == ("", "text", "text")


def test_what_a_harness_does_not_name_stays_as_it_is():
    found = msgspec.convert({"harnesses": {"codex": {"model": "small"}}}, AgentSettings).harnesses["codex"]
    assert found == HarnessSettings(model="small")
    assert (found.command, found.skills, found.env, found.mounts) == (None, None, {}, {})


@pytest.mark.parametrize(("name", "words"), [("agent.skill_as", "page"), ("agent.examples_as", "page")])
def test_other_forms_are_refused_with_what_there_is(name: str, words: str):
    with pytest.raises(ConfigError, match=rf"{name}: expected one of .*text"):
        load(flags=[(name, words)])


def test_an_unknown_setting_of_a_harness_is_refused():
    with pytest.raises(ConfigError, match=r"agent\.harnesses\.mine\.comand"):
        load(flags=[("agent.harnesses.mine.comand", "x")])
