"""The toolsets of Hermes by its names."""

from typing import Any

import pytest

from ludus.errors import ConfigError
from ludus.tools.toolsets import BUILTIN

pytest.importorskip("pydantic")

from ludus.compat.hermes_env.config import HermesAgentEnvConfig
from ludus.compat.hermes_env.tools import ChosenTools, choose_tools, list_schemas, list_usable, map_toolset


def choose(seed: int = 0, **fields: Any) -> ChosenTools:
    return choose_tools(HermesAgentEnvConfig(**fields), BUILTIN, seed)


@pytest.mark.parametrize(
    ("name", "here"),
    [
        ("terminal", ("terminal",)),
        ("terminal_tools", ("terminal",)),
        ("code_execution", ("code",)),
        ("image_tools", ("image_gen",)),
        ("safe", ("web", "vision", "image_gen")),
    ],
)
def test_names_of_hermes(name: str, here: tuple[str, ...]):
    assert map_toolset(name) == here


def test_named_toolsets_without_those_that_are_disabled():
    assert choose(enabled_toolsets=["terminal_tools", "file"]).toolsets == ("terminal", "file")
    left = choose(enabled_toolsets=["terminal", "file"], disabled_toolsets=["file", "memory", "hermes-cli"])
    assert left == ChosenTools(("terminal",)) and not left.notes


@pytest.mark.parametrize("enabled", [["all"], ["*"], None])
def test_all_are_those_that_can_be_used(enabled: list[str] | None):
    found = choose(enabled_toolsets=enabled)
    assert set(found.toolsets) == set(list_usable(BUILTIN)) >= {"terminal", "file"}
    assert not found.notes


def test_no_toolsets_are_no_tools():
    assert choose(enabled_toolsets=[]) == ChosenTools(())


@pytest.mark.parametrize("setting", ["enabled_toolsets", "disabled_toolsets"])
def test_a_toolset_that_neither_system_has_is_refused(setting: str):
    with pytest.raises(ConfigError, match=rf"env\.{setting}: unknown toolset 'fiel'; did you mean 'file'"):
        choose(**{setting: ["fiel"]})


@pytest.mark.parametrize("name", ["moa", "web", "memory", "hermes-cli"])
def test_a_toolset_that_cannot_be_used_is_left_out_with_a_note(name: str):
    found = choose(enabled_toolsets=["terminal", name])
    assert found.toolsets == ("terminal",)
    lacking = ("search", "extract") if name == "web" else (name,)
    assert found.skipped == lacking
    assert all(f"toolset '{each}' is left out" in note for each, note in zip(lacking, found.notes, strict=True))


def test_a_distribution_draws_the_same_toolsets_for_a_seed():
    sampled = [choose(seed, distribution="development", disabled_toolsets=["web"]) for seed in range(20)]
    assert sampled == [choose(seed, distribution="development", disabled_toolsets=["web"]) for seed in range(20)]
    assert len({each.toolsets for each in sampled}) > 1 and not any("web" in each.toolsets for each in sampled)
    assert sampled[0].skipped == ("moa", "web", "vision")
    with pytest.raises(ConfigError, match=r"env\.distribution: unknown distribution 'developmint'"):
        choose(distribution="developmint")


def test_schemas_are_in_the_form_of_openai():
    schemas = list_schemas(BUILTIN, ("terminal",))
    assert {schema["type"] for schema in schemas} == {"function"}
    terminal = next(schema["function"] for schema in schemas if schema["function"]["name"] == "terminal")
    assert "command" in terminal["parameters"]["properties"] and terminal["description"]
