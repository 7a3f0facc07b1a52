"""The settings of training: mistakes are found before a run, and the run's identity has what decides the result."""

from typing import Any

import pytest
from msgspec.structs import replace

from ludus.errors import ConfigError
from ludus.reflact.gate import Gate
from ludus.reflact.train_settings import TrainSettings, check_settings


def test_the_defaults_are_valid():
    assert check_settings(TrainSettings()) == TrainSettings()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"edit_budget": 1}, "train.min_edit_budget is 2, more than train.edit_budget: set it to at most 1"),
        ({"epochs": -1}, "train: .*epochs"),
        ({"batch_size": "many"}, "train: .*batch_size"),
        ({"schedule": "steep"}, "train: .*steep"),
        ({"merge_batch_size": 1}, "train: .*merge_batch_size"),
        ({"max_failed": 1.5}, "train: .*max_failed"),
        ({"gate": Gate(mixed_weight=2.0)}, "train: .*mixed_weight"),
    ],
)
def test_a_mistake_is_refused_with_the_name_of_the_setting(change: dict[str, Any], says: str):
    with pytest.raises(ConfigError, match=says):
        check_settings(replace(TrainSettings(), **change))


def test_the_identity_has_the_settings_that_decide_the_result():
    plain = TrainSettings().identity
    assert replace(TrainSettings(), seed=1).identity != plain
    assert replace(TrainSettings(), gate=Gate(margin=0.1)).identity != plain
    for change in ({"proposer": "exemplars"}, {"prompts": "mine"}):  # hashed separately
        assert replace(TrainSettings(), **change).identity == plain
