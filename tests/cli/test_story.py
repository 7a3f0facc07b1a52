"""A training run in characters: the curve, and the changes with their evidence."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from ludus.agent import Policy
from ludus.cli import main
from ludus.cli.story import changes, plot
from ludus.envs.orders import Orders
from ludus.models.scripted import ScriptedModel, say
from ludus.reflact.gate import Gate
from ludus.reflact.proposers.exemplars import Exemplars
from ludus.reflact.records import Record, Step
from ludus.reflact.report.score_curve import Curve, Dot, curve
from ludus.reflact.splits import load
from ludus.reflact.train_settings import DataSettings, SlowUpdate, TrainSettings
from ludus.reflact.trainer import train
from ludus.types import Message, Sampling, ToolSpec

CURVE = Curve(
    current=((0, 0.0), (1, 0.5), (2, 0.5), (3, 1.0)),
    best=((0, 0.0), (1, 0.5), (2, 0.5), (3, 1.0)),
    train=(),
    dots=(
        Dot(1, 0.5, None, "accept_new_best", True),
        Dot(2, 0.25, None, "reject", False),
        Dot(3, 1.0, None, "accept_new_best", True),
    ),
    epochs=(3,),
    steps=3,
)


def test_the_curve_is_drawn():
    lines = plot(CURVE).splitlines()
    assert lines[0] == "  1.00 │" + " " * 24 + "●"
    assert lines[4] == "  0.50 │" + " " * 8 + "●" + "─" * 15
    assert lines[6] == "       │" + " " * 16 + "○"
    assert lines[8] == "  0.00 │" + "─" * 8
    assert lines[10].split() == ["step", "0", "1", "2", "3"]


def test_long_runs_are_drawn_as_far_as_they_fit():
    for steps in (3, 30, 72):
        wide = plot(msgspec.structs.replace(CURVE, steps=steps)).splitlines()
        assert max(map(len, wide[:10])) <= 85
        assert len(wide) == 12
    assert plot(msgspec.structs.replace(CURVE, steps=73)) == ""
    assert plot(msgspec.structs.replace(CURVE, current=(), dots=())) == ""


def shows_off(messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Message:
    """Right about everything as soon as it was shown anything."""
    answers = {task.prompt: task.answer for split in ("train", "validation", "test") for task in Orders().tasks(split)}
    return say(answers[messages[-1].content] if len(messages) > 2 else "Hello!")


def records(**settings: int) -> list[Record]:
    async def collect() -> list[Record]:
        policy = Policy(ScriptedModel(shows_off), examples_as="turns")
        told = TrainSettings(batch_size=8, slow=SlowUpdate(enabled=False), memory=False, **settings)
        splits = load(Orders(), DataSettings(mode="splits"))
        return [record async for record in train(Orders(), policy, splits, told, proposer=Exemplars())]

    return asyncio.run(collect())


def test_changes_are_told_with_their_fate_and_evidence():
    run = records(epochs=1)
    first = next(record for record in run if isinstance(record, Step))
    lines = changes(run).splitlines()
    assert lines[0] == "step 1: accept new best, 0 → 1"
    assert lines[1].startswith("  + append: Answer with one line of 3 parts")
    assert lines[2].startswith("      from 8 failures: ") and lines[2].endswith(" and 5 more")
    assert lines[3].startswith("  + an example: ")
    assert lines[4] == f"      from 1 failure: {first.fates[1].item.evidence[0]}"
    assert "step 2: reject, 1 → 1" in lines
    assert plot(curve(run, Gate())).count("●") == 2  # the dot and the legend


def test_of_many_steps_only_the_accepted_ones_are_told():
    told = changes(records(epochs=6))
    assert told.startswith("step 1: accept")
    assert "reject" not in told
    assert told.endswith("that were not accepted: see the report)")


def test_nothing_tried_is_nothing_told():
    assert changes([]) == ""


def test_the_demo_prints_what_it_promises(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Its settings and its command, with a model that needs no weights."""
    config = Path(__file__).parents[2] / "configs" / "demo.yaml"
    script = tmp_path / "model.py"
    script.write_text(
        "from ludus.envs.orders import Orders\n"
        "TASKS = [task for split in ('train', 'validation', 'test') for task in Orders().tasks(split)]\n"
        "ANSWERS = {task.prompt: task.answer for task in TASKS}\n"
        "def reply(messages, tools, sampling):\n"
        "    return ANSWERS[messages[-1].content] if len(messages) > 8 else 'Hello!'\n"
    )
    out = tmp_path / "run"
    model = ["--model.type", "scripted", "--model.script", f"{script}:reply"]
    assert main(["train", "--config", str(config), "--out", str(out), *model]) == 0
    said = capsys.readouterr().out
    assert "accept new best" in said and "reject" in said and "from 1 failure: " in said
    assert "●" in said and "○" in said
    assert "0 [0, 0.05" in said and "1 [0.94" in said and "] of 64 tasks" in said, said
    assert (out / "best" / "SKILL.md").is_file() and (out / "report.html").is_file()
    assert str(out / "best" / "SKILL.md") in said and "report.html" in said
