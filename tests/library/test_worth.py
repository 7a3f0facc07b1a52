"""The worth of one skill: pairs, intervals, prices and verdicts."""

from typing import Any

import pytest
from tests.library_kit import GOOD, make_readings

from ludus.library.readings import LibraryReading, TrialKey
from ludus.library.worth import choose_level, judge_skill, list_pairs, pair_readings
from ludus.library_settings import LibrarySettings
from ludus.skill_library import make_package

PACKAGE = make_package(GOOD)
NAME = PACKAGE.name
TASKS = [f"t{number}" for number in range(30)]


def judge(with_it: dict[str, list[float | None]], without: dict[str, list[float | None]], **settings: Any):
    full = make_readings(with_it, [NAME], read_tokens={NAME: 100})
    return judge_skill(PACKAGE, full, make_readings(without, tokens=40), 0.99, LibrarySettings(**settings))


def test_pairs_are_compared_task_by_task_and_lost_ones_are_counted():
    full = make_readings({"a": [1.0, 1.0], "b": [1.0, 0.0], "c": [1.0]})
    without = make_readings({"a": [0.0, None], "b": [0.0, 0.0]}, tokens=40)
    worth = pair_readings(full, without, 0.95)
    assert (worth.tasks, worth.pairs, worth.lost, worth.tokens) == (2, 3, 1, 60.0)
    assert worth.difference == pytest.approx((1.0 + 0.5) / 2)  # each task counts alike
    assert worth.interval is None, "two tasks are too few"


def test_only_rollouts_that_loaded_it_and_have_a_score_are_run_again():
    full = make_readings({"a": [1.0, None]}, [NAME]) | make_readings({"b": [1.0]}, ["other"])
    assert list_pairs(full, NAME) == [TrialKey("a", 0)]
    assert list_pairs(full, NAME, "other") == [TrialKey("a", 0), TrialKey("b", 0)]


@pytest.mark.parametrize(
    ("gain", "verdict"), [(0.4, "helps"), (-0.4, "hurts"), (0.0, "below its price"), (0.05, "not enough evidence")]
)
def test_the_verdict_is_that_of_the_interval_for_all_skills(gain: float, verdict: str):
    wobble = [0.15, -0.15]
    with_it = {task: [0.5 + gain + wobble[n % 2]] for n, task in enumerate(TASKS)}
    found = judge(with_it, {task: [0.5] for task in TASKS}, least=0.1)
    assert found.verdict == verdict and found.worth is not None and found.worth.interval is not None
    assert found.worth.sure is not None and found.worth.sure.low <= found.worth.interval.low


def test_a_small_gain_below_the_price_of_a_long_text_is_below_its_price():
    with_it = {task: [0.55 + 0.02 * (n % 2)] for n, task in enumerate(TASKS)}
    without: dict[str, list[float | None]] = {task: [0.5] for task in TASKS}
    assert judge(with_it, without, least=0.02).verdict == "helps"
    found = judge(with_it, without, least=0.02, per_1000_tokens=1.0)
    assert found.verdict == "below its price" and found.price == pytest.approx(0.11, abs=0.02)


def test_few_tasks_give_no_verdict():
    found = judge({"a": [1.0] * 9, "b": [1.0] * 9}, {"a": [0.0] * 9, "b": [0.0] * 9})
    assert found.verdict == "not enough evidence" and "6 is the least" in found.sentence


def test_equal_rollouts_are_not_taken_for_certainty():
    same: dict[str, list[float | None]] = {f"t{n}": [1.0] for n in range(8)}
    found = judge(same, same)
    assert found.verdict == "not enough evidence" and found.worth is not None and found.worth.interval is not None
    assert found.worth.interval.high > 0.2


def test_never_loaded_is_not_the_same_as_not_seen_or_hardly_run():
    def look(rollouts: int, unknown: int) -> str:
        full = make_readings({f"t{n}": [1.0] for n in range(rollouts - unknown)})
        full |= make_readings({f"u{n}": [1.0] for n in range(unknown)}, unknown=frozenset({NAME}))
        return judge_skill(PACKAGE, full, {}, 0.95, LibrarySettings()).verdict

    assert look(100, 0) == "never loads"
    assert look(100, 5) == "never loads"
    assert look(100, 6) == "not known"
    assert look(100, 100) == "not known"
    assert look(19, 0) == "not enough evidence"


def test_a_description_is_paid_for_in_the_rollouts_that_do_not_load_it():
    rare = make_readings({"a": [1.0]}, [NAME], read_tokens={NAME: 100})
    rare |= make_readings({f"t{n}": [1.0] for n in range(99)})
    found = judge_skill(PACKAGE, rare, {}, 0.95, LibrarySettings(least=0.0, per_1000_tokens=1.0))
    assert found.read_tokens == 100 and found.price == pytest.approx((100 + 100 * found.description_tokens) / 1000)


def test_who_was_loaded_instead():
    full = make_readings({"a": [1.0], "b": [1.0]}, [NAME])
    without = make_readings({"a": [1.0]}, ["other"]) | make_readings({"b": [1.0]})
    assert judge_skill(PACKAGE, full, without, 0.95, LibrarySettings()).instead == {"other": 0.5}


def test_more_skills_need_more_confidence():
    assert choose_level(1) == pytest.approx(0.95)
    assert choose_level(10) == pytest.approx(0.995)
    assert choose_level(0) == pytest.approx(0.95)


def test_scores_outside_of_0_to_1_widen_the_range():
    full = {k: r._replace(score=5.0) for k, r in make_readings({t: [1.0] for t in TASKS}).items()}
    worth = pair_readings(full, make_readings({t: [0.0] for t in TASKS}), 0.95)
    assert worth.difference == 5.0 and worth.interval is not None and worth.interval.high >= 5.0


def test_readings_are_values():
    assert LibraryReading(TrialKey("a", 0), "", None, 0) == LibraryReading(TrialKey("a", 0), "", None, 0)
