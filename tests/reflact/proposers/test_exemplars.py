"""The proposer without a model: its edits from rollouts, and training runs with it alone."""

import asyncio
import re
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from tests.build import make_rollout, make_task
from tests.reflact_kit import stream

from ludus.envs.orders import SIZES, Orders
from ludus.models.scripted import ScriptedModel, call, say
from ludus.policy import Policy
from ludus.reflact.proposers import View
from ludus.reflact.proposers.exemplars import Exemplars, compute_similarity, list_replaceable, order_by_difference
from ludus.reflact.records import Record, Reflection, Step, Summary
from ludus.reflact.splits import Splits, load_splits
from ludus.reflact.train_settings import DataSettings, ExemplarsSettings, SlowUpdate, TrainSettings
from ludus.reflact.trainer import train
from ludus.runner import Runner
from ludus.skill import GUIDANCE, Edit, Skill
from ludus.skill_examples import Example, parse_examples, render_example
from ludus.types import (
    Completion,
    Message,
    Rollout,
    Sampling,
    ToolSpec,
)

SETTINGS = TrainSettings(
    recipe="reflact", epochs=2, batch_size=8, edit_budget=4, slow=SlowUpdate(enabled=False), memory=False
)
FORM = "Answer with one line of 3 parts with `|` between them, and nothing else."


def make_view(skill: str = "", history: str = "", step: int = 1, **settings: Any) -> View:
    changed = msgspec.structs.replace(SETTINGS, **settings)
    return View(changed, Skill(skill), 1, step, history, "", "", None)


def make_answer(
    asked: str, answer: str, *, reference: Any = None, passed: bool = False, reply: Message | None = None
) -> Rollout:
    task = make_task(re.sub(r"\W+", "-", asked), asked, answer=reference)
    turns = [Completion(message) for message in (reply, say(answer)) if message is not None]
    return make_rollout(float(passed), *turns, task=task)


FAILED = [
    make_answer("Please send 83 blue lamps to the store.", "Sure, which store?", reference="lamps|blue|83"),
    make_answer("We are out of red hats, so ship 5 of them.", "I am sorry.", reference="hats|red|5"),
    make_answer("Could I get 7 cups in green?", "Of course!", reference="cups|green|7"),
    make_answer("Please send 84 blue lamps to the store.", "Sure, where is it?", reference="lamps|blue|84"),
]


def reflect(rollouts: Sequence[Rollout], at: View | None = None, **options: Any) -> tuple[Reflection, ...]:
    return asyncio.run(Exemplars(ExemplarsSettings(**options)).reflect(at or make_view(), 1, stream(rollouts)))


def aggregate(reflections: Sequence[Reflection], at: View | None = None, **options: Any) -> list[Edit]:
    items = asyncio.run(Exemplars(ExemplarsSettings(**options)).aggregate(at or make_view(), reflections))
    assert all(isinstance(item, Edit) for item in items)
    return [item for item in items if isinstance(item, Edit)]


def learn(rollouts: Sequence[Rollout], at: View | None = None, **options: Any) -> list[Edit]:
    return aggregate(reflect(rollouts, at, **options), at, **options)


def parse_edits(found: Sequence[Edit]) -> list[Example]:
    return [example for edit in found for example in parse_examples(edit.content)]


# ---- from rollouts to edits ------------------------------------------------------------------------------------


def test_failures_with_a_reference_become_a_rule_and_examples_with_their_evidence():
    rule, *found = learn(FAILED)
    assert (rule.op, rule.content, rule.support) == ("append", FORM, 4)
    assert set(rule.evidence) == {each.task.id for each in FAILED}
    for edit in found:
        (example,) = parse_examples(edit.content)
        (task,) = [each.task for each in FAILED if each.task.prompt == example.input]
        assert (edit.op, edit.source, edit.support, edit.evidence) == ("append", "failure", 1, (task.id,))
        assert (edit.content, example.output) == (render_example(example), task.answer)


def test_near_duplicates_are_left_out():
    found = parse_edits(learn(FAILED))
    assert len(found) == 3  # 83 and 84 blue lamps: one of them
    assert len({example.output.split("|")[0] for example in found}) == 3
    skill = render_example(Example("Please send 85 blue lamps to the store.", "lamps|blue|85"))
    assert {e.output for e in parse_edits(learn(FAILED, make_view(skill)))} == {"hats|red|5", "cups|green|7"}
    assert len(parse_edits(learn(FAILED, alike=1.0))) == 3  # the rule takes one place of four
    assert len(parse_edits(learn(FAILED, make_view(edit_budget=5), alike=1.0))) == 4


def test_successes_become_examples_of_what_the_agent_said():
    passed = make_answer("9 white vases, please.", "vases|white|9\n", passed=True)
    (edit,) = learn([passed])
    assert (parse_edits([edit]), edit.source) == ([Example("9 white vases, please.", "vases|white|9")], "success")
    assert learn([passed], make_view(failure_only=True)) == []
    assert [edit.source for edit in learn([passed, *FAILED])] == [*["failure"] * 4, "success"]


def test_without_leave_to_see_references_only_successes_are_shown():
    passed = make_answer("9 white vases, please.", "vases|white|9", passed=True)
    found = learn([passed, *FAILED], make_view(show_reference=False))
    assert [example.output for example in parse_edits(found)] == ["vases|white|9"]
    assert not any(each.task.answer in edit.content for edit in found for each in FAILED)


@pytest.mark.parametrize(
    "useless",
    [
        make_answer("What now?", "No idea.", reference=None),
        make_answer("What now?", "No idea.", reference={"hidden": "tests"}),
        make_answer("What now?", "No idea.", reference="  "),
        make_answer("What now?", "Done.", reference="42", passed=True, reply=call("terminal", command="ls")),
        make_answer("What now? " * 200, "No idea.", reference="42"),
        make_answer(f"What is {GUIDANCE.start}?", "No idea.", reference="42"),
        msgspec.structs.replace(make_answer("What now?", "No idea.", reference="42"), score=None),
    ],
    ids=["no reference", "not in words", "blank", "tools were used", "too long", "a marker", "not judged"],
)
def test_some_rollouts_make_no_example(useless: Rollout):
    assert learn([useless]) == []


def test_the_same_rollouts_lead_to_the_same_edits_and_the_seed_orders_them():
    assert reflect(FAILED) == reflect(FAILED)
    orders = {tuple(e.output for e in parse_edits(learn(FAILED, make_view(seed=seed)))) for seed in range(20)}
    assert len(orders) > 1
    identities = [
        Exemplars().identity,
        Exemplars(ExemplarsSettings(most=3)).identity,
        Exemplars(ExemplarsSettings(chars=9)).identity,
    ]
    assert len({*identities, Exemplars(ExemplarsSettings(alike=0.5)).identity}) == 4


# ---- the limit and the budget ---------------------------------------------------------------------------------------


def test_no_reflection_has_more_items_than_the_budget():
    (reflection,) = reflect(FAILED, make_view(edit_budget=2))
    assert (len(reflection.items), reflection.cut) == (2, 2)
    places = asyncio.run(Exemplars().select(make_view(), reflection.items, 1))
    assert places == (0,)


KNOWN = [
    Example("10 pink kites, please.", "kites|pink|10"),
    Example("We need 20 gray ropes by Friday.", "ropes|gray|20"),
    Example("We need 20 gray bells by Friday.", "bells|gray|20"),
]


def test_what_several_batches_teach_is_put_together():
    passed = make_answer(FAILED[1].task.prompt, "hats|red|5", reference="hats|red|5", passed=True)
    rule, *found = aggregate([*reflect(FAILED[:3]), *reflect([passed, *FAILED[1:]], make_view(seed=9))])
    assert (rule.support, set(rule.evidence)) == (4, {each.task.id for each in FAILED})
    assert sorted(example.output.split("|")[0] for example in parse_edits(found)) == ["cups", "hats", "lamps"]
    assert {edit.source for edit in found} == {"failure", "mixed"}


def test_past_the_cap_failures_take_the_place_of_what_resembles_another():
    at = make_view("\n\n".join([FORM, *map(render_example, KNOWN)]))
    room = learn(FAILED, at, most=4)  # three examples for one free place
    assert [edit.op for edit in room] == ["append", "replace", "replace"]
    assert {edit.target for edit in room[1:]} == {render_example(KNOWN[1]), render_example(KNOWN[2])}
    passed = make_answer("9 white vases, please.", "vases|white|9", passed=True)
    assert learn([passed], at, most=3) == []
    assert len(learn([passed], at, most=4)) == 1


def test_only_examples_that_an_edit_can_name_are_replaced():
    skill = Skill(render_example(KNOWN[0]).replace("```text", "```") + "\n\n" + render_example(KNOWN[1]))
    assert (len(parse_examples(skill.text)), list_replaceable(skill)) == (2, [KNOWN[1]])


def test_spread_begins_with_the_most_different():
    near, far = Example("a b c", "d"), Example("w x y", "z")
    assert order_by_difference([near, far], [Example("a b c", "e")], 0.9) == [1, 0]
    assert order_by_difference([near, near, far], [], 1.0) == [0, 2]
    assert order_by_difference([], [near], 0.5) == []
    assert (compute_similarity(frozenset(), frozenset()), compute_similarity(frozenset("ab"), frozenset("bc"))) == (
        1.0,
        pytest.approx(1 / 3),
    )


# ---- rules --------------------------------------------------------------------------------------------------------


def test_a_rule_is_proposed_once_and_only_if_failures_break_it():
    assert learn(FAILED)[0].content == FORM
    assert learn(FAILED, make_view(f"# Orders\n\n{FORM}\n"))[0].content != FORM
    assert learn(FAILED, make_view(history=f"Tried and rejected:\n1. append: {FORM}"))[0].content != FORM
    keeping = [make_answer(each.task.prompt, "x|y|z", reference=each.task.answer) for each in FAILED]
    assert all(parse_examples(edit.content) for edit in learn(keeping))


# ---- a whole run --------------------------------------------------------------------------------------------------


def clerk(messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Message:
    """Can do a phrasing of which it was shown an order before."""
    asked = messages[-1].content
    shown = {strip_values(message.content) for message in messages[:-1] if message.role == "user"}
    if strip_values(asked) not in shown:
        return say("How can I help you?")
    number = re.search(r"\d+", asked)
    color = next(word for word in re.findall(r"\w+", asked) if word in COLORS)
    thing = next(word for word in re.findall(r"\w+", asked) if word in THINGS)
    return say(f"{thing}|{color}|{number[0] if number else ''}")


COLORS = {task.answer.split("|")[1] for split in SIZES for task in Orders().tasks(split)}
THINGS = {task.answer.split("|")[0] for split in SIZES for task in Orders().tasks(split)}


def strip_values(asked: str) -> str:
    return " ".join(word for word in re.findall(r"[a-z]+", asked.lower()) if word not in COLORS | THINGS)


def make_splits() -> Splits:
    return load_splits(Orders(), DataSettings(mode="splits"))


async def train_orders(
    settings: TrainSettings = SETTINGS, examples_as: Any = "turns", skill: str = "# Orders\n"
) -> list[Record]:
    policy = Policy(ScriptedModel(clerk), Skill(skill), examples_as=examples_as)
    run = train(Runner(Orders()), policy, make_splits(), settings, proposer=Exemplars())
    return [record async for record in run]


async def test_training_without_an_optimizer_teaches_the_task():
    records = await train_orders()
    end = records[-1]
    assert isinstance(end, Summary)
    assert end.initial.test and end.best.test
    assert (end.initial.test.overall.hard, end.best.test.overall.hard) == (0.0, 1.0)
    assert end.accepted >= 2
    assert end.best.skill.text.startswith("# Orders\n")
    assert {spent.role for spent in end.spent} == {"agent"}
    steps = [record for record in records if isinstance(record, Step)]
    assert all(step.budget is None or len(list_applied(step)) <= (step.budget.value or 0) for step in steps)


def list_applied(step: Step) -> list[Edit]:
    return [f.item for f in step.fates if isinstance(f.item, Edit) and f.status.startswith("applied")]


async def test_nothing_of_the_other_splits_is_in_a_skill_and_every_edit_has_train_tasks_as_evidence():
    ours = {task.id for task in Orders().tasks("train")}
    others = [task for split in ("validation", "test") for task in Orders().tasks(split)]
    for record in await train_orders():
        for held in (record.state.current, record.state.best):
            assert not any(task.prompt in held.skill.text or task.answer in held.skill.text for task in others)
        if isinstance(record, Step):
            for fate in record.fates:
                assert fate.item.evidence and set(fate.item.evidence) <= ours


async def test_runs_with_the_same_seed_are_equal_and_another_seed_goes_another_way():
    def skills(records: Sequence[Record]) -> list[str]:
        return [record.state.current.skill.text for record in records]

    assert skills(await train_orders()) == skills(await train_orders())
    assert skills(await train_orders()) != skills(await train_orders(msgspec.structs.replace(SETTINGS, seed=7)))


async def test_where_the_examples_stand_decides_for_an_agent_that_reads_no_text():
    end = (await train_orders(examples_as="text"))[-1]
    assert isinstance(end, Summary)
    assert (end.accepted, end.best.skill.text) == (0, "# Orders\n")


async def test_a_budget_of_nothing_changes_nothing():
    end = (await train_orders(msgspec.structs.replace(SETTINGS, epochs=1, edit_budget=0, min_edit_budget=0)))[-1]
    assert isinstance(end, Summary)
    assert (end.best.skill.text, end.skipped) == ("# Orders\n", 3)
