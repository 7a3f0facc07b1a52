import msgspec
import pytest

from ludus.config import load
from ludus.config.secrets import list_secrets
from ludus.errors import ConfigError
from ludus.rl.tinker_settings import TinkerSettings


def test_the_trainer_is_chosen_by_its_type():
    config = load(flags=[("trainer.type", "tinker"), ("trainer.base_model", "m"), ("trainer.loss", "ppo")])
    assert config.trainer == TinkerSettings(base_model="m", loss="ppo")


def test_an_unknown_loss_is_refused():
    with pytest.raises(ConfigError, match=r"trainer\.loss"):
        load(flags=[("trainer.type", "tinker"), ("trainer.loss", "dpo")])


def test_an_address_may_change_when_a_run_is_resumed_and_a_rank_may_not():
    assert {"base_url", "api_key_var"} <= set(TinkerSettings.may_change)
    assert not {"base_model", "lora_rank", "loss"} & set(TinkerSettings.may_change)
    assert {field.name for field in msgspec.structs.fields(TinkerSettings)} >= set(TinkerSettings.may_change)


@pytest.mark.parametrize(
    ("flags", "secrets"),
    [
        ((), ("tml-hosted",)),
        ((("trainer.base_url", "http://127.0.0.1:1"),), ()),
        ((("trainer.api_key_var", "MINE"),), ("tml-mine",)),
    ],
)
def test_the_key_is_known_for_masking(monkeypatch, flags, secrets):
    monkeypatch.setenv("TINKER_API_KEY", "tml-hosted")
    monkeypatch.setenv("MINE", "tml-mine")
    assert list_secrets(load(flags=[("trainer.type", "tinker"), *flags])) == secrets


@pytest.mark.parametrize("name", ["api_key_var", "base_url"])
def test_a_key_in_a_setting_is_refused_and_not_repeated(name):
    words = {"api_key_var": "tml-SECRET", "base_url": "http://me:SECRET@host"}[name]
    with pytest.raises(ConfigError) as raised:
        load(flags=[("trainer.type", "tinker"), (f"trainer.{name}", words)])
    assert f"trainer.{name}" in str(raised.value) and "SECRET" not in str(raised.value)
