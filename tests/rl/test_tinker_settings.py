import msgspec
import pytest

from ludus.config import load
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
