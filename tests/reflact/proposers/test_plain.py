"""The proposer for small models: one question for each sort of failed tasks."""

import json
import re
from types import SimpleNamespace
from typing import Any

from tests.build import make_rollout, make_task
from tests.reflact_kit import ScriptedView, make_run, stream

from ludus.models.scripted import say
from ludus.reflact.ledger.settings import LedgerSettings
from ludus.reflact.prompt_templates import PLAIN_PROMPT, Prompts
from ludus.reflact.proposers.plain import SHOWN, PlainAnalyst, describe_failure, divide_by_sort
from ludus.reflact.records import Step
from ludus.reflact.train_settings import TrainSettings
from ludus.skill import Edit
from ludus.types import Completion, Rollout, Score


def make_failure(id: str, kind: str, *, answer: Any = "cedar", passed: bool = False) -> Rollout:
    task = make_task(id, f"the bill of {id}", answer=answer, kind=kind)
    score = Score(float(passed), passed, float(passed), f"not {answer}")
    return make_rollout(score, Completion(say("birch")), task=task)


def reply_with(rule: object) -> Any:
    return lambda *request: json.dumps({"rule": rule})


async def test_each_sort_of_failures_makes_one_rule(world: SimpleNamespace):
    scripted = ScriptedView(world, reply_with("If it is a bill, the answer is cedar."), edit_budget=4)
    rollouts = [
        *(make_failure(f"b{n}", "bill") for n in range(SHOWN + 2)),
        make_failure("b0", "bill"),
        make_failure("p", "parcel"),
        make_failure("good", "bill", passed=True),
    ]

    found = await PlainAnalyst().reflect(scripted.view, 1, stream(rollouts))

    assert [reflection.tasks for reflection in found] == [tuple(f"b{n}" for n in range(SHOWN + 2)), ("p",)]
    edit = found[0].items[0]
    assert isinstance(edit, Edit)
    assert (edit.op, edit.content) == ("append", "If it is a bill, the answer is cedar.")
    assert edit.evidence == tuple(f"b{n}" for n in range(SHOWN)), "only what was shown is evidence"
    asked = [request[-1].content for request in scripted.requests]
    assert asked[0].count("Right answer: cedar") == SHOWN
    assert "birch" not in asked[0], "small models mix the wrong answer up with the right one"


async def test_few_failures_of_a_sort_are_filled_up_with_tasks_of_it_that_passed(world: SimpleNamespace):
    rollouts = [
        make_failure("b0", "bill"),
        make_failure("b1", "bill", passed=True),
        make_failure("b0", "bill", passed=True),
        make_failure("no reference", "bill", answer={"tests": 1}, passed=True),
        make_failure("p0", "parcel", passed=True),
        *(make_failure(f"c{n}", "case", passed=n >= SHOWN - 1) for n in range(SHOWN + 2)),
    ]
    for shown, bills, cases in ((True, 2, SHOWN), (False, 1, SHOWN - 1)):
        scripted = ScriptedView(world, reply_with("x"), show_reference=shown)
        found = await PlainAnalyst().reflect(scripted.view, 1, stream(rollouts))
        asked = sorted(request[-1].content.count("Task: ") for request in scripted.requests)
        assert asked == sorted((bills, cases))
        assert {item.evidence for reflection in found for item in reflection.items} == {("b0",), ("c0", "c1", "c2")}


async def test_there_are_as_many_questions_as_the_budget_has_edits(world: SimpleNamespace):
    scripted = ScriptedView(world, reply_with("x"), edit_budget=2)
    failures = [
        make_failure(f"{kind}{n}", kind) for kind, count in (("a", 1), ("b", 3), ("c", 2)) for n in range(count)
    ]
    found = await PlainAnalyst().reflect(scripted.view, 1, stream(failures))
    assert [reflection.tasks[0] for reflection in found if reflection.items] == ["b0", "c0"], "the sorts with the most"
    causes = {pattern.name: pattern.tasks for reflection in found for pattern in reflection.patterns}
    assert causes == {"a": ("a0",), "b": ("b0", "b1", "b2"), "c": ("c0", "c1")}, "all failures have their cause"


async def test_a_reply_without_a_rule_is_sent_back_and_then_noted(world: SimpleNamespace):
    scripted = ScriptedView(world, reply_with(" "))
    found = await PlainAnalyst().reflect(scripted.view, 1, stream([make_failure("a", "")]))
    assert [reflection.items for reflection in found] == [()]
    assert len(scripted.requests) == 2
    assert "the rule is empty" in scripted.requests[1][-1].content


async def test_markers_of_protected_regions_never_come_from_a_model(world: SimpleNamespace):
    scripted = ScriptedView(world, reply_with("<!-- SLOW_UPDATE_START -->Obey."))
    found = await PlainAnalyst().reflect(scripted.view, 1, stream([make_failure("a", "")]))
    assert [item.content for item in found[0].items if isinstance(item, Edit)] == ["Obey."]


def test_without_a_reference_the_answer_and_the_feedback_are_shown():
    hidden = describe_failure(make_failure("a", "", answer={"tests": 1}), reference=True)
    assert hidden == "Task: the bill of a\nIts answer: birch\nWhat was wrong: not {'tests': 1}"
    assert "Right answer" not in describe_failure(make_failure("a", ""), reference=False)


def test_a_task_counts_once_in_its_sort():
    sorts = divide_by_sort([make_failure("a", "x"), make_failure("a", "x"), make_failure("b", "")])
    assert [[rollout.task.id for rollout in sort] for sort in sorts] == [["a"], ["b"]]


def test_its_prompt_is_part_of_the_identity_of_its_runs_alone(world: SimpleNamespace):
    prompts = Prompts.load()
    assert PLAIN_PROMPT in prompts.names
    without = Prompts({name: prompts.get_text(name) for name in prompts.names if name != PLAIN_PROMPT})
    assert prompts.compute_digest() == without.compute_digest()
    assert make_run(world).identity != make_run(world, proposer=PlainAnalyst()).identity
    assert PlainAnalyst.own_prompts == (PLAIN_PROMPT,)


def test_rules_about_one_sort_compete_in_the_ledger(world: SimpleNamespace):
    def write_rule(request: Any) -> dict[str, str]:
        question, right = re.findall(r"question (\d+)\nRight answer: (RULE-.)", request[-1].content)[-1]
        return {"rule": f"Obey {right}, as in question {question}."}

    settings = TrainSettings(recipe="ledger", epochs=6, ledger=LedgerSettings(batch_size=6), memory=False)
    records = world.run(
        settings=settings,
        splits=world.splits(train=12),
        proposer=PlainAnalyst(),
        optimizer=world.optimizer_model(write_rule),
    )
    ledger = records[-1].state.ledger
    lines = {line.id: line for line in ledger.lines if not line.passage}
    assert {line.situation for line in lines.values()} == {"kind-0", "kind-1"}
    assert any(line.tries for line in lines.values()), "a failure of the sort speaks for or against its rule"
    readings = [r for step in records if isinstance(step, Step) and step.lines for r in step.lines.readings]
    for reading in readings:
        about = [lines[id].situation for id in reading.lines if id in lines]
        assert len(about) == len(set(about)), "at most one rule of a sort is in a text"
        assert reading.situations == ((reading.kind,) if reading.passed is False else ())
