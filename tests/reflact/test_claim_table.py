"""The arms of a claim on a terminal."""

from io import StringIO
from types import SimpleNamespace

from rich.console import Console

from ludus.models.scripted import ScriptedModel, say
from ludus.reflact.claim_table import list_arm_rows, print_arms
from ludus.reflact.gate import Gate
from ludus.reflact.records import Summary
from ludus.reflact.splits import Splits
from ludus.reflact.training_run import ClaimPlan, Resources


def test_one_small_table_and_what_it_says(world: SimpleNamespace):
    splits = Splits.from_tasks(
        world.tasks("train", 6), world.tasks("selection", 6), world.tasks("test", 6), held_out=world.tasks("other", 4)
    )
    deaf = ScriptedModel(lambda messages, tools, sampling: say("no idea"), name="deaf")
    claim = ClaimPlan(best_of=4, held_out="kind x", model=deaf)
    plain, end = world.run(splits=splits, resources=Resources(claim=claim))[-2:]
    assert isinstance(plain, Summary) and isinstance(end, Summary) and end.arms is not None
    rows = list(list_arm_rows(end, Gate(metric="hard")))
    assert [row[:3] for row in rows] == [
        ("new skill, 1 try", "100% [61, 100]", "6"),
        ("initial skill, 1 try", "0% [0, 39]", "6"),
        ("initial skill, best of 4 tries", "0% [0, 39]", "6"),
        ("new skill on held-out tasks: kind x", f"0% → 100%: {rows[3][1].partition(': ')[2]}", "4"),
        ("new skill with the model deaf", f"0% → 0%: {rows[4][1].partition(': ')[2]}", "6"),
    ]
    assert rows[0][3] == str(end.arms.training_rollouts) and rows[2][3] == "24"
    console = Console(file=StringIO(), width=160)
    print_arms(end, console, Gate(metric="hard"))
    assert isinstance(console.file, StringIO) and end.arms.sentence in console.file.getvalue()
    assert list(list_arm_rows(plain, Gate())) == []
