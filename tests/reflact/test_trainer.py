"""Training end to end, in a small world where it is known what helps and what harms."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import msgspec
import pytest

from ludus.control import RunControl
from ludus.errors import BudgetExhausted, ModelError
from ludus.models.ledger import Budget, Ledger, MeteredModel
from ludus.models.scripted import ScriptedModel, say
from ludus.reflact.gate import Decision, Gate
from ludus.reflact.guards import GuardSettings
from ludus.reflact.items import credit_item
from ludus.reflact.journal import StageProgress
from ludus.reflact.measure import Outage
from ludus.reflact.proposers import Proposer, View
from ludus.reflact.records import (
    Baseline,
    EpochEnd,
    Record,
    Reflection,
    Step,
    Summary,
    add_costs,
)
from ludus.reflact.train_settings import Appendix, ShippingRule, ShippingSettings, SlowUpdate, TrainSettings
from ludus.reflact.trainer import train
from ludus.reflact.training_run import Resources, read_records
from ludus.runner import Runner, RunOptions
from ludus.skill import Edit, Skill, read_guidance, read_notes
from ludus.store import MemoryStore
from ludus.types import Message, Rollout, Sampling, Score, ToolSpec

replace = msgspec.structs.replace


def timeless(record: Record) -> Record:
    """The record without how long anything took."""
    return replace(record, seconds={})


def steps(records: Sequence[Record]) -> list[Step]:
    return [record for record in records if isinstance(record, Step)]


def ends(records: Sequence[Record]) -> list[EpochEnd]:
    return [record for record in records if isinstance(record, EpochEnd)]


def summary(records: Sequence[Record]) -> Summary:
    last = records[-1]
    assert isinstance(last, Summary)
    return last


# ---- what helps is found, what harms is not -----------------------------------------------------------------------


def test_the_rules_that_help_are_found_and_accepted(world: SimpleNamespace):
    records = world.run()
    assert [type(record) for record in records] == [Baseline, Step, Step, EpochEnd, Step, Step, EpochEnd, Summary]
    assert [step.action for step in steps(records)] == [
        "accept_new_best",
        "accept_new_best",
        "skip_no_updates",
        "skip_no_updates",
    ]
    end = summary(records)
    assert (end.initial.test.overall.hard, end.best.test.overall.hard, end.final.test.overall.hard) == (0.0, 1.0, 1.0)
    assert (end.initial.selection, end.best.selection) == (0.0, 1.0)
    assert (end.accepted, end.rejected, end.skipped, end.undecided, end.steps) == (2, 0, 2, 0, 4)
    assert all(world.rule(n) in end.best.skill.text for n in range(3))
    assert end.best.test.kinds.keys() == {"kind-0", "kind-1"}
    assert (end.best.test.overall.tasks, end.best.test.kinds["kind-0"].tasks) == (6, 3)
    assert (end.best.origin, end.best.step) == ("step_0002", 2)


def test_a_step_records_what_it_learned_and_from_what(world: SimpleNamespace):
    first = steps(world.run())[0]
    assert (first.number, first.epoch, first.place) == (1, 1, 1)
    assert [(b.tasks, b.failed, b.hard, b.soft) for b in first.batches] == [(3, 0, 0.0, 0.25)]
    assert {fate.status for fate in first.fates} == {"applied_append"}
    for fate in first.fates:
        assert fate.item.support == len(fate.item.evidence) >= 1
        assert set(fate.item.evidence) <= {f"train-{n}" for n in range(6)}
    assert first.verdict is not None
    assert (first.verdict.decision, first.verdict.current, first.verdict.items) == (Decision.ACCEPT_NEW_BEST, 0.0, 6)
    assert first.measure is not None
    assert first.candidate is not None
    assert first.measure.skill == first.candidate.hash == first.state.current.skill.hash
    assert {"rollout", "reflect", "aggregate", "select", "update", "evaluate"} <= first.seconds.keys()
    assert {(s.role, s.stage) for s in first.spent} == {
        ("agent", "rollout"),
        ("agent", "evaluate"),
        ("optimizer", "analyst"),
        ("optimizer", "merge"),
    }


def harmful(world: SimpleNamespace) -> Any:
    """An optimizer whose analysts propose only what does harm."""

    def replies(messages: Sequence[Message]) -> dict[str, Any]:
        if world.get_stage(messages).startswith("analyst"):
            return {"items": [world.edit(world.HARM)], "patterns": [], "reasoning": "why not"}
        return world.optimizer(messages)

    return replies


def test_what_does_harm_is_rejected_and_remembered(world: SimpleNamespace):
    heard: list[Sequence[Message]] = []
    start = world.policy("# Skill\n\nObey RULE-0.\n")
    records = world.run(optimizer=world.optimizer_model(harmful(world), heard), policy=start)
    assert {step.action for step in steps(records)} == {"reject"}
    end = summary(records)
    assert end.best.skill == end.final.skill == start.skill
    assert (end.rejected, end.promoted) == (4, False)
    second = next(messages for messages in heard if "Tried and rejected" in messages[1].content)
    assert f"append: {world.HARM}" in second[1].content
    first_of_epoch_2 = steps(records)[2]
    assert len(steps(records)[1].state.buffer) == 2
    assert len(first_of_epoch_2.state.buffer) == 1  # the buffer begins anew with each epoch


def test_a_score_of_zero_is_a_score(world: SimpleNamespace):
    """SkillOpt takes 0.0 for "not measured" and starts over."""
    store = MemoryStore()
    first = world.run(optimizer=world.optimizer_model(harmful(world)), store=store)
    assert summary(first).best.selection == 0.0
    assert world.run(optimizer=world.optimizer_model(harmful(world)), store=store) == first


# ---- every mode ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["patch", "rewrite_from_suggestions", "full_rewrite_minibatch"])
def test_every_update_mode_finds_the_rules(world: SimpleNamespace, mode: Any):
    records = world.run(settings=replace(world.SETTINGS, update_mode=mode))
    end = summary(records)
    assert end.best.test.overall.hard == 1.0
    assert end.events == ()
    first = steps(records)[0]
    if mode == "full_rewrite_minibatch":
        assert first.budget is None
    if mode != "patch":
        assert {fate.status for fate in first.fates} <= {"used", "not_selected"}


@pytest.mark.parametrize("mode", ["patch", "rewrite_from_suggestions", "full_rewrite_minibatch"])
def test_protected_regions_and_the_front_matter_survive_every_mode(world: SimpleNamespace, mode: Any):
    head = "---\nname: rules\ndescription: Rules.\n---\n"
    text = f"{head}\n# Skill\n\n<!-- SLOW_UPDATE_START -->\nguide\n<!-- SLOW_UPDATE_END -->\n"

    def careless(messages: Sequence[Message]) -> Any:
        reply = world.optimizer(messages)
        for whole in [*reply.get("items", ()), reply]:
            for key in ("text", "document"):
                if key in whole:
                    whole[key] = "Obey RULE-0. Obey RULE-1. Obey RULE-2."
        return reply

    records = world.run(
        settings=replace(world.SETTINGS, update_mode=mode),
        policy=world.policy(text),
        optimizer=world.optimizer_model(careless),
    )
    best = summary(records).best.skill
    assert best.text.startswith(head)
    assert read_guidance(best) == "guide"
    assert summary(records).best.selection == 1.0


def test_only_rewrites_have_the_fields_of_rewrites(world: SimpleNamespace):
    extras: dict[str, set[str]] = {}
    scripted = world.optimizer_model()

    async def complete(messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Any:
        extras.setdefault(sampling.stage, set()).add(json.dumps(sampling.extra, sort_keys=True))
        return (await scripted.complete(messages, tools, sampling)).message

    world.run(
        settings=replace(
            world.SETTINGS,
            update_mode="rewrite_from_suggestions",
            sampling=Sampling(extra={"top_k": 3, "effort": "low"}),
            rewrite_extra={"effort": "high"},
        ),
        optimizer=ScriptedModel(complete, name="optimizer"),
    )
    assert extras["rewrite"] == {'{"effort": "high", "top_k": 3}'}
    assert extras["analyst_failure"] == {'{"effort": "low", "top_k": 3}'}


@pytest.mark.parametrize(("control", "values"), [("scheduled", [2, 1]), ("autonomous", [1, 1]), ("none", [None, None])])
def test_every_way_to_control_the_budget(world: SimpleNamespace, control: Any, values: list[int | None]):
    settings = replace(world.SETTINGS, control=control, schedule="linear", epochs=1, batch_size=2)
    budgets = [step.budget for step in steps(world.run(settings=settings)) if step.budget]
    assert [budget.value for budget in budgets] == values
    assert all(budget.control == control for budget in budgets)
    if control == "autonomous":
        assert (budgets[0].reasoning, budgets[0].confidence, budgets[0].risks) == ("carefully", "high", ("none",))


def test_a_budget_of_zero_applies_nothing(world: SimpleNamespace):
    settings = replace(world.SETTINGS, edit_budget=0, min_edit_budget=0, control="autonomous")
    records = world.run(settings=settings)
    assert {step.action for step in steps(records)} == {"skip_no_updates"}  # an analyst may propose nothing either

    def none(messages: Sequence[Message]) -> Any:
        return {"budget": 0} if world.get_stage(messages) == "budget" else world.optimizer(messages)

    records = world.run(settings=replace(world.SETTINGS, control="autonomous"), optimizer=world.optimizer_model(none))
    assert {step.action for step in steps(records)} == {"skip_none_selected"}
    assert {fate.status for step in steps(records) for fate in step.fates} == {"not_selected"}
    assert summary(records).final.skill == summary(records).initial.skill


def test_the_schedule_goes_by_selections_and_steps_without_any_do_not_advance_it(world: SimpleNamespace):
    settings = replace(world.SETTINGS, edit_budget=8, min_edit_budget=1, schedule="linear", batch_size=1, epochs=1)
    turns = iter(range(100))

    def sometimes(messages: Sequence[Message]) -> Any:
        if world.get_stage(messages) == "analyst_failure" and next(turns) % 2:
            return {"items": []}
        return world.optimizer(messages)

    taken = steps(world.run(settings=settings, optimizer=world.optimizer_model(sometimes)))
    counted = [step.state.selections for step in taken]
    assert any(step.budget is None for step in taken)
    budgets = [step.budget.value for step in taken if step.budget]
    assert budgets == [max(1, round(8 - 7 * n / 6)) for n in range(1, len(budgets) + 1)]
    assert counted[-1] == len(budgets)


def test_accumulated_batches_make_one_update(world: SimpleNamespace):
    records = world.run(settings=replace(world.SETTINGS, accumulation=2, epochs=1, control="none", batch_size=2))
    first, second = steps(records)
    assert [batch.tasks for batch in first.batches] == [2, 2]
    assert [batch.seed for batch in first.batches] == [1043, 1044]
    assert [batch.tasks for batch in second.batches] == [2, 2]  # the second one is filled anew
    assert summary(records).best.selection == 1.0


def test_a_rewrite_that_cannot_be_had_is_a_skip_with_an_event(world: SimpleNamespace):
    def mute(messages: Sequence[Message]) -> Any:
        return "no" if world.get_stage(messages) == "rewrite" else world.optimizer(messages)

    records = world.run(
        settings=replace(world.SETTINGS, update_mode="rewrite_from_suggestions", epochs=1),
        optimizer=world.optimizer_model(mute),
    )
    assert {step.action for step in steps(records)} == {"skip_no_rewrite"}
    assert [event.stage for event in steps(records)[0].events] == ["rewrite"]
    assert summary(records).skipped == 2


def test_an_optimizer_that_only_babbles_trains_nothing_and_breaks_nothing(world: SimpleNamespace):
    records = world.run(optimizer=world.optimizer_model(lambda messages: "Lorem ipsum { dolor"))
    assert {step.action for step in steps(records)} == {"skip_no_updates"}
    assert all(step.events for step in steps(records))
    assert ends(records)[1].slow.action == "no_content"
    assert ends(records)[1].memory_action == "no_content"
    assert {event.stage for event in ends(records)[1].events} == {"slow", "meta"}


# ---- the gate -----------------------------------------------------------------------------------------------------


def test_with_the_gate_off_everything_is_accepted_but_the_best_is_kept(world: SimpleNamespace):
    settings = replace(world.SETTINGS, gate=Gate(enabled=False), slow=SlowUpdate(enabled=False), epochs=1)
    start = world.policy("# Skill\n\nObey RULE-0.\n")
    records = world.run(settings=settings, policy=start, optimizer=world.optimizer_model(harmful(world)))
    assert {step.action for step in steps(records)} == {"force_accept"}
    end = summary(records)
    assert (end.best.skill, end.best.selection) == (start.skill, pytest.approx(1 / 3))
    assert (end.final.selection, world.HARM in end.final.skill.text) == (0.0, True)


def test_soft_metric_and_replicates(world: SimpleNamespace):
    settings = replace(world.SETTINGS, gate=Gate(metric="soft"), selection_replicates=2, selection_size=3)
    records = world.run(settings=settings)
    baseline = records[0]
    assert isinstance(baseline, Baseline)
    assert len(baseline.measure.marks) == 3
    assert baseline.spent[0].calls == 6
    assert summary(records).initial.selection == 0.25


# ---- the end of an epoch ------------------------------------------------------------------------------------------


def slow_settings(world: SimpleNamespace, **slow: Any) -> TrainSettings:
    return replace(world.SETTINGS, slow=SlowUpdate(**{"samples": 3, **slow}))


def test_the_first_epoch_has_nothing_to_compare_with(world: SimpleNamespace):
    first = ends(world.run())[0]
    assert (first.slow.action, first.memory_action, first.spent) == ("skip_first_epoch", "skip_first_epoch", ())


def test_guidance_that_does_not_help_is_rejected_by_the_gate(world: SimpleNamespace):
    second = ends(world.run())[1]
    assert (second.slow.action, second.slow.guidance) == ("reject", "Keep to the rules you have.")
    assert read_guidance(second.state.current.skill) == ""
    assert second.slow.categories["stable_success"] == 3


def helpful_guidance(world: SimpleNamespace) -> Any:
    def replies(messages: Sequence[Message]) -> Any:
        if world.get_stage(messages) == "slow":
            return {"guidance": "Obey RULE-0, RULE-1 and RULE-2."}
        return {"items": []} if world.get_stage(messages).startswith("analyst") else world.optimizer(messages)

    return replies


def test_guidance_that_helps_passes_the_gate(world: SimpleNamespace):
    records = world.run(optimizer=world.optimizer_model(helpful_guidance(world)))
    second = ends(records)[1]
    assert second.slow.action == "accept_new_best"
    assert second.state.best.origin == "slow_update_epoch_02"
    assert summary(records).best.test.overall.hard == 1.0


def test_forced_guidance_inherits_no_score_and_is_measured_before_the_next_decision(world: SimpleNamespace):
    """SkillOpt leaves the old score to the new text, and puts it into its cache as if it had been measured."""

    def replies(messages: Sequence[Message]) -> Any:
        if world.get_stage(messages) == "slow":
            return {"guidance": world.HARM}
        if world.get_stage(messages).startswith("analyst"):
            return {"items": [world.edit("Obey RULE-1.")]}
        return world.optimizer(messages)

    settings = replace(slow_settings(world, gated=False), epochs=3, gate=Gate(metric="mixed"))
    records = world.run(settings=settings, optimizer=world.optimizer_model(replies))
    forced = ends(records)[1]
    assert forced.slow.action == "force_accept"
    assert read_guidance(forced.state.current.skill) == world.HARM
    assert forced.state.current.measure is None
    assert forced.state.history[-1].current != 0.0
    after = steps(records)[4]
    assert after.verdict is not None
    assert after.verdict.current == pytest.approx(0.125)  # what the harmed text really scores: hard 0, soft 0.25
    assert after.state.best.measure is not None
    assert world.HARM not in summary(records).best.skill.text


def test_forced_guidance_that_helps_competes_for_best_at_the_end(world: SimpleNamespace):
    settings = replace(slow_settings(world, gated=False), test=False)
    records = world.run(settings=settings, optimizer=world.optimizer_model(helpful_guidance(world)))
    end = summary(records)
    assert (end.promoted, end.best.selection, end.best.origin) == (True, 1.0, "slow_update_epoch_02")
    assert end.best.test is None


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("mixed", {"improved", "persistent_fail"}), ("changed", {"improved"}), ("unchanged", {"persistent_fail"})],
)
def test_pair_policies(world: SimpleNamespace, policy: Any, expected: set[str]):
    """RULE-0 is learned in the second epoch; only its tasks improve."""

    class Late(Proposer):
        name: ClassVar[str] = "late"

        async def reflect(self, view: View, batch: int, rollouts: AsyncIterator[Rollout]) -> tuple[Reflection, ...]:
            tasks = tuple([rollout.task.id async for rollout in rollouts])
            items = (credit_item(Edit("append", "Obey RULE-0."), "failure", tasks),) if view.epoch == 2 else ()
            return (Reflection("failure", tasks, items),)

    records = world.run(
        settings=slow_settings(world, samples=2, pairs=policy),
        proposer=Late(),
        splits=world.splits(train=12),
    )
    shown = ends(records)[1].slow.categories
    assert {name for name, count in shown.items() if count} <= expected
    if policy == "changed":
        assert shown["improved"] == 2  # topped up until there are enough


def test_when_nothing_changed_there_is_nothing_to_say_about_changes(world: SimpleNamespace):
    settings = replace(slow_settings(world, pairs="changed"), epochs=2)
    records = world.run(settings=settings, optimizer=world.optimizer_model(harmful(world)))
    assert (ends(records)[1].slow.action, ends(records)[1].memory_action) == ("no_pairs", "no_pairs")


def test_the_optimizers_memory_reaches_its_prompts_and_never_the_agent(world: SimpleNamespace):
    heard: list[Sequence[Message]] = []
    agent_heard: list[str] = []

    def agent(messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Message:
        agent_heard.extend(message.content for message in messages)
        return world.agent(messages, tools, sampling)

    world.run(
        settings=replace(world.SETTINGS, epochs=3),
        policy=world.policy(script=agent),
        optimizer=world.optimizer_model(harmful(world), heard),
    )
    remembering = {world.get_stage(m) for m in heard if "Adding rules helps." in m[1].content}
    assert {"analyst_failure", "merge_failure", "meta"} <= remembering
    assert "slow" not in remembering
    assert "Adding rules helps." not in "".join(agent_heard)


def test_a_memory_that_cannot_be_had_leaves_the_earlier_one(world: SimpleNamespace):
    asked: list[int] = []

    def replies(messages: Sequence[Message]) -> dict[str, Any]:
        if world.get_stage(messages) == "meta":
            asked.append(1)
            if len(asked) > 1:
                return {"nothing": "useful"}
        return harmful(world)(messages)

    records = world.run(
        settings=replace(world.SETTINGS, epochs=3, optimizer_tries=1), optimizer=world.optimizer_model(replies)
    )
    assert [end.memory_action for end in ends(records)] == ["skip_first_epoch", "write", "no_content"]
    assert ends(records)[2].memory == ends(records)[2].state.memory == "Adding rules helps."


def test_memory_works_without_the_slow_update(world: SimpleNamespace):
    records = world.run(settings=replace(world.SETTINGS, slow=SlowUpdate(enabled=False, samples=3)))
    assert [(end.slow.action, end.memory_action) for end in ends(records)] == [
        ("off", "skip_first_epoch"),
        ("off", "write"),
    ]
    assert ends(records)[1].state.memory == "Adding rules helps."


def test_the_prompt_of_the_slow_update_states_how_many_tasks_there_are(world: SimpleNamespace):
    heard: list[Sequence[Message]] = []
    world.run(optimizer=world.optimizer_model(log=heard))
    (slow,) = [m for m in heard if world.get_stage(m) == "slow"]
    assert "and 3 tasks that the agent did with both" in " ".join(slow[0].content.split())
    assert slow[1].content.count("\n### ") == 3


def test_notes_about_lapses_are_added_whatever_the_gate_decides_and_then_measured(world: SimpleNamespace):
    def replies(messages: Sequence[Message]) -> Any:
        if world.get_stage(messages).startswith("analyst"):
            return {"items": [world.edit(world.HARM)], "notes": ["Mind RULE-0."]}
        return world.optimizer(messages)

    settings = replace(world.SETTINGS, appendix=Appendix(enabled=True), epochs=1)
    first, second = steps(world.run(settings=settings, optimizer=world.optimizer_model(replies)))
    assert (first.action, first.notes_added, first.notes) == ("reject", 1, 1)
    assert read_notes(first.state.current.skill) == ("Mind RULE-0.",)
    assert first.state.current.measure is None
    assert first.candidate is not None
    assert read_notes(first.candidate) == ()
    assert second.verdict is not None
    assert second.verdict.current == pytest.approx(1 / 3)  # RULE-0 is in the note, and the note was measured
    assert second.state.best.origin == "appendix_step_0001"


# ---- the sealed split ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["patch", "rewrite_from_suggestions", "full_rewrite_minibatch"])
def test_nothing_of_the_selection_and_test_splits_is_ever_in_an_optimizers_prompt(world: SimpleNamespace, mode: Any):
    heard: list[Sequence[Message]] = []
    settings = replace(
        world.SETTINGS,
        epochs=3,
        update_mode=mode,
        control="autonomous",
        appendix=Appendix(enabled=True, consolidate_above=1),
    )
    world.run(settings=settings, optimizer=world.optimizer_model(log=heard))
    said = "".join(message.content for messages in heard for message in messages)
    assert "train question" in said
    for word in ("test question", "selection question", "test-", "selection-"):
        assert word not in said
    assert len({world.get_stage(m) for m in heard}) >= 4


def test_the_agent_sees_no_test_task_before_training_is_over(world: SimpleNamespace):
    seen: list[str] = []

    def agent(messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Message:
        seen.append(messages[-1].content.split()[0])
        return world.agent(messages, tools, sampling)

    world.run(policy=world.policy(script=agent))
    first = seen.index("test")
    assert set(seen[first:]) == {"test"}
    assert Counter(seen)["test"] == 12  # initial and best, which is also the final one


def test_answers_of_train_tasks_can_be_kept_from_the_analysts(world: SimpleNamespace):
    for show in (True, False):
        heard: list[Sequence[Message]] = []
        world.run(
            settings=replace(world.SETTINGS, show_reference=show, epochs=1), optimizer=world.optimizer_model(log=heard)
        )
        assert any("What the verifier knows" in m[1].content for m in heard) == show


# ---- what is shipped and tested -----------------------------------------------------------------------------------


def run_noted(world: SimpleNamespace, rule: ShippingRule) -> Summary:
    """A run with few selection tasks, whose last notes make the final skill another one than the best."""
    changed = replace(world.SETTINGS, epochs=1, appendix=Appendix(enabled=True), shipping=ShippingSettings(rule=rule))
    return summary(world.run(settings=changed, splits=world.splits(selection=2)))


def test_the_best_skill_on_the_selection_split_is_kept_if_the_initial_one_is_shipped(world: SimpleNamespace):
    end = run_noted(world, "certain")
    assert (end.best.origin, end.claim and end.claim.is_better) == ("initial_skill", False)
    assert end.best_on_selection is not None and end.best_on_selection.selection == 1.0
    assert end.best_on_selection.skill not in (end.initial.skill, end.final.skill)
    assert "ludus evaluate" in end.best_on_selection.untested, "it says why there is no test"
    assert end.final.test is not None and not end.final.untested


def test_the_rule_best_ships_and_tests_what_was_best_there(world: SimpleNamespace):
    end = run_noted(world, "best")
    assert end.best_on_selection is not None and end.shipment is not None
    assert end.best.skill == end.best_on_selection.skill != end.final.skill
    assert (end.shipment.shipped, end.shipment.fresh, end.shipment.rollouts) == (end.best.skill.hash, False, 2)
    assert end.final.selection is not None, "the final skill is measured: it could have been the best"
    assert [each.test is not None for each in (end.initial, end.best, end.final)] == [True, True, True]


def test_a_guard_that_only_warns_leaves_the_warning_in_the_record(world: SimpleNamespace):
    changed = replace(world.SETTINGS, epochs=1, guards=GuardSettings(refuse=False, words=1, answer_chars=1))
    (first, *_) = steps(world.run(settings=changed))
    assert first.warnings and all("although" in warning for warning in first.warnings)
    assert first.action.startswith("accept")
    refused = replace(changed, guards=replace(changed.guards, refuse=True))
    assert steps(world.run(settings=refused))[0].action == "skip_refused"


# ---- the world breaks ---------------------------------------------------------------------------------------------


class Fragile(msgspec.Struct):
    """A script for an agent whose server fails for some questions."""

    world: Any
    broken: set[str]
    tries: dict[str, int]

    def __call__(self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Message:
        question = messages[-1].content
        self.tries[question] = self.tries.get(question, 0) + 1
        if question in self.broken:
            raise ModelError("server on fire")
        return self.world.agent(messages, tools, sampling)


def test_failures_are_retried_excluded_and_never_zeros(world: SimpleNamespace):
    agent = Fragile(world, {"selection question 0", "train question 1"}, {})
    records = world.run(policy=world.policy("Obey RULE-0. Obey RULE-1.", agent))
    baseline = records[0]
    assert isinstance(baseline, Baseline)
    assert (baseline.measure.failed, len(baseline.measure.marks), baseline.measure.hard) == (1, 5, 0.6)
    assert agent.tries["selection question 0"] >= 3
    taken = steps(records)
    assert sum(batch.failed for step in taken for batch in step.batches) == 2
    assert all("train-1" not in r.tasks for step in taken for r in step.reflections)
    end = summary(records)
    assert end.shipment is not None and end.claim is not None
    (candidate,) = end.shipment.candidates
    assert (candidate.better, candidate.worse, candidate.measure.failed) == (2, 0, 3), "a failure is missing data"
    assert len(candidate.measure.marks) == 5, "two better tasks of five, in three passes"
    assert candidate.transfer < 0.99 < candidate.certainty, "it is surer of these tasks than of others"


def test_an_outage_stops_the_run_and_resuming_goes_on_with_what_is_there(world: SimpleNamespace):
    store = MemoryStore()
    agent = Fragile(world, {f"selection question {n}" for n in range(4)}, {})
    with pytest.raises(Outage, match=r"4 of 6 rollouts failed.*server on fire"):
        world.run(policy=world.policy(script=agent), store=store)
    agent.broken = set()
    tried = agent.tries["selection question 5"]
    assert summary(world.run(policy=world.policy(script=agent), store=store)).best.selection == 1.0
    assert tried == 1


def test_a_baseline_that_nothing_could_be_measured_for_stops_the_run(world: SimpleNamespace):
    agent = Fragile(world, {"selection question 0", "selection question 1"}, {})
    with pytest.raises(Outage, match="no selection task has a score"):
        world.run(policy=world.policy(script=agent), splits=world.splits(selection=2))


def test_without_a_common_item_the_gate_is_undecided_and_the_skill_stays(world: SimpleNamespace):
    class Flaky(Fragile):
        def __call__(self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Message:
            trained = "RULE-" in messages[0].content
            self.broken = {f"selection question {int(trained)}"}
            return super().__call__(messages, tools, sampling)

    records = world.run(
        settings=replace(world.SETTINGS, epochs=1),
        policy=world.policy(script=Flaky(world, set(), {})),
        splits=world.splits(selection=2),
    )
    assert {step.action for step in steps(records)} == {"undecided"}
    assert summary(records).undecided == 2
    assert summary(records).final.skill == Skill("# Skill\n")


def test_a_decision_is_not_made_again_when_the_cause_of_failures_is_gone(world: SimpleNamespace):
    store = MemoryStore()
    agent = Fragile(world, {"selection question 0"}, {})
    first = world.run(policy=world.policy(script=agent), store=store)
    agent.broken = set()
    assert world.run(policy=world.policy(script=agent), store=store) == first


def test_a_spent_budget_stops_the_run_which_goes_on_with_a_larger_one(world: SimpleNamespace):
    store = MemoryStore()

    def limited(calls: int | None) -> list[Record]:
        ledger = Ledger(Budget(calls=calls))
        policy = world.policy()
        metered = MeteredModel(policy.model, ledger, "agent")
        return world.run(policy=world.policy(script=lambda m, t, s: metered.complete(m, t, s)), store=store)

    with pytest.raises(BudgetExhausted):
        limited(20)
    assert len(list(read_records(store))) >= 1
    assert [timeless(record) for record in limited(None)] == [timeless(record) for record in world.run()]


def test_an_optimizer_that_is_down_stops_the_run(world: SimpleNamespace):
    def down(messages: Sequence[Message]) -> Any:
        raise ModelError("connection refused")

    with pytest.raises(ModelError, match="connection refused"):
        world.run(optimizer=world.optimizer_model(down))


# ---- running it ---------------------------------------------------------------------------------------------------


def test_what_is_spent_adds_up(world: SimpleNamespace):
    records = world.run()
    end = summary(records)
    last = add_costs(*[r.spent for r in records if not isinstance(r, Summary)])
    ended = [entry for entry in end.spent if entry.stage in ("ship", "test")]
    assert add_costs(last, ended) == end.spent
    assert [entry.calls for entry in ended] == [12, 12]
    by_stage = {(entry.role, entry.stage): entry.calls for entry in end.spent}
    assert by_stage["agent", "baseline"] == 6
    assert by_stage["agent", "rollout"] == 12
    assert by_stage["agent", "slow"] == 3  # an epoch without a change: both skills are one text
    assert all(entry.usage.tokens > 0 for entry in end.spent)


def test_a_text_is_measured_once(world: SimpleNamespace):
    asked = Counter[tuple[str, str]]()

    def agent(messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Message:
        if messages[-1].content.startswith("selection"):
            asked[messages[0].content, messages[-1].content] += 1
        return world.agent(messages, tools, sampling)

    world.run(policy=world.policy(script=agent), optimizer=world.optimizer_model(harmful(world)))
    assert set(asked.values()) == {1}


def test_several_runs_fit_in_one_process(world: SimpleNamespace):
    async def both() -> list[list[Record]]:
        runs = [
            train(
                Runner(world.Env()),
                world.policy(),
                world.splits(),
                settings,
                optimizer=world.optimizer_model(),
            )
            for settings in (
                world.SETTINGS,
                replace(world.SETTINGS, update_mode="rewrite_from_suggestions", seed=7),
                replace(world.SETTINGS, appendix=Appendix(enabled=True), gate=Gate(metric="soft")),
            )
        ]
        return await asyncio.gather(*[world.collect(one) for one in runs])

    together = asyncio.run(both())
    assert [summary(records).best.selection for records in together] == [1.0, 1.0, 1.0]
    assert [s.action for s in steps(together[0])] == [s.action for s in steps(world.run())]
    assert not read_notes(summary(together[0]).final.skill)
    assert read_notes(summary(together[2]).final.skill)


async def test_skills_that_are_compared_run_side_by_side(world: SimpleNamespace):
    """The slow update's two skills, and the two of the final test: both are under way before any has ended."""
    waiting: dict[str, set[str]] = {"slow": set(), "test": set()}
    wanted = {"slow": 2, "test": 2}

    async def agent(messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Message:
        skill, question = messages[0].content, messages[-1].content
        stage = "test" if question.startswith("test") else where
        if stage in waiting:
            waiting[stage].add(skill)
            for _ in range(10_000):
                if len(waiting[stage]) >= wanted[stage]:
                    break
                await asyncio.sleep(0)
            assert len(waiting[stage]) >= wanted[stage]
        return world.agent(messages, tools, sampling)

    where = ""

    settings = replace(slow_settings(world, gated=False), edit_budget=1, min_edit_budget=1)
    async for record in train(
        Runner(world.Env(), options=RunOptions(concurrency=64)),
        world.policy(script=agent),
        world.splits(),
        settings,
        optimizer=world.optimizer_model(),
    ):
        if isinstance(record, Step):
            where = "slow" if record.number == 4 else ""
        elif isinstance(record, EpochEnd):
            where = ""
    assert len(waiting["slow"]) == 2


def test_progress_is_reported_while_a_stage_runs(world: SimpleNamespace):
    reports: list[StageProgress] = []
    world.run(resources=Resources(watch=reports.append))
    assert reports[0] == StageProgress(0, 0, "baseline", 1, 6)
    stages = {(p.epoch, p.step, p.stage) for p in reports}
    assert {(1, 1, "rollout"), (1, 2, "evaluate"), (2, 4, "slow"), (2, 4, "test")} <= stages
    assert all(1 <= p.done <= p.total for p in reports if p.total)
    replies = {(p.epoch, p.step, p.stage) for p in reports if not p.total}
    assert {(1, 1, "analyst"), (2, 4, "meta")} <= replies


@pytest.mark.parametrize("stage", ["rollout", "evaluate"])
def test_a_run_that_is_asked_to_stop_ends_before_its_summary_and_can_go_on(world: SimpleNamespace, stage: str):
    store = MemoryStore()

    async def some() -> list[Record]:
        control = RunControl()
        seen: list[Record] = []

        def watch(progress: StageProgress) -> None:
            if progress.step == 2 and progress.stage == stage:
                control.stop()

        async for record in train(
            Runner(world.Env(), store=store, options=RunOptions(concurrency=2, control=control)),
            world.policy(),
            world.splits(),
            world.SETTINGS,
            optimizer=world.optimizer_model(),
            resources=Resources(watch=watch),
        ):
            seen.append(record)
        return seen

    partly = asyncio.run(some())
    assert [type(record) for record in partly] == [Baseline, Step]
    whole = world.run(store=store)
    assert whole[:2] == partly
    assert isinstance(whole[-1], Summary)


# ---- the seam -----------------------------------------------------------------------------------------------------


class Copyist(Proposer):
    """No model at all: the rule that a failure asks for becomes an edit."""

    name: ClassVar[str] = "copyist"

    async def reflect(self, view: View, batch: int, rollouts: AsyncIterator[Rollout]) -> tuple[Reflection, ...]:
        failed = [r async for r in rollouts if r.score is not None and not r.score.passed]
        edits = tuple(credit_item(Edit("append", f"Obey {r.task.answer}."), "failure", [r.task.id]) for r in failed)
        return (Reflection("failure", tuple(r.task.id for r in failed), edits),)


def test_a_proposer_without_a_model_trains_within_the_same_budget_and_gate(world: SimpleNamespace):
    settings = replace(world.SETTINGS, slow=SlowUpdate(enabled=False), memory=False, edit_budget=1, min_edit_budget=1)
    records = world.run(settings=settings, proposer=Copyist(), optimizer=False)
    assert all(len([f for f in s.fates if f.status == "applied_append"]) <= 1 for s in steps(records))
    assert summary(records).best.test.overall.hard == 1.0
    assert {entry.role for entry in summary(records).spent} == {"agent"}


def test_a_verifier_that_raises_is_a_failure(world: SimpleNamespace):
    class Moody(world.Env, frozen=True):
        async def verify(self, rollout: Rollout, box: Any) -> Score:
            if rollout.task.id == "selection-0":
                raise RuntimeError("judge asleep")
            return await super().verify(rollout, box)

    baseline = world.run(env=Moody())[0]
    assert isinstance(baseline, Baseline)
    assert (baseline.measure.failed, len(baseline.measure.marks)) == (1, 5)


def test_the_agent_and_the_optimizer_are_two_models(world: SimpleNamespace):
    asked = Counter[str]()

    def optimizer(messages: Sequence[Message], tools: Any, sampling: Any) -> Message:
        asked["optimizer"] += 1
        assert "question" not in messages[0].content
        return say(json.dumps(world.optimizer(world.tag(messages, sampling.stage))))

    end = summary(world.run(optimizer=ScriptedModel(optimizer, name="o")))
    assert asked["optimizer"] == sum(entry.calls for entry in end.spent if entry.role == "optimizer")
