"""Which rollout of a run the user means."""

import pytest
from tests.build import make_rollout, make_task

from ludus.command.rollout_choice import ListedRollout, find_listed, list_rollouts
from ludus.errors import ConfigError, StoreError
from ludus.types import Provenance

KEYS = {
    "1616c706861": ("alpha", 1),
    "0616c706861": ("alpha", 0),
    "0616c7068abe": ("alphabet", 0),
    "06f6464": ("odd#2", 0),
}
ROLLOUTS = [
    (key, make_rollout(1.0, "x", task=make_task(task), provenance=Provenance(policy="p", model="m", replicate=number)))
    for key, (task, number) in KEYS.items()
]
LISTED = list_rollouts(ROLLOUTS)


WORDS = [
    (f"{number}abcdef", make_rollout(1.0, "x", task=make_task(f"q{number}", text)))
    for number, text in enumerate(("Who wrote  Faust?", "Who wrote Emma?"))
]


def test_some_words_of_a_task_are_enough():
    listed = list_rollouts(WORDS)
    assert find_listed(listed, "who wrote faust").task == "q0"
    with pytest.raises(ConfigError, match="'who wrote' could be any of: q0, q1"):
        find_listed(listed, "who wrote")
    with pytest.raises(ConfigError, match="no rollout of a task 'Faust'"):
        find_listed(listed, "Faust")


def name(place: ListedRollout) -> tuple[str, int]:
    return place.task, place.replicate


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("alpha", ("alpha", 0)),
        ("alpha#2", ("alpha", 1)),
        ("alphab", ("alphabet", 0)),
        ("odd#2", ("odd#2", 0)),
        ("1616c706861", ("alpha", 1)),
        ("06f6464", ("odd#2", 0)),
    ],
)
def test_a_rollout_is_found_by_its_task_the_beginning_of_it_its_number_and_its_key(wanted: str, found: tuple[str, int]):
    assert name(find_listed(LISTED, wanted)) == found


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("alp", "'alp' could be any of: alpha, alphabet"),
        ("0616c7068", "'0616c7068' could be any of: 0616c706861, 0616c7068abe"),
        ("06f64", "no rollout of a task '06f64' in this run"),
        ("alpha#3", "task 'alpha' has 2 rollouts in this run, not 3"),
        ("beta", "no rollout of a task 'beta' in this run"),
    ],
)
def test_what_is_not_there_or_not_clear_is_said(wanted: str, message: str):
    with pytest.raises(ConfigError, match=message):
        find_listed(LISTED, wanted)


def test_a_run_without_rollouts():
    with pytest.raises(StoreError, match="no rollout has ended"):
        find_listed([], "alpha")
