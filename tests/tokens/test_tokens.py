"""Models that report exact ids are found without importing what others do not need."""

import subprocess
import sys

import pytest

from ludus.models import find_capability
from ludus.models.ledger import Ledger, MeteredModel
from ludus.models.openai import ChatModel
from ludus.models.scripted import ScriptedModel
from ludus.models.settings import OpenAISettings
from ludus.tokens import ExactModel, find_token_model
from ludus.tokens.capture import Capture, CapturedChatModel
from ludus.tokens.model import TokenModel
from ludus.tokens.session import TokenSession
from ludus.tokens.toy_engine import ToyEngine

SETTINGS = OpenAISettings(base_url="http://127.0.0.1:9/v1", name="toy")


@pytest.fixture
def exact(tokens) -> TokenModel:
    codec = tokens.codec()
    return TokenModel(ToyEngine(codec.tokenizer, []), codec)


def test_a_token_model_is_found_in_every_wrapper(exact: TokenModel):
    metered = MeteredModel(MeteredModel(exact, Ledger(), "a"), Ledger(), "b")
    for model in (exact, metered):
        assert find_capability(model, ExactModel) is find_token_model(model) is exact
    assert isinstance(exact.make_tree(), TokenSession)


def test_a_server_that_renders_itself_is_exact_but_no_token_model():
    captured = CapturedChatModel(SETTINGS)
    metered = MeteredModel(captured, Ledger(), "agent")
    assert find_capability(metered, ExactModel) is captured and find_token_model(metered) is None
    assert captured.codec is None and isinstance(captured.make_tree(), Capture)


@pytest.mark.parametrize("model", [ScriptedModel(["ok"]), ChatModel(SETTINGS)], ids=["scripted", "chat"])
def test_chat_models_are_not_exact(model: ScriptedModel | ChatModel):
    assert find_capability(MeteredModel(model, Ledger(), "agent"), ExactModel) is None
    assert find_token_model(model) is None


@pytest.mark.parametrize("module", ["ludus.gateway.service", "ludus.config.token_mode", "ludus.tokens.capture"])
def test_without_the_extra_chat_models_are_served(module: str):
    program = f"""
import sys
sys.modules |= dict.fromkeys(("jinja2", "tokenizers"))  # not installed
import {module}
from ludus.gateway.model_calls import ModelCaller
from ludus.models.scripted import ScriptedModel
assert ModelCaller(ScriptedModel(["ok"])).make_tree() is None
"""
    subprocess.run([sys.executable, "-c", program], check=True)
