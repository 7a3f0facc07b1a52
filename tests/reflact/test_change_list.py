"""The changes of a training run, with their evidence."""

from collections.abc import Sequence

from ludus.envs.orders import Orders
from ludus.models.scripted import ScriptedModel, say
from ludus.policy import Policy
from ludus.reflact.change_list import describe_changes
from ludus.reflact.gate import Gate
from ludus.reflact.proposers.exemplars import Exemplars
from ludus.reflact.records import Record, Step
from ludus.reflact.report.score_curve import make_curve
from ludus.reflact.score_plot import plot_scores
from ludus.reflact.splits import load_splits
from ludus.reflact.train_settings import DataSettings, SlowUpdate, TrainSettings
from ludus.reflact.trainer import train
from ludus.runner import Runner
from ludus.types import (
    Message,
    Sampling,
    ToolSpec,
)


def shows_off(messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Message:
    """Right about everything as soon as it was shown anything."""
    answers = {task.prompt: task.answer for split in ("train", "validation", "test") for task in Orders().tasks(split)}
    return say(answers[messages[-1].content] if len(messages) > 2 else "Hello!")


async def train_records(**settings: int) -> list[Record]:
    policy = Policy(ScriptedModel(shows_off), examples_as="turns")
    options = TrainSettings(recipe="reflact", batch_size=8, slow=SlowUpdate(enabled=False), memory=False, **settings)
    splits = load_splits(Orders(), DataSettings(mode="splits"))
    return [record async for record in train(Runner(Orders()), policy, splits, options, proposer=Exemplars())]


async def test_changes_are_listed_with_their_result_and_evidence():
    run = await train_records(epochs=1)
    first = next(record for record in run if isinstance(record, Step))
    lines = describe_changes(run).splitlines()
    assert lines[0] == "step 1: accept new best, 0 → 1"
    assert lines[1].startswith("  + append: Answer with one line of 3 parts")
    assert lines[2].startswith("      from 8 failures: ") and lines[2].endswith(" and 5 more")
    assert lines[3].startswith("  + an example: ")
    assert lines[4] == f"      from 1 failure: {first.fates[1].item.evidence[0]}"
    assert "step 2: reject, 1 → 1" in lines
    assert plot_scores(make_curve(run, Gate())).count("●") == 2  # the dot and the legend


async def test_of_many_steps_only_the_accepted_ones_are_listed():
    text = describe_changes(await train_records(epochs=6))
    assert text.startswith("step 1: accept")
    assert "reject" not in text
    assert text.endswith("that were not accepted: see the report)")


def test_without_a_step_nothing_is_listed():
    assert describe_changes([]) == ""
