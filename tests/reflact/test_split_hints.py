"""What is said about the splits of a run before it begins."""

import pytest

from ludus.reflact.split_hints import list_split_hints
from ludus.reflact.splits import Sizes
from ludus.reflact.train_settings import DataSettings, ShippingSettings, TrainSettings

TESTS = (
    "the test split has {} tasks: the interval of the claim will be wide. What helps: more rollouts, "
    "--train.test_replicates 8; more tasks"
)
FEW = "the run has {} selection tasks: only a large gain shows on so few (see `ludus headroom`). What helps: "


@pytest.mark.parametrize(
    ("data", "settings", "sizes", "hints"),
    [
        (DataSettings(), TrainSettings(), Sizes(60, 30, 210), []),
        (DataSettings(ratio="1:1:1"), TrainSettings(), Sizes(20, 20, 20), []),
        (
            DataSettings(),
            TrainSettings(),
            Sizes(10, 5, 5),
            [
                "20 tasks are divided 2:1:1: 10 to train, 5 for selection, 5 for the test. 2:1:7, as with many tasks, "
                "would leave 2 for selection; --data.ratio sets it",
                FEW.format(5) + "more tasks",
                TESTS.format(5),
            ],
        ),
        (
            DataSettings(ratio="2:1:7"),
            TrainSettings(recipe="reflact"),
            Sizes(6, 3, 21),
            [
                FEW.format(3) + "a larger share: --data.ratio 2:1:1; more rollouts: --train.selection_replicates 3; "
                "more tasks"
            ],
        ),
        (DataSettings(ratio="1:2:1"), TrainSettings(), Sizes(3, 5, 2), [FEW.format(5) + "more tasks", TESTS.format(2)]),
        (DataSettings(mode="splits"), TrainSettings(), Sizes(9, 9, 90), [FEW.format(9) + "more tasks"]),
    ],
)
def test_a_choice_is_told_and_a_ratio_that_is_in_use_is_not_suggested(
    data: DataSettings, settings: TrainSettings, sizes: Sizes, hints: list[str]
):
    assert list_split_hints(data, settings, sizes, sizes.selection) == hints


def test_a_part_of_the_selection_tasks_can_be_made_all_of_them():
    (hint,) = list_split_hints(DataSettings(mode="splits"), TrainSettings(selection_size=5), Sizes(9, 30, 90), 5)
    assert hint == FEW.format(5) + "all of them: --train.selection_size 0; more tasks"


def test_too_few_selection_tasks_come_with_a_way_to_have_more():
    ways = list_split_hints(DataSettings(ratio="2:1:7"), TrainSettings(), Sizes(2, 1, 17), 1)
    assert "the initial skill will stay" in ways[0]
    assert ways[1:] == ["for more selection tasks: a larger share: --data.ratio 2:1:1"]
    ways = list_split_hints(DataSettings(mode="splits"), TrainSettings(selection_size=2), Sizes(9, 30, 90), 2)
    assert ways[1:] == ["for more selection tasks: all of them: --train.selection_size 0"]
    assert len(list_split_hints(DataSettings(mode="splits"), TrainSettings(), Sizes(9, 2, 90), 2)) == 1
    sure = TrainSettings(shipping=ShippingSettings(certainty=1.0))
    (warning,) = list_split_hints(DataSettings(mode="splits"), sure, Sizes(60, 30, 210), 30)
    assert "train.shipping.certainty 1" in warning


def test_a_part_of_the_test_tasks_is_named_as_a_part():
    (hint,) = list_split_hints(DataSettings(mode="splits"), TrainSettings(test_size=4), Sizes(60, 30, 210), 30)
    assert hint.startswith("4 of 210 test tasks are used: the interval")
