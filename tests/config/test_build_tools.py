"""Toolsets made of settings."""

from pathlib import Path

import pytest

from ludus.config import load
from ludus.config.build_agent import build_env
from ludus.config.build_models import build_ledger, build_vision
from ludus.config.build_tools import build_distribution, open_registry
from ludus.errors import ConfigError
from ludus.tools.toolsets import BUILTIN


def test_distributions_by_name_and_in_the_settings():
    def found(*flags: tuple[str, str], env: str = "terminal-test"):
        settings = load([], [("env.name", env), *flags])
        return build_distribution(settings, build_env(settings), BUILTIN)

    own = found(("tools.distribution", "mine"), ("tools.distributions.mine", "{file: 50}"))
    assert own is not None and own.percent == (("file", 50.0),)
    assert found() is None
    with pytest.raises(ConfigError, match="exclude each other"):
        found(("tools.distribution", "safe"), ("tools.enabled", "file"))
    with pytest.raises(ConfigError, match="this run has none of its toolsets"):
        found(("tools.distribution", "safe"))
    with pytest.raises(ConfigError, match="toolset 'terminal' works in a sandbox"):
        found(("tools.distribution", "development"), env="gsm8k")


async def open_toolsets(*flags: tuple[str, str]) -> dict[str, list[str]]:
    """The tools of each toolset that a run with these settings can use without a slot."""

    config = load([], flags)
    async with open_registry(config.tools, build_vision(config, build_ledger(config))) as registry:
        leaves = [leaf for leaf in registry.toolsets if leaf.make and not leaf.needs_box]
        return {leaf.name: [tool.name for tool in leaf.make(None)] for leaf in leaves if leaf.make}


@pytest.mark.parametrize("name", ["moa", "image_gen", "browser", "vision"])
def test_what_is_not_there_is_refused_by_name(name: str):
    config = load([], [("tools.enabled", name)])
    with pytest.raises(ConfigError, match=f"toolset '{name}' cannot be used: "):
        BUILTIN.require_usable(config.tools.enabled or (), slot=True)


MIXTURE = """
from ludus.tools import tool

@tool
async def mixture(question: str) -> str:
    'Ask several models.'
    return '42'
"""


async def test_a_tool_of_the_users_own_takes_the_name(tmp_path: Path):
    (tmp_path / "mine.py").write_text(MIXTURE)
    assert (await open_toolsets(("tools.own.moa", f"{tmp_path}/mine.py:mixture")))["moa"] == ["mixture"]
    config = load([], [("tools.own.moa", f"{tmp_path}/mine.py:mixture"), ("tools.distribution", "reasoning")])
    assert config.tools.own["moa"].endswith("mine.py:mixture")
    with pytest.raises(ConfigError, match=r"tools\.own\.moa: there is no file"):
        await open_toolsets(("tools.own.moa", "nowhere.py:x"))


async def test_a_model_for_pictures_makes_the_toolset():
    assert "vision" not in await open_toolsets()
    assert (await open_toolsets(("vision.type", "scripted"), ("vision.script", "ludus.models.scripted:say")))[
        "vision"
    ] == ["vision_analyze"]


async def test_the_browser_needs_its_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install 'ludus-train"):
        await open_toolsets(("tools.browser.executable", "chromium"))
