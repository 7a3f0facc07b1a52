"""The recipe `ledger` end to end, in a small world where it is known what helps and what harms."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from ludus.encoding import to_json
from ludus.errors import StoreError
from ludus.reflact.gate import Gate
from ludus.reflact.items import credit_item
from ludus.reflact.ledger.credit import add_readings
from ludus.reflact.ledger.line_records import LineLedger
from ludus.reflact.ledger.loop import DRAWS, SampleRecord, refuse_older
from ludus.reflact.ledger.settings import LedgerSettings
from ludus.reflact.proposers import Proposer, View
from ludus.reflact.records import Record, Reflection, Step, Summary, count_rollouts
from ludus.reflact.train_settings import Appendix, SlowUpdate, TrainSettings
from ludus.reflact.training_run import Resources
from ludus.runner import Runner
from ludus.skill import Edit, read_notes
from ludus.store import MemoryStore
from ludus.types import Message, Rollout, Score

SETTINGS = TrainSettings(recipe="ledger", epochs=8, ledger=LedgerSettings(batch_size=6), optimizer_tries=1)


def train(world: SimpleNamespace, **more: Any) -> list[Record]:
    return world.run(**{"settings": SETTINGS, "splits": world.splits(train=12), **more})


def get_steps(records: list[Record]) -> list[Step]:
    return [record for record in records if isinstance(record, Step)]


def get_summary(records: list[Record]) -> Summary:
    assert isinstance(records[-1], Summary)
    return records[-1]


def test_the_rules_that_help_are_found_shipped_and_claimed(world: SimpleNamespace):
    records = train(world)
    end = get_summary(records)
    assert len(get_steps(records)) == 16, "eight times twelve tasks, six at a time"
    assert all(world.rule(n) in end.best.skill.text for n in range(3))
    assert end.best.test is not None and end.initial.test is not None
    assert (end.initial.test.overall.hard, end.best.test.overall.hard) == (0.0, 1.0)
    assert end.claim is not None and end.claim.is_better
    assert end.shipment is not None and end.shipment.metric == end.claim.metric == "soft", "failures have a quarter"
    assert re.fullmatch(r"\+75 points of score \[.*\] on only 6 test tasks \(passed: \+100\)", end.claim.sentence)
    assert {entry.stage for entry in end.spent if entry.role == "agent"} == {"rollout", "ship", "test"}


def test_the_metric_can_be_set(world: SimpleNamespace):
    graded, passed = train(world), train(world, settings=replace(SETTINGS, gate=Gate(metric="hard")))
    end = get_summary(passed)
    assert end.claim is not None and end.claim.sentence.startswith("+100 points [")
    scores = [
        [r.score for step in get_steps(run) if step.lines for r in step.lines.readings] for run in (graded, passed)
    ]
    assert set(scores[0]) == {None, 0.25}, "a pass needs no score"
    assert set(scores[1]) == {None}


def harmful(world: SimpleNamespace) -> Any:
    def replies(messages: tuple[Message, ...]) -> Any:
        reply = world.optimizer(messages)
        for item in reply["items"]:
            item["content"] = world.HARM if item["content"].endswith("RULE-1.") else item["content"]
        return reply

    return world.optimizer_model(replies)


def test_what_harms_is_suspected_and_retired_while_what_helps_is_kept(world: SimpleNamespace):
    records = train(world, optimizer=harmful(world))
    ledger = records[-1].state.ledger
    assert isinstance(ledger, LineLedger)
    (bad,) = [line for line in ledger.lines if line.edit.content == world.HARM]
    assert bad.suspected and not bad.is_alive and bad.id not in ledger.working
    best = get_summary(records).best.skill.text
    assert world.HARM not in best and "RULE-0" in best and "RULE-2" in best


def test_a_run_of_a_version_that_judged_harm_otherwise_is_read_and_not_continued(world: SimpleNamespace):
    ledger = train(world)[-1].state.ledger
    assert isinstance(ledger, LineLedger)
    refuse_older(ledger)
    refuse_older(LineLedger())
    body = json.loads(to_json(ledger))
    body["blame"] = {"causes": ["luck"], "rollouts": [11.5], "failures": [3.0], "unexplained": [[0]]}
    older = msgspec.convert(body, LineLedger)
    assert older.assessed == ledger.assessed
    with pytest.raises(StoreError, match="another way"):
        refuse_older(older)


def test_where_nothing_helps_the_initial_skill_stays(world: SimpleNamespace):
    def replies(messages: tuple[Message, ...]) -> Any:
        reply = world.optimizer(messages)
        for number, item in enumerate(reply["items"]):
            item["content"] = f"Be brief ({number})."
        return reply

    end = get_summary(train(world, optimizer=world.optimizer_model(replies)))
    assert end.best.skill == end.initial.skill
    assert end.claim is not None and not end.claim.is_better
    assert end.claim.sentence == "training ended without a change; the initial skill stays"


def test_every_rollout_has_a_text_of_its_own_and_the_store_knows_its_lines(world: SimpleNamespace):
    store = MemoryStore()
    records = train(world, store=store)
    sampled: dict[str, tuple[str, ...]] = {}
    for _, body in store.read_records(DRAWS):
        sampled |= msgspec.json.decode(body, type=SampleRecord).texts
    run_with = {(r.task.id, r.provenance.skill) for r in store.outcomes.values()}
    readings = [reading for step in get_steps(records) if step.lines for reading in step.lines.readings]
    assert len(readings) == 96 and len({reading.lines for reading in readings}) > 4
    for reading in readings:
        assert sampled[reading.skill] == reading.lines
        assert (reading.task, reading.skill) in run_with


def test_the_ledger_follows_from_the_readings_and_proposals_of_the_steps(world: SimpleNamespace):
    """Credit can be computed again from the records alone."""
    ledger = LineLedger()
    for step in get_steps(train(world)):
        assert step.lines is not None and isinstance(step.state.ledger, LineLedger)
        after = step.state.ledger
        ledger = add_readings(replace(ledger, taken=after.taken), step.lines.readings, SETTINGS.ledger.tuning)
        assert ledger.beliefs == after.beliefs and ledger.seen == after.seen
        assert {line.id: line.weight for line in ledger.lines}.items() <= {
            line.id: line.weight for line in after.lines
        }.items()
        ledger = after


def test_tasks_of_a_block_share_one_text(world: SimpleNamespace):
    settings = replace(SETTINGS, ledger=LedgerSettings(batch_size=6, block_size=3))
    for step in get_steps(train(world, settings=settings)):
        assert step.lines is not None
        skills = [reading.skill for reading in step.lines.readings]
        assert skills == [skills[0]] * 3 + [skills[3]] * 3


def test_one_rollout_of_a_shared_text_ends_before_the_others_begin(world: SimpleNamespace):
    """Only then has a server the text in its cache."""
    settings = replace(SETTINGS, ledger=LedgerSettings(batch_size=6, block_size=3))
    store = MemoryStore()
    train(world, settings=settings, store=store)
    stages = [msgspec.json.decode(body) for _, body in store.read_records("stage")]
    sizes = [len(each["outcomes"]) for each in stages if each["stage"] == "rollout"]
    pairs = list(zip(sizes[::2], sizes[1::2], strict=True))
    assert set(pairs) <= {(2, 4), (1, 5)} and (2, 4) in pairs, "two texts, which may be the same"


def test_a_limit_of_rollouts_holds_with_shipping_and_test(world: SimpleNamespace):
    records = train(world, resources=Resources(rollouts=72))
    assert count_rollouts(get_summary(records).spent) <= 72
    assert len(get_steps(records)) == 8, "four fifths of the sixty that the test leaves"


def test_failures_without_a_reading_are_recorded_and_nothing_is_learned(world: SimpleNamespace):
    records = train(world, optimizer=world.optimizer_model(lambda messages: "no"))
    assert all(step.events for step in get_steps(records))
    assert records[-1].state.ledger == replace(
        LineLedger(),
        **{
            name: getattr(records[-1].state.ledger, name)
            for name in ("taken", "seen", "beliefs", "whole", "whole_passed", "digest")
        },
    )


def test_a_run_whose_analysts_name_nothing_says_so_while_it_runs(world: SimpleNamespace):
    steps = get_steps(train(world, optimizer=world.optimizer_model(lambda messages: {"rollouts": [], "items": []})))
    warned = [step.number for step in steps if any("named no situation" in warning for warning in step.warnings)]
    assert warned == [3, 10]
    assert not any(step.warnings for step in get_steps(train(world)))


def test_analysts_who_were_never_asked_are_not_silent(world: SimpleNamespace):
    class Easy(world.Env):
        async def verify(self, rollout: Rollout, box: Any) -> Score:
            return Score.of(1.0)

    steps = get_steps(train(world, env=Easy()))
    assert len(steps) > 3 and not any(step.warnings for step in steps)


def test_a_passage_that_harms_is_left_out_and_one_that_is_kept_by_its_author_stays(world: SimpleNamespace):
    text = f"# Skill\n\n- {world.HARM}\n- Be kind.\n"
    for skill, stays in ((text, False), (f"<!-- KEEP_START -->\n{text}<!-- KEEP_END -->\n", True)):
        records = train(world, policy=world.policy(skill))
        assert (world.HARM in records[-1].state.current.skill.text) is stays


def test_passages_can_be_kept_by_a_setting(world: SimpleNamespace):
    settings = replace(SETTINGS, ledger=replace(SETTINGS.ledger, passages="keep"))
    end = train(world, settings=settings, policy=world.policy("# Skill\n\n- Be kind.\n"))[-1]
    assert isinstance(end.state.ledger, LineLedger) and not end.state.ledger.passages
    assert "Be kind." in end.state.current.skill.text


def test_notes_go_into_every_text(world: SimpleNamespace):
    records = train(world, settings=replace(SETTINGS, appendix=Appendix(enabled=True)))
    assert read_notes(get_summary(records).final.skill) == ("Remember.",)
    assert sum(step.notes_added for step in get_steps(records)) == 1


def test_a_step_names_what_became_of_each_proposal(world: SimpleNamespace):
    first, *_ = get_steps(train(world))
    assert [fate.status for fate in first.fates] == [f"applied: new line L{n}" for n in (1, 2, 3)]
    assert [fate.item.support for fate in first.fates] == [len(fate.item.evidence) for fate in first.fates]
    assert sum(fate.item.support for fate in first.fates) == 6, "each task called for one rule"
    assert first.action == "working_text_changed" and first.candidate == first.state.current.skill
    assert {"draw", "rollout", "reflect", "assess"} <= first.seconds.keys()


@pytest.mark.parametrize("train_tasks", [1, 2, 5])
def test_few_train_tasks_are_enough(world: SimpleNamespace, train_tasks: int):
    records = train(world, splits=world.splits(train=train_tasks))
    assert isinstance(records[-1], Summary)


def test_two_runs_are_equal(world: SimpleNamespace):
    one, two = (asyncio.run(world.collect(_start(world))) for _ in range(2))
    assert [replace(r, seconds={}) for r in one] == [replace(r, seconds={}) for r in two]


def _start(world: SimpleNamespace) -> Any:
    from ludus.reflact.trainer import train as start

    return start(Runner(world.Env()), world.policy(), world.splits(), SETTINGS, optimizer=world.optimizer_model())


# ---- proposers without a model --------------------------------------------------------------------------------------


class Reminder(Proposer):
    """Proposes the rule of each task that failed, and something useless."""

    name = "reminder"

    async def reflect(self, view: View, batch: int, rollouts: AsyncIterator[Rollout]) -> tuple[Reflection, ...]:
        failed = [rollout.task async for rollout in rollouts if rollout.score and not rollout.score.passed]
        items = [credit_item(Edit("append", f"Obey {task.answer}."), "failure", [task.id]) for task in failed]
        noise = credit_item(Edit("append", "Be brief."), "failure", [])
        new = [item for item in items if isinstance(item, Edit) and item.content not in view.skill.text]
        return (Reflection("failure", tuple(task.id for task in failed), (*new, noise)),) if failed else ()


def test_items_of_a_proposer_without_a_model_are_lines_that_outcomes_judge(world: SimpleNamespace):
    records = train(
        world,
        proposer=Reminder(),
        optimizer=False,
        settings=replace(SETTINGS, memory=False, slow=SlowUpdate(enabled=False)),
    )
    end = get_summary(records)
    assert all(world.rule(n) in end.best.skill.text for n in range(3))
    assert end.claim is not None and end.claim.is_better
    ledger = end.state.ledger
    assert isinstance(ledger, LineLedger)
    assert all(line.by_outcome and not line.tries for line in ledger.lines)
    assert len({line.situation for line in ledger.lines}) == len(ledger.lines)
    for step in get_steps(records):
        assert step.lines is not None
        for reading in step.lines.readings:
            assert not any(reading.task in line.edit.evidence for line in ledger.get_lines(reading.lines))
