"""What a training run has recorded, as far as this version knows it: settings, and what was reached."""

from typing import NamedTuple

import msgspec

from ludus.config import list_assumed
from ludus.reflact.records import Record, Summary, find_gate
from ludus.reflact.report.score_curve import compute_score_interval
from ludus.reflact.stages.evaluate import compute_score
from ludus.reflact.train_settings import TrainSettings
from ludus.reflact.training_run import read_records
from ludus.rl.records import read_steps
from ludus.stats import Interval
from ludus.store import RunDir


class RunScore(NamedTuple):
    """What a run has reached, and what that number is."""

    value: float | None
    measure: str = ""
    interval: Interval | None = None


def read_train_settings(run: RunDir) -> TrainSettings:
    """The recorded settings of a training run, as far as this version knows them."""
    known = {f.name for f in msgspec.structs.fields(TrainSettings)}
    recorded = {name: value for name, value in run.config["train"].items() if name in known}
    return msgspec.convert(list_assumed()["train"] | recorded, TrainSettings)


def find_reached_score(run: RunDir) -> RunScore:
    """What a training run has reached, and where: the shipped skill on the test split, or until then the best skill on
    the selection split."""
    last: Record | None = None
    for last in read_records(run):  # noqa: B007
        pass
    if last is None:
        return RunScore(None, "selection")
    gate = find_gate(read_train_settings(run).gate, last.state)
    if isinstance(last, Summary) and last.best.test is not None:
        tested = last.best.test.overall
        is_soft = gate.metric == "soft"
        return RunScore(tested.soft if is_soft else tested.hard, "test", None if is_soft else tested.interval)
    return RunScore(
        compute_score(gate, last.state.best), "selection", compute_score_interval(last.state.best.measure, gate)
    )


def find_reached_reward(run: RunDir) -> RunScore:
    """What an RL run has reached: the last score of held-out tasks, or without one the last reward."""
    records = read_steps(run)
    held = [record.held_out for record in records if record.held_out is not None]
    if held and held[-1].mean is not None:
        return RunScore(held[-1].mean, "held out", held[-1].interval)
    return RunScore(next((record.reward for record in reversed(records) if record.reward is not None), None), "reward")
