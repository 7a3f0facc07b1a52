"""The stages one by one: what each makes of what it is given, and of what it is not."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from ludus.reflact import step_buffer as buffer
from ludus.reflact.gate import Decision, Verdict
from ludus.reflact.items import Document, Suggestion, credit_item, number_items, summarize_item
from ludus.reflact.journal import Journal
from ludus.reflact.optimizer import Optimizer
from ludus.reflact.prompt_templates import Prompts
from ludus.reflact.proposers import Proposer, View
from ludus.reflact.records import (
    BatchReport,
    BudgetDecision,
    Fate,
    MeasuredSkill,
    Pattern,
    Reflection,
    RunState,
    pool_scores,
)
from ludus.reflact.stages.aggregate import aggregate
from ludus.reflact.stages.appendix import note_lapses
from ludus.reflact.stages.reflect import parse_notes, reflect
from ludus.reflact.stages.select import choose_items, decide_budget, rank_items
from ludus.reflact.stages.slow_update import (
    Pair,
    categorize,
    count_categories,
    describe_pairs,
    filter_pairs,
    pair_rollouts,
)
from ludus.reflact.stages.update import make_patch, take_document, update
from ludus.reflact.train_settings import Appendix, TrainSettings
from ludus.skill import Edit, Skill, add_notes, read_guidance, read_notes, set_guidance
from ludus.store import MemoryStore
from ludus.types import Failure, Message, Provenance, Rollout, Score, StopReason, Task


def rollout(id: str, passed: bool | None, *, soft: float | None = None, feedback: str = "") -> Rollout:
    failed = passed is None
    score = None if failed else Score(float(passed), passed, float(passed) if soft is None else soft, feedback)
    return Rollout(
        task=Task(id=id, prompt=f"do {id}"),
        provenance=Provenance(policy="p", model="m"),
        stop=StopReason.FAILED if failed else StopReason.FINISHED,
        score=score,
        failure=Failure("sandbox", "gone") if failed else None,
    )


class Desk:
    """A view whose optimizer answers with what `replies` returns, and remembers what it was asked."""

    def __init__(self, world: SimpleNamespace, replies: Any = None, skill: str = "# Skill\n", **settings: Any) -> None:
        self.heard: list[Sequence[Message]] = []
        self.journal = Journal()
        model = world.optimizer_model(replies or world.optimizer, self.heard)
        self.view = View(
            settings=TrainSettings(**{"minibatch_size": 2, "merge_batch_size": 2, **settings}),
            skill=Skill(skill),
            epoch=1,
            step=1,
            history="",
            memory="",
            system="",
            optimizer=Optimizer(model, Prompts.load(), MemoryStore(), self.journal, tries=2),
        )


async def arriving(rollouts: Sequence[Rollout]) -> AsyncIterator[Rollout]:
    for one in rollouts:
        yield one


def do(work: Any) -> Any:
    return asyncio.run(work)


# ---- 2 reflect ----------------------------------------------------------------------------------------------------


def test_failures_and_successes_are_dealt_apart_and_broken_rollouts_are_left_out(world: SimpleNamespace):
    desk = Desk(world)
    rollouts = [rollout("a", False), rollout("b", True), rollout("c", None), rollout("d", False), rollout("e", False)]
    found = do(reflect(desk.view, 1, arriving(rollouts)))
    assert [(r.source, r.tasks) for r in found] == [("failure", ("a", "d")), ("failure", ("e",)), ("success", ("b",))]
    assert "gone" not in str(desk.heard)


def test_learning_from_failures_only(world: SimpleNamespace):
    desk = Desk(world, failure_only=True)
    found = do(reflect(desk.view, 1, arriving([rollout("a", True), rollout("b", False)])))
    assert [r.source for r in found] == ["failure"]


def test_partial_credit_is_not_a_success_unless_a_threshold_says_so(world: SimpleNamespace):
    """SkillOpt takes any score above 0 for a success."""
    partly = [rollout("a", False, soft=0.9), rollout("b", False, soft=0.2)]
    strict = do(reflect(Desk(world).view, 1, arriving(partly)))
    assert [(r.source, r.tasks) for r in strict] == [("failure", ("a", "b"))]
    loose = do(reflect(Desk(world, success_at=0.5).view, 1, arriving(partly)))
    assert [(r.source, r.tasks) for r in loose] == [("failure", ("b",)), ("success", ("a",))]


def test_support_is_the_minibatch_that_was_read_and_not_what_the_model_claims(world: SimpleNamespace):
    """SkillOpt aborts on a claim that is not a number."""

    def claims(messages: Sequence[Message]) -> dict[str, Any]:
        return {"items": [world.edit("x", support="all of them", evidence="sure")], "batch_size": "about eight"}

    (found,) = do(reflect(Desk(world, claims).view, 1, arriving([rollout("a", False), rollout("b", False)])))
    (item,) = found.items
    assert (item.support, item.evidence, item.source) == (2, ("a", "b"), "failure")


def test_an_analyst_proposes_at_most_what_it_may(world: SimpleNamespace):
    def many(messages: Sequence[Message]) -> dict[str, Any]:
        return {"items": [world.edit(f"rule {n}") for n in range(5)]}

    (found,) = do(reflect(Desk(world, many, edit_budget=2).view, 1, arriving([rollout("a", False)])))
    assert ([item.content for item in found.items], found.cut) == (["rule 0", "rule 1"], 3)


def test_an_analyst_who_stays_unusable_proposes_nothing_and_the_event_is_recorded(world: SimpleNamespace):
    desk = Desk(world, lambda messages: "I would rather not.")
    (found,) = do(reflect(desk.view, 1, arriving([rollout("a", False)])))
    assert found == Reflection("failure", ("a",))
    (event,) = desk.journal.list_events()
    assert (event.stage, event.consequence) == ("analyst", "this minibatch proposed nothing")


def test_patterns_are_tied_to_the_tasks_that_were_shown(world: SimpleNamespace):
    tries = iter([[1, 7], [2]])

    def replies(messages: Sequence[Message]) -> dict[str, Any]:
        return {"items": [], "patterns": [{"name": "slips", "rollouts": next(tries)}]}

    desk = Desk(world, replies)
    (found,) = do(reflect(desk.view, 1, arriving([rollout("a", False), rollout("b", False)])))
    assert found.patterns == (Pattern("slips", "", ("b",)),)
    assert "were not shown: [7]" in desk.heard[1][3].content


def test_prompts_are_bounded_whatever_the_rollouts_are(world: SimpleNamespace):
    huge = rollout("a", False, feedback="f" * 500_000)
    desk = Desk(world, trajectory_tokens=1000)
    do(reflect(desk.view, 1, arriving([huge, rollout("b", False, feedback="see me")])))
    (message,) = {m[1].content for m in desk.heard}
    assert len(message) < 8_000
    assert "see me" in message
    assert "characters left out" in message


def test_the_same_rollouts_make_the_same_minibatches_whatever_ends_first(world: SimpleNamespace):
    rollouts = [rollout(str(n), n % 3 == 0) for n in range(9)]

    async def slowly(order: Sequence[int]) -> list[tuple[str, ...]]:
        loop = asyncio.get_running_loop()
        slots = [loop.create_future() for _ in rollouts]

        async def stream() -> AsyncIterator[Rollout]:
            for slot in slots:
                yield await slot

        async with asyncio.TaskGroup() as group:
            reading = group.create_task(reflect(Desk(world).view, 1, stream()))
            for n in order:
                await asyncio.sleep(0)
                slots[n].set_result(rollouts[n])
        return [r.tasks for r in reading.result()]

    assert do(slowly(range(9))) == do(slowly([8, 2, 5, 0, 1, 7, 6, 4, 3]))


def test_an_analyst_starts_as_soon_as_its_minibatch_is_complete(world: SimpleNamespace):
    desk = Desk(world)

    async def stream() -> AsyncIterator[Rollout]:
        yield rollout("a", False)
        yield rollout("b", False)
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(desk.heard) == 1  # the first minibatch is being read while rollouts still run
        yield rollout("c", False)

    assert len(do(reflect(desk.view, 1, stream()))) == 2


@pytest.mark.parametrize(
    ("written", "notes"),
    [
        (["a", " ", "b "], ("a", "b")),
        ("one", ("one",)),
        ([{"note": "a"}, {"content": "b"}, {"text": "c"}], ("a", "b")),
        ([], ()),
    ],
)
def test_notes_are_read_in_every_form_that_models_write_them(written: Any, notes: tuple[str, ...]):
    assert parse_notes(written) == notes


@pytest.mark.parametrize(
    ("settings", "source", "asked"),
    [
        ({"appendix": Appendix(enabled=True)}, False, True),
        ({"appendix": Appendix(enabled=True)}, True, True),
        ({"appendix": Appendix(enabled=True, sources="failure_only")}, True, False),
        ({"appendix": Appendix(enabled=True, sources="failure_only")}, False, True),
        ({}, False, False),
        ({"appendix": Appendix(enabled=True), "update_mode": "full_rewrite_minibatch"}, False, False),
    ],
)
def test_who_is_asked_for_notes(world: SimpleNamespace, settings: dict[str, Any], source: bool, asked: bool):
    desk = Desk(world, **settings)
    (found,) = do(reflect(desk.view, 1, arriving([rollout("a", source, feedback="rule missing: RULE-1")])))
    assert ("Tell two kinds of failure apart" in desk.heard[0][0].content) == asked
    assert bool(found.notes) == (asked and not source)


# ---- 3 aggregate --------------------------------------------------------------------------------------------------


def proposal(source: str, *tasks: str, items: Sequence[str]) -> Reflection:
    made = tuple(credit_item(Edit("append", text), source, tasks) for text in items)  # type: ignore[arg-type]
    return Reflection(source, tasks, made)  # type: ignore[arg-type]


def test_one_proposal_is_taken_as_it_is_without_a_call(world: SimpleNamespace):
    desk = Desk(world)
    only = proposal("failure", "a", items=["x"])
    assert do(aggregate(desk.view, [only, Reflection("failure", ("b",))])) == only.items
    assert do(aggregate(desk.view, [])) == ()
    assert desk.heard == []


def test_proposals_are_merged_level_by_level_with_the_evidence_they_came_from(world: SimpleNamespace):
    desk = Desk(world)
    merged = do(
        aggregate(
            desk.view,
            [
                proposal("failure", "a", items=["x", "y"]),
                proposal("failure", "b", items=["x"]),
                proposal("failure", "c", items=["x"]),
                proposal("success", "s", items=["x"]),
            ],
        )
    )
    assert [world.role(m) for m in desk.heard] == ["merge_failure", "merge_failure", "merge_final"]
    assert [(i.content, i.support, i.evidence, i.source) for i in merged] == [
        ("x", 4, ("a", "b", "c", "s"), "mixed"),
        ("y", 1, ("a",), "failure"),
    ]
    assert merged[0].level == 3


def test_a_merge_that_drops_everything_is_not_believed(world: SimpleNamespace):
    """SkillOpt accepts an empty merge, and with it loses every proposal of the step."""
    desk = Desk(world, lambda messages: {"items": []})
    proposals = [proposal("failure", "a", items=["x"]), proposal("failure", "b", items=["y"])]
    assert [i.content for i in do(aggregate(desk.view, proposals))] == ["x", "y"]
    (event,) = desk.journal.list_events()
    assert "must not drop everything" in event.problem
    assert event.consequence == "the items of the group were kept as they were"


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"item": {"op": "append", "content": "z"}, "made_of": []}, "empty made_of"),
        ({"item": {"op": "append", "content": "z"}, "made_of": [3]}, "do not exist: [3]"),
        ({"item": "just text", "made_of": [1]}, "Expected `object`"),
        ("just text", "Expected `object`"),
        ({"item": {"op": "swap"}, "made_of": [1]}, "Invalid enum value 'swap'"),
    ],
)
def test_a_merge_whose_items_come_from_nowhere_is_asked_again(world: SimpleNamespace, entry: Any, says: str):
    """Items that are no objects crash SkillOpt's own fallback."""
    desk = Desk(world, lambda messages: {"items": [entry]})
    proposals = [proposal("failure", "a", items=["x"]), proposal("failure", "b", items=["y"])]
    assert len(do(aggregate(desk.view, proposals))) == 2
    assert says in desk.heard[1][3].content


# ---- 4 select -----------------------------------------------------------------------------------------------------

ITEMS = tuple(credit_item(Edit("append", str(n)), "failure", ["t"] * 1) for n in range(4))
REPORTS = (BatchReport(1, 4, 1, 1 / 3, 0.5), BatchReport(2, 1, 0, 1.0, 1.0))


def test_what_fits_the_budget_is_taken_untouched_without_a_call(world: SimpleNamespace):
    desk = Desk(world)
    assert do(choose_items(Proposer(), desk.view, ITEMS, BudgetDecision("scheduled", 4, 4))) == (0, 1, 2, 3)
    assert do(choose_items(Proposer(), desk.view, ITEMS, None)) == (0, 1, 2, 3)
    assert do(choose_items(Proposer(), desk.view, ITEMS, BudgetDecision("none", None, 4))) == (0, 1, 2, 3)


def test_a_budget_of_zero_selects_nothing(world: SimpleNamespace):
    """SkillOpt still applies one edit."""

    class Eager(Proposer):
        async def select(self, view: View, items: Any, budget: int) -> tuple[int, ...]:
            return (0, 1, 2)

    assert do(choose_items(Eager(), Desk(world).view, ITEMS, BudgetDecision("autonomous", 0, 4))) == ()
    assert do(choose_items(Eager(), Desk(world).view, ITEMS, BudgetDecision("autonomous", 2, 4))) == (0, 1)


def test_the_ranking_decides_which_and_in_what_order(world: SimpleNamespace):
    desk = Desk(world, lambda messages: {"selected": [4, 9, 4, 0, 1, 2]})
    assert do(rank_items(desk.view, ITEMS, 2)) == (3, 0)


def test_a_ranking_that_stays_unusable_means_the_first_items_and_an_event(world: SimpleNamespace):
    desk = Desk(world, lambda messages: {"selected": [17]})
    assert do(rank_items(desk.view, ITEMS, 2)) == (0, 1)
    assert desk.journal.list_events()[0].consequence == "the first items were taken"


def test_without_a_model_the_items_with_most_support_are_selected(world: SimpleNamespace):
    items = [
        credit_item(Edit("append", str(n)), "failure", map(str, range(support))) for n, support in enumerate([1, 3, 2])
    ]
    assert do(Proposer().select(Desk(world).view, items, 2)) == (1, 2)


def test_scheduled_budgets(world: SimpleNamespace):
    desk = Desk(world, edit_budget=10, min_edit_budget=2, schedule="linear")
    values = [do(decide_budget(desk.view, ITEMS, REPORTS, step, 4)).value for step in (1, 2, 3, 4)]
    assert values == [8, 6, 4, 2]
    assert do(decide_budget(Desk(world, control="none").view, ITEMS, REPORTS, 1, 4)).value is None
    assert do(decide_budget(Desk(world, update_mode="full_rewrite_minibatch").view, ITEMS, REPORTS, 1, 4)) is None


def test_an_autonomous_budget_is_the_optimizers_with_its_reasons(world: SimpleNamespace):
    desk = Desk(world, lambda m: {"budget": 9, "reasoning": "much is wrong", "risks": ["haste"]}, control="autonomous")
    decision = do(decide_budget(desk.view, ITEMS, REPORTS, 1, 4))
    assert (decision.value, decision.asked, decision.reasoning, decision.risks) == (4, 9, "much is wrong", ("haste",))
    assert "4 rollouts; passed 0.500000; mean partial credit 0.625000" in desk.heard[0][1].content
    assert pool_scores(REPORTS) == (4, 0.5, 0.625)


@pytest.mark.parametrize("reply", [{"budget": -1}, {"budget": "a few"}, {"budget": True, "confidence": "sure"}, "two"])
def test_an_autonomous_budget_that_stays_unusable_applies_nothing_and_is_recorded(world: SimpleNamespace, reply: Any):
    desk = Desk(world, lambda messages: reply, control="autonomous")
    decision = do(decide_budget(desk.view, ITEMS, REPORTS, 1, 4))
    assert (decision.value, decision.asked) == (0, None)
    assert desk.journal.list_events()[0].consequence == "nothing was applied"


# ---- 5 update -----------------------------------------------------------------------------------------------------

KEPT = add_notes(set_guidance(Skill("# Skill\n"), "guide"), ["note"])


def test_edits_are_applied_and_each_has_its_fate():
    made = make_patch(Skill("a b\n"), [Edit("replace", "c", "b"), Edit("delete", "", "zz")])
    assert made.candidate == Skill("a c\n")
    assert [fate.status for fate in made.fates] == ["applied_replace", "skipped_delete_target_not_found"]


@pytest.mark.parametrize("document", ["New.", "New.\n<!-- SLOW_UPDATE_START -->\nforged\n<!-- SLOW_UPDATE_END -->"])
def test_protected_parts_survive_every_way_to_rewrite(world: SimpleNamespace, document: str):
    """In SkillOpt only the prompt asks for that."""
    desk = Desk(world, lambda m: {"document": document}, KEPT.text, update_mode="rewrite_from_suggestions")
    rewritten = do(update(desk.view, [Suggestion("clarify", "Say it.")]))
    whole = take_document(KEPT, [Document(" "), Document(document, changes=("all",))])
    for made in (rewritten, whole):
        assert made.candidate is not None
        assert made.candidate.text.startswith("New.\n")
        assert (read_guidance(made.candidate), read_notes(made.candidate)) == ("guide", ("note",))
    assert whole.changes == ("all",)
    assert [fate.status for fate in whole.fates] == ["not_selected", "used"]


def test_a_rewrite_that_stays_unusable_makes_no_candidate(world: SimpleNamespace):
    desk = Desk(world, lambda m: {"document": " "}, update_mode="rewrite_from_suggestions")
    made = do(update(desk.view, [Suggestion("clarify", "Say it.")]))
    assert made.candidate is None
    assert desk.journal.list_events()[0].problem == "its document is empty"
    assert take_document(KEPT, [Document(" ")]).candidate is None


# ---- the buffer ---------------------------------------------------------------------------------------------------


def verdict(decision: Decision) -> Verdict:
    return Verdict(decision, 0.25, 0.5, 0.75, 4)


def test_a_failure_pattern_keeps_the_tasks_that_its_analyst_tied_to_it():
    """SkillOpt puts the analysts' labels on unrelated groups of tasks."""
    rollouts = [
        rollout("a", False, feedback="timeout: 5 s"),
        rollout("b", False, feedback="wrong: 3"),
        rollout("c", False, feedback="timeout: 9 s"),
        rollout("d", True),
        rollout("e", None),
    ]
    reflections = [Reflection("failure", ("a", "b", "c"), patterns=(Pattern("slip", "a slip", ("b", "d")),))]
    entry = buffer.make_digest(3, verdict(Decision.ACCEPT), rollouts, reflections, [], None)
    assert [(p.name, p.tasks) for p in entry.patterns] == [("slip", ("b",)), ("timeout", ("a", "c"))]
    assert (entry.tasks, entry.failed, entry.tried, entry.before) == (4, 3, (), None)


def test_what_was_rejected_is_remembered_with_what_it_did():
    fates = [
        Fate(Edit("append", "Never do."), "applied_append"),
        Fate(Edit("delete", "", "gone"), "skipped_delete_target_not_found"),
    ]
    entry = buffer.make_digest(3, verdict(Decision.REJECT), [rollout("a", False)], [], fates, None)
    assert (entry.before, entry.after, entry.tried) == (0.5, 0.25, ("append: Never do.",))
    words = buffer.describe_buffer([entry])
    assert "Step 3: reject; 1 of 1 tasks failed." in words
    assert "score 0.5000 → 0.2500" in words
    assert "1. append: Never do." in words
    assert "delete at 'gone' (skipped_delete_target_not_found)" in words
    assert buffer.describe_buffer([]) == ""


def test_items_in_words():
    items = [Edit("append", "x"), Suggestion("clarify", "Say it.", "t"), Document("text", "t", ("c",))]
    assert [summarize_item(item) for item in items] == ["append: x", "clarify: t. Say it.", "rewrite: t. c"]
    assert (
        number_items([credit_item(items[0], "success", "ab")]) == "[1] from 2 success rollouts\nop: append\ncontent: x"
    )
    assert number_items([]) == "None."


# ---- slow ---------------------------------------------------------------------------------------------------------


def test_pairs_are_categorized_and_tasks_that_were_not_judged_are_left_out():
    before = [rollout("a", True), rollout("b", False), rollout("c", True), rollout("d", False), rollout("e", None)]
    after = [rollout("a", True), rollout("b", True), rollout("c", False), rollout("d", False), rollout("e", True)]
    pairs = pair_rollouts(before, after, None)
    assert count_categories(pairs) == {"regressed": 1, "persistent_fail": 1, "improved": 1, "stable_success": 1}
    assert [p.current.task.id for p in filter_pairs(pairs, "changed")] == ["b", "c"]
    assert [p.current.task.id for p in filter_pairs(pairs, "unchanged")] == ["a", "d"]
    assert filter_pairs(pairs, "mixed") == pairs
    assert categorize(True, False) == "regressed"


def test_partial_credit_is_a_failure_in_comparisons_too():
    """SkillOpt counts any score above 0 as a pass."""
    (pair,) = pair_rollouts([rollout("a", False, soft=0.9)], [rollout("a", False, soft=0.1)], None)
    assert pair.category == "persistent_fail"
    (pair,) = pair_rollouts([rollout("a", False, soft=0.9)], [rollout("a", False, soft=0.1)], 0.5)
    assert pair.category == "regressed"


def test_the_comparison_shows_regressions_first_and_stays_within_the_budget(world: SimpleNamespace):
    pairs = [
        Pair("stable_success", rollout("s", True), rollout("s", True)),
        Pair("regressed", rollout("r", True), rollout("r", False, feedback="broke")),
    ]
    text = describe_pairs(Desk(world).view, pairs)
    assert text.startswith("2 tasks.")
    titles = [line for line in text.splitlines() if line.startswith("## ")]
    assert [title.split(":")[0] for title in titles] == [
        "## Regressed",
        "## Failed both times",
        "## Improved",
        "## Succeeded both times",
    ]
    assert text.count("(none)") == 2
    assert "With the skill of the last epoch: passed" in text
    assert "broke" in text
    asked = msgspec.structs.replace(rollout("l", False).task, prompt="p" * 500_000)
    long = msgspec.structs.replace(rollout("l", False, feedback="f" * 500_000), task=asked)
    more = describe_pairs(Desk(world, trajectory_tokens=1000).view, [*pairs, Pair("persistent_fail", long, long)])
    assert len(more) < 8_000
    assert "broke" in more and "characters left out" in more


# ---- the appendix -------------------------------------------------------------------------------------------------


def noted(world: SimpleNamespace, replies: Any, threshold: int, *step_notes: str) -> tuple[RunState, bool, Desk]:
    desk = Desk(world, replies, appendix=Appendix(enabled=True, consolidate_above=threshold))
    start = MeasuredSkill(add_notes(Skill("body"), ["old"]), "initial_skill")
    state = RunState(initial=start, current=start, best=start)
    reflections = [Reflection("failure", ("a",), notes=step_notes)]
    after, consolidated = do(note_lapses(desk.view, state, 3, reflections))
    return after, consolidated, desk


def test_notes_change_the_current_skill_which_is_then_unmeasured(world: SimpleNamespace):
    after, consolidated, desk = noted(world, None, 0, "new", "OLD.")
    assert read_notes(after.current.skill) == ("old", "new")
    assert (after.current.measure, after.current.origin, consolidated) == (None, "appendix_step_0003", False)
    assert after.best == after.initial
    assert desk.heard == []


def test_notes_that_are_there_already_change_nothing(world: SimpleNamespace):
    after, _, _ = noted(world, None, 0, "Old")
    assert after.current == after.initial


def test_too_many_notes_are_consolidated_and_only_into_fewer(world: SimpleNamespace):
    after, consolidated, _ = noted(world, lambda m: {"notes": ["both"]}, 1, "new")
    assert (read_notes(after.current.skill), consolidated) == (("both",), True)
    for bad in ([], ["a", "b"], ["a", "b", "c"]):
        after, consolidated, desk = noted(world, lambda m, bad=bad: {"notes": bad}, 1, "new")
        assert (read_notes(after.current.skill), consolidated) == (("old", "new"), False)
        assert desk.journal.list_events()[0].consequence == "the notes stayed as they were"
