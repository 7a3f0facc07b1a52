"""Models made of settings."""

from pathlib import Path
from typing import ClassVar

import pytest
from tests.config_kit import SERVER, find_problem, write_text

from ludus.config import load
from ludus.config.build_models import build_judges, build_ledger, build_model, build_models, build_vision
from ludus.config.secrets import list_secrets
from ludus.config.tree import Config
from ludus.env import Env
from ludus.errors import BudgetExhausted, ConfigError, ModelError
from ludus.models import StartableModel
from ludus.models.ledger import MeteredModel, find_price
from ludus.models.reply_pieces import PieceStream
from ludus.models.server import Price
from ludus.models.settings import OpenAISettings
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
class Able(Base):
    from ludus.models.server import Price
    price = Price(prompt=2.0)
    async def complete(self, messages, tools, sampling): return Completion(Message("assistant", "whole"))
    async def stream(self, messages, tools, sampling, reply_stream): return Completion(Message("assistant", "streamed"))
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
async def test_whatever_goes_wrong_in_a_model_of_the_user_is_a_model_error(tmp_path: Path, name: str, message: str):
    with pytest.raises(ModelError) as caught:
        await build_own(tmp_path, name).complete([], [], Sampling())
    assert str(caught.value) == message
    assert caught.value.retryable == (name == "Raises")


async def test_errors_of_ludus_pass_through_a_model_of_the_user(tmp_path: Path):
    with pytest.raises(BudgetExhausted, match="spent"):
        await build_own(tmp_path, "Spent").complete([], [], Sampling())


def test_a_constructor_of_a_model_that_fails_names_the_setting(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"^model\.type: Fails could not be made: OSError: no server"):
        build_own(tmp_path, "Fails")


async def test_a_model_of_the_user_that_prepares_is_started(tmp_path: Path):
    model = build_own(tmp_path, "Starts").inner
    assert isinstance(model, StartableModel)
    await model.start()
    assert (await model.complete([], [], Sampling())).message.content == "True"
    assert not isinstance(build_own(tmp_path, "Words").inner, StartableModel)


async def test_what_a_model_of_the_user_can_do_is_found(tmp_path: Path):
    model = build_own(tmp_path, "Able")
    assert find_price(model) == Price(prompt=2.0)
    assert (await model.stream([], [], Sampling(), PieceStream())).message.content == "streamed"
    assert (await build_own(tmp_path, "Starts").stream([], [], Sampling(), PieceStream())).message.content == "False"
    assert find_price(build_own(tmp_path, "Starts")) == Price()


# ---- budgets in dollars ---------------------------------------------------------------------------------------------

JUDGED = [("judge.base_url", "http://h/v1"), ("judge.name", "j")]
SEEN = [("vision.base_url", "http://h/v1"), ("vision.name", "v")]
PRICED = ("model.price.completion", "2")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "budget.dollars: what model m costs is not known"),
        ([("model.mode", "token"), ("model.price.reported", "true")], "--model.price.prompt"),
        ([PRICED, ("optimizer.base_url", "http://h/v1"), ("optimizer.name", "o")], "--optimizer.price.prompt"),
        ([PRICED, *JUDGED], "what judge j costs"),
        ([PRICED, *SEEN], "what vision v costs"),
    ],
)
def test_a_budget_in_dollars_asks_for_the_price_of_every_model(
    monkeypatch: pytest.MonkeyPatch, flags: list[tuple[str, str]], words: str
):
    def build(*more: tuple[str, str]) -> None:
        settings = load([], [*SERVER, *flags, *more])
        ledger = build_ledger(settings)
        build_models(settings, ledger)
        build_judges(settings, GradedEnv(), ledger) if settings.judge != Config().judge else None
        build_vision(settings, ledger)

    monkeypatch.setattr("ludus.config.token_mode.build_server_model", lambda model, *_: Priced(model))
    build()
    with pytest.raises(ConfigError) as caught:
        build(("budget.dollars", "1"))
    assert words in str(caught.value) and "--budget.tokens" in str(caught.value)


class GradedEnv(Env, frozen=True):
    graded: ClassVar[bool] = True


class Priced:
    """In place of a token model, whose tokenizer is not there."""

    def __init__(self, settings: OpenAISettings) -> None:
        self.name, self.price = settings.name, settings.price


@pytest.mark.parametrize(
    "flags",
    [
        [*SERVER, PRICED],
        [*SERVER, ("model.price.prompt", "0")],
        [*SERVER, ("model.price.reported", "true")],
        [("model.type", "embedded")],
        [("model.type", "scripted"), ("model.script", "tests.config_kit:load")],
    ],
)
def test_a_price_may_be_given_be_nothing_or_come_with_each_reply(flags: list[tuple[str, str]]):
    settings = load([], [*flags, ("budget.dollars", "1")])
    build_model(settings.model, build_ledger(settings))


def test_the_limit_of_one_role_needs_only_the_price_of_that_role():
    flags = [*SERVER, ("optimizer.base_url", "http://h/v1"), ("optimizer.name", "o"), ("optimizer.price.prompt", "1")]
    settings = load([], [*flags, ("budget.optimizer.dollars", "1")])
    build_models(settings, build_ledger(settings))
    settings = load([], [*flags, ("budget.agent.dollars", "1")])
    with pytest.raises(ConfigError, match=r"^budget\.agent\.dollars: what model m costs"):
        build_models(settings, build_ledger(settings))
    settings = load([], [*SERVER, ("budget.optimizer.dollars", "1")])  # the agent's own model
    with pytest.raises(ConfigError, match=r"^budget\.optimizer\.dollars: what model m costs"):
        build_models(settings, build_ledger(settings))


def test_a_model_of_the_user_says_its_price_in_its_class(tmp_path: Path):
    own = write_text(tmp_path, OWN, "own.py")
    for name, known in (("Able", True), ("Starts", False)):
        settings = load([], [("model.type", f"{own}:{name}"), ("budget.dollars", "1")])
        if known:
            build_model(settings.model, build_ledger(settings))
            continue
        with pytest.raises(ConfigError, match="an attribute `price = "):
            build_model(settings.model, build_ledger(settings))
