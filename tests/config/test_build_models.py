"""Models made of settings."""

import asyncio
from pathlib import Path

import pytest
from tests.config_kit import SERVER, find_problem, write_text

from ludus.config import load
from ludus.config.build_models import build_ledger, build_model, build_models
from ludus.config.secrets import list_secrets
from ludus.config.tree import Config
from ludus.errors import BudgetExhausted, ConfigError, ModelError
from ludus.models import StartableModel
from ludus.models.ledger import MeteredModel
from ludus.types import Sampling


def test_no_key_is_needed_where_none_is_named():
    model = build_model(load([], SERVER).model, build_ledger(Config()))
    assert model.name == "m"


@pytest.mark.parametrize("value", [None, "", "  "])
def test_a_missing_key_variable_names_it_the_field_and_the_fix(monkeypatch: pytest.MonkeyPatch, value: str | None):
    monkeypatch.delenv("MY_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("MY_KEY", value)
    settings = load([], [*SERVER, ("model.api_key_var", "MY_KEY")])
    with pytest.raises(ConfigError) as caught:
        build_model(settings.model, build_ledger(settings))
    for word in ("model.api_key_var", "MY_KEY", "export MY_KEY=", "not set or empty"):
        assert word in str(caught.value)


def test_anthropic_and_azure_need_a_key_by_default(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    settings = load([], [("model.type", "anthropic"), ("model.name", "m")])
    with pytest.raises(ConfigError, match="ANTHROPIC_API_KEY"):
        build_model(settings.model, build_ledger(settings))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([("model.name", "m")], "model.base_url: which server?"),
        ([("model.base_url", "http://h/v1")], "model.name: which model?"),
        ([("model.base_url", "h:80/v1"), ("model.name", "m")], "should start with http:// or https://"),
        ([("model.type", "scripted")], "model.script: which function?"),
        ([("model.type", "scripted"), ("model.script", "math:pi")], "neither a function nor a list"),
    ],
)
def test_a_model_that_cannot_be_built_names_the_setting(flags: list[tuple[str, str]], message: str):
    settings = load([], flags)
    with pytest.raises(ConfigError) as caught:
        build_model(settings.model, build_ledger(settings))
    assert message in str(caught.value)


def test_every_kind_of_model_can_be_built(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KEY", "some-key-value")
    for kind in ("openai", "azure", "anthropic"):
        settings = load([], [*SERVER, ("model.type", kind), ("model.api_key_var", "KEY")])
        assert build_model(settings.model, build_ledger(settings)).name == "m"
    script = load([], [("model.type", "scripted"), ("model.script", "ludus.models.scripted:say")])
    assert build_model(script.model, build_ledger(script)).name == "scripted"


def test_the_optimizer_s_key_is_masked_and_its_problems_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPTIMIZER_KEY", "sk-optimizer-secret")
    flags = [("optimizer.name", "o"), ("optimizer.api_key_var", "OPTIMIZER_KEY")]
    assert list_secrets(load([], flags)) == ("sk-optimizer-secret",)
    with pytest.raises(ConfigError, match=r"optimizer\.base_url: which server"):
        build_models(load([], flags), build_ledger(Config()))
    assert "optimizer.headers.Authorization" in find_problem(optimizer__headers__Authorization="Bearer SECRET")


@pytest.mark.parametrize("path", sorted((Path(__file__).parents[2] / "configs").glob("*.yaml")), ids=lambda p: p.name)
def test_every_example_loads_and_builds(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-a-real-key")
    found = load([path])
    assert build_model(found.model, build_ledger(found)).name


OWN = """
from ludus.errors import BudgetExhausted, ModelError
from ludus.types import Completion, Message

class Base:
    name = "mine"
    async def close(self): pass
class Words(Base):
    async def complete(self, messages, tools, sampling): return "words"
class Half(Base):
    async def complete(self, messages, tools, sampling): return Completion("words")
class Raises(Base):
    async def complete(self, messages, tools, sampling): raise KeyError("reply")
class Spent(Base):
    async def complete(self, messages, tools, sampling): raise BudgetExhausted("spent")
class Fails(Base):
    def __init__(self): raise OSError("no server")
    async def complete(self, messages, tools, sampling): pass
class Starts(Base):
    started = False
    async def start(self): self.started = True
    async def complete(self, messages, tools, sampling): return Completion(Message("assistant", str(self.started)))
"""


def build_own(folder: Path, name: str) -> MeteredModel:
    settings = load([], [("model.type", f"{write_text(folder, OWN, 'own.py')}:{name}")])
    model = build_model(settings.model, build_ledger(settings))
    assert isinstance(model, MeteredModel)
    return model


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Words", "Words.complete returned str, not a Completion"),
        ("Half", "Half.complete returned a Completion of str, not of a Message"),
        ("Raises", "Raises.complete raised: KeyError: 'reply' (own.py, line 13)"),
    ],
)
def test_whatever_goes_wrong_in_a_model_of_the_user_is_a_model_error(tmp_path: Path, name: str, message: str):
    with pytest.raises(ModelError) as caught:
        asyncio.run(build_own(tmp_path, name).complete([], [], Sampling()))
    assert str(caught.value) == message
    assert caught.value.retryable == (name == "Raises")


def test_errors_of_ludus_pass_through_a_model_of_the_user(tmp_path: Path):
    with pytest.raises(BudgetExhausted, match="spent"):
        asyncio.run(build_own(tmp_path, "Spent").complete([], [], Sampling()))


def test_a_constructor_of_a_model_that_fails_names_the_setting(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"^model\.type: Fails could not be made: OSError: no server"):
        build_own(tmp_path, "Fails")


def test_a_model_of_the_user_that_prepares_is_started(tmp_path: Path):
    model = build_own(tmp_path, "Starts").model
    assert isinstance(model, StartableModel)
    asyncio.run(model.start())
    assert asyncio.run(model.complete([], [], Sampling())).message.content == "True"
    assert not isinstance(build_own(tmp_path, "Words").model, StartableModel)
