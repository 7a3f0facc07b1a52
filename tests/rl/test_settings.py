import msgspec
import pytest

from ludus.config import load
from ludus.errors import ConfigError
from ludus.rl.settings import RlSettings


@pytest.mark.parametrize(("name", "value"), [("groups", "0"), ("staleness", "-1"), ("scale", "mean")])
def test_a_value_out_of_range_is_refused_by_name(name: str, value: str):
    with pytest.raises(ConfigError, match=rf"rl\.{name}"):
        load(flags=[(f"rl.{name}", value)])


def test_a_resumed_run_may_have_more_steps_and_no_other_groups():
    assert "steps" in RlSettings.may_change
    assert not {"groups", "group_size", "staleness", "seed"} & set(RlSettings.may_change)
    assert {field.name for field in msgspec.structs.fields(RlSettings)} >= set(RlSettings.may_change)
