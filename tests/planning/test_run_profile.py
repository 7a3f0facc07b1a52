"""What is read from the records of a run for a forecast."""

from pathlib import Path

import msgspec
import pytest
from tests.build import make_rollout, make_turn

from ludus.errors import ConfigError, StoreError
from ludus.planning.run_profile import (
    CALIBRATION,
    Calibration,
    RunTotals,
    ServerReading,
    draw_samples,
    find_saturation,
    make_sample,
    measure_spans,
    read_calibration,
    read_profile,
)
from ludus.planning.simulation import RolloutSample, TurnSample
from ludus.store import RunDir
from ludus.types import Call, Rollout, RolloutTimes, ToolResult, Turn, Usage


def make_timed_turn(seconds: float, *tools: float) -> Turn:
    results = [ToolResult(Call(str(n), "bash", "{}"), "ok", seconds=each) for n, each in enumerate(tools)]
    turn = make_turn("x", *results, usage=Usage(100, 20, 0, 0.5))
    return msgspec.structs.replace(turn, seconds=seconds)


def make_timed(began: float = 0.0, **phases: float) -> Rollout:
    turns = (make_timed_turn(3.0, 1.0), make_timed_turn(2.0))
    times = RolloutTimes(began, {"model": 4.0, "tool": 1.0, **phases})
    return make_rollout(1.0, *turns, seconds=6.0, times=times)


def test_a_sample_has_the_phases_and_the_turns():
    found = make_sample(make_timed(slot=0.5, setup=0.25, verify=2.0))
    assert found.size > 100
    assert msgspec.structs.replace(found, size=0) == RolloutSample(
        0.5, 0.25, (TurnSample(2.0, 20, 1.0), TurnSample(2.0, 20, 0.0)), 2.0
    )


def test_time_that_nothing_accounts_for_is_time_on_the_node():
    assert make_sample(make_timed(agent=7.0, verify=1.0)).verify == 8.0


def test_calls_side_by_side_take_no_longer_than_their_turn():
    found = make_sample(make_rollout(1.0, make_timed_turn(3.0, 2.0, 2.0)))
    assert found.turns == (TurnSample(0.0, 20, 3.0),)


def test_a_rollout_of_an_earlier_version_has_its_setup():
    found = make_sample(msgspec.structs.replace(make_timed(), times=None))
    assert (found.slot, found.setup, found.verify) == (0.0, 1.0, 0.0)


@pytest.mark.parametrize(
    ("spans", "seconds"),
    [([], 0.0), ([(0, 2), (1, 3)], 3.0), ([(10, 12), (0, 2)], 4.0), ([(0, 9), (1, 2), (8, 10)], 10.0)],
)
def test_pauses_are_not_counted(spans: list[tuple[float, float]], seconds: float):
    assert measure_spans(spans) == seconds


@pytest.mark.parametrize(
    ("low", "high", "found"),
    [
        (ServerReading(4, 400), ServerReading(16, 1500), None),
        (ServerReading(4, 400), ServerReading(16, 450), 450),
        (ServerReading(4, 400), ServerReading(6, 400), None),  # too few more calls to tell
        (None, ServerReading(16, 400), None),
        (ServerReading(0, 0), ServerReading(16, 400), None),
    ],
)
def test_a_server_is_saturated_if_more_calls_give_no_more_tokens(low: object, high: object, found: float | None):
    assert find_saturation(low, high) == found  # pyright: ignore[reportArgumentType]


def test_totals_are_those_of_the_time_in_which_something_ran():
    totals = RunTotals()
    for began in (0.0, 1.0, 100.0):
        totals.add(make_timed(began, verify=1.0))
    assert (totals.rollouts, totals.seconds, totals.usage.tokens) == (3, 13.0, 720)
    reading = totals.read_server()
    assert reading is not None and (reading.calls, reading.tokens) == (12 / 13, 120 / 13)


def test_samples_are_drawn_with_the_seed():
    rollouts = [make_rollout(float(n)) for n in range(100)]
    assert draw_samples(rollouts, 200, 0) == rollouts
    drawn = draw_samples(rollouts, 10, 0)
    assert len({id(each) for each in drawn}) == 10
    assert drawn == draw_samples(iter(rollouts), 10, 0) != draw_samples(rollouts, 10, 1)


def test_a_profile_leaves_out_what_ran_with_fewer_at_once(tmp_path: Path):
    with RunDir.open(tmp_path, {}) as run:
        for n in range(6):
            run.put(str(n), make_timed(slot=float(n)))
        run.put("failed", make_rollout(None))
        run.write(CALIBRATION, msgspec.json.encode(Calibration(first=2, core_seconds=0.5)))
        found = read_profile(run)
    assert sorted(sample.slot for sample in found.samples) == [0.0, 2.0, 3.0, 4.0, 5.0]
    assert (found.failed, found.untimed, found.calibration.core_seconds) == (1, 1, 0.5)
    assert (found.tokens, found.dollars) == (4 * 240 / 5, 4 * 1.0 / 5)
    assert found.disk > 100 and found.store_seconds > 0 and found.decode_seconds > 0


def test_runs_without_rollouts_and_damaged_calibrations_are_named(tmp_path: Path):
    with RunDir.open(tmp_path, {}) as run:
        with pytest.raises(ConfigError, match="no rollout has ended"):
            read_profile(run)
        (tmp_path / CALIBRATION).write_text("{")
        with pytest.raises(StoreError, match="calibrate again"):
            read_calibration(tmp_path)
