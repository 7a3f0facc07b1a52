"""The toolsets of Hermes by its names."""

from typing import Any

import pytest

from ludus.errors import ConfigError
from ludus.tools.toolsets import BUILTIN

pytest.importorskip("pydantic")

from ludus.compat.hermes_env.hermes_config import HermesAgentEnvConfig
from ludus.compat.hermes_env.hermes_tools import choose_tools, list_schemas, list_usable, map_toolset


def choose(seed: int = 0, **fields: Any) -> tuple[str, ...]:
    return choose_tools(HermesAgentEnvConfig(**fields), BUILTIN, seed)


@pytest.mark.parametrize(
    ("name", "here"),
    [
        ("terminal", "terminal"),
        ("terminal_tools", "terminal"),
        ("code_execution", "code"),
        ("image_tools", "image_gen"),
    ],
)
def test_names_of_hermes(name: str, here: str):
    assert map_toolset(name) == here


def test_named_toolsets_without_those_that_are_disabled():
    assert choose(enabled_toolsets=["terminal_tools", "file"]) == ("terminal", "file")
    assert choose(enabled_toolsets=["terminal", "file"], disabled_toolsets=["file", "of_another_system"]) == (
        "terminal",
    )


@pytest.mark.parametrize("enabled", [["all"], ["*"]])
def test_all_toolsets_need_all_that_they_need(enabled: list[str]):
    usable = list_usable(BUILTIN)
    assert {"terminal", "file"} <= set(usable)
    closed = [name for name in usable if BUILTIN.get(name).missing]
    assert set(choose(enabled_toolsets=enabled, disabled_toolsets=closed)) == set(usable) - set(closed)


@pytest.mark.parametrize("name", ["no_such_toolset", "moa"])
def test_a_toolset_that_cannot_be_used_is_refused(name: str):
    with pytest.raises(ConfigError, match=name):
        choose(enabled_toolsets=[name])


def test_a_distribution_draws_the_same_toolsets_for_a_seed():
    drawn = [choose(seed, distribution="development", disabled_toolsets=["web"]) for seed in range(20)]
    assert drawn == [choose(seed, distribution="development", disabled_toolsets=["web"]) for seed in range(20)]
    assert len(set(drawn)) > 1 and not any("web" in each for each in drawn)


def test_schemas_are_in_the_form_of_openai():
    schemas = list_schemas(BUILTIN, ("terminal",))
    assert {schema["type"] for schema in schemas} == {"function"}
    terminal = next(schema["function"] for schema in schemas if schema["function"]["name"] == "terminal")
    assert "command" in terminal["parameters"]["properties"] and terminal["description"]
