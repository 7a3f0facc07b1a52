import msgspec
import pytest

from ludus.config import load
from ludus.errors import ConfigError
from ludus.rl.grpo_settings import TINY, GrpoSettings


def test_the_built_in_trainer_with_the_tiny_policy_is_the_default():
    assert load().trainer == GrpoSettings(weights=TINY)


@pytest.mark.parametrize(("name", "value"), [("clip_low", "0"), ("dtype", "float16"), ("lora_rank", "-1")])
def test_a_value_out_of_range_is_refused_by_name(name: str, value: str):
    with pytest.raises(ConfigError, match=rf"trainer\.{name}"):
        load(flags=[(f"trainer.{name}", value)])


def test_only_what_does_not_change_the_result_may_change_on_resume():
    assert set(GrpoSettings.may_change) == {"batch_tokens", "slots"}
    assert {field.name for field in msgspec.structs.fields(GrpoSettings)} >= set(GrpoSettings.may_change)
