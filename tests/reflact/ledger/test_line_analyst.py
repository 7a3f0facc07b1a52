"""What an analyst of the ledger is shown, and what its reply becomes."""

from types import SimpleNamespace
from typing import Any

import pytest
from tests.ledger_kit import make_ledger, make_line, make_situation, read
from tests.reflact_kit import ScriptedView, make_result

from ludus.reflact.ledger.line_analyst import (
    CONTENT_CHARS,
    LineItem,
    LineReply,
    RolloutCauses,
    analyse_failures,
    apply_causes,
    check_reply,
    find_deleted,
    make_proposal,
    read_causes,
    read_origins,
    read_place,
    shape_reply,
)
from ludus.reflact.ledger.settings import LedgerSettings
from ludus.skill import Skill

LEDGER = make_ledger(
    [
        make_line("L1", "dates", text="Write dates in full."),
        make_line("L2", "units", text="Old.", retired=3, reason="useless"),
    ],
    [make_situation("dates", ["t1"]), make_situation("units", ["t1", "t2"])],
    working=("L1",),
)
BATCH = [(make_result("t1", False, feedback="no unit"), ("L1",)), (make_result("t2", False), ())]


async def analyse(scripted: ScriptedView) -> Any:
    return await analyse_failures(scripted.view, LEDGER, Skill("# Skill\n"), BATCH, "1/1/0")


async def test_the_analyst_sees_lines_situations_and_which_lines_each_rollout_had(world: SimpleNamespace):
    scripted = ScriptedView(world, lambda messages: {"rollouts": [], "items": []})
    await analyse(scripted)
    (request,) = scripted.requests
    assert world.get_stage(request) == "analyst_lines"
    asked = request[1].content
    assert "### Rollout 1: t1 (lines in its text: L1)" in asked
    assert "### Rollout 2: t2 (lines in its text: none)" in asked
    assert "L1 [dates] (in the skill): Write dates in full." in asked
    assert "L2 [units] (given up: useless): Old." in asked
    assert asked.index("- units") < asked.index("- dates"), "those that spoiled most tasks first"


async def test_the_reply_becomes_causes_and_proposals_with_their_true_origin(world: SimpleNamespace):
    reply = {
        "rollouts": [{"rollout": 1, "situations": ["units"], "suspects": ["L1"]}, {"rollout": 2}],
        "items": [
            {"situation": "units", "content": "Write units.", "rollouts": [1], "support": 99},
            {"situation": "dates", "content": "Better.", "rollouts": [2], "replaces": "L1"},
            {"situation": "units", "content": "Whose is it?"},
        ],
        "notes": ["Remember."],
    }
    found = await analyse(ScriptedView(world, lambda messages: reply))
    assert found.causes == {1: RolloutCauses(1, ("units",), ("L1",)), 2: RolloutCauses(2, (), ("L1",))}
    assert [(p.edit.evidence, p.edit.support, p.replaces) for p in found.proposals] == [
        (("t1",), 1, ""),
        (("t2",), 1, "L1"),
        (("t1",), 1, ""),
    ]
    assert found.notes == (), "the run writes no notes"


async def test_an_unusable_reply_names_nothing(world: SimpleNamespace):
    scripted = ScriptedView(world, lambda messages: "I would rather not.", ledger=LedgerSettings(most_proposals=2))
    found = await analyse(scripted)
    assert (found.tasks, found.causes, found.proposals) == (("t1", "t2"), {}, ())
    assert "at most 2 in all" in scripted.requests[0][0].content
    assert len(scripted.journal.list_events()) == 1


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (LineReply((RolloutCauses(3),)), "not shown: [3]"),
        (LineReply(items=(LineItem("s", "x", (0,)),)), "not shown: [0]"),
        (LineReply(items=(LineItem(" ", "x", (1,)),)), "item 1 has no situation"),
        (LineReply(items=(LineItem("s", " ", (1,)),)), "item 1 has no content"),
        (LineReply(items=(LineItem("s", "x" * (CONTENT_CHARS + 1), (1,)),)), "item 1 has 50,001 characters"),
        (LineReply(items=(LineItem("s", "", (1,), op="delete", target="x"),)), ""),
    ],
)
def test_replies_are_checked(reply: LineReply, problem: str):
    assert problem in check_reply(reply, 2) and bool(problem) == bool(check_reply(reply, 2))


def test_a_proposal_may_change_a_passage_of_the_initial_skill():
    item = LineItem("style", "Be quick.", (1,), op="replace", target="Be kind.")
    initial = Skill("Be kind.\n")
    assert read_place(item, LEDGER, initial) == item
    proposal = make_proposal(item, ["t9"], LEDGER, initial)
    assert (proposal.edit.op, proposal.edit.target, proposal.edit.evidence) == ("replace", "Be kind.", ("t9",))


def test_only_lines_of_the_text_can_be_suspects_and_a_rollout_that_was_not_mentioned_was_not_read():
    reading = read("t1", False, ["L1"])
    named = apply_causes(reading, RolloutCauses(1, (" units ", "", "units"), ("L1", "L9")))
    assert (named.situations, named.suspects, named.read) == (("units",), ("L1",), True)
    assert not apply_causes(reading, None).read


def test_a_reply_is_read_for_what_its_items_imply():
    lines = [make_line("P1", text="Answer in verse.", passage=True), make_line("L1", text="Write dates in full.")]
    reply = LineReply(
        (RolloutCauses(1), RolloutCauses(2, ("dates",))),
        (
            LineItem("units", "Write units.", (1, 2)),
            LineItem("verse", "", (2,), op="delete", target="Answer in verse."),
            LineItem("units", "Better.", (1,), replaces="L1"),
        ),
    )
    causes = read_causes(reply, lines)
    assert causes == {1: RolloutCauses(1, ("units",), ("L1",)), 2: RolloutCauses(2, ("dates",), ("P1",))}
    assert [find_deleted(item, lines) for item in reply.items] == ["", "P1", ""]


def test_items_without_rollouts_come_from_those_that_name_no_cause():
    reply = LineReply(
        (RolloutCauses(1, ("dates",)), RolloutCauses(2, ("", " "))),
        (
            LineItem("units", "Write units."),
            LineItem(" dates ", "Write dates."),
            LineItem("known", "Known."),
            LineItem("new", "Better.", replaces="L1"),
            LineItem("sums", "Add up.", (1,)),
        ),
    )
    found = read_origins(reply, 3, ["known"])
    assert [item.rollouts for item in found.items] == [(2, 3), (1,), (), (), (1,)]
    assert [entry.situations for entry in found.rollouts] == [("dates",), ()], "labels without a word name nothing"
    causes = read_causes(found, LEDGER.alive)
    assert {number: cause.situations for number, cause in causes.items()} == {
        1: ("dates",), 2: ("units",), 3: ("units",),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("item", "op"),
    [
        (LineItem("s", "x", op="replace", target="Be kind."), "replace"),
        (LineItem("s", "x", op="insert_after", target="dates in full"), "insert_after"),
        (LineItem("s", "x", op="replace", target="Be cruel."), "append"),
        (LineItem("s", "x", op="insert_after"), "append"),
        (LineItem("s", "", op="delete", target="Be cruel."), None),
        (LineItem("s", "", op="delete", target="Be kind."), "delete"),
        (LineItem("s", "x", op="replace", target="y", path="references/a.md"), "replace"),
    ],
)
def test_a_change_of_what_is_not_there_is_a_line_at_the_end_or_nothing(item: LineItem, op: str | None):
    found = read_place(item, LEDGER, Skill("Be kind.\n"))
    assert (found.op if found else None) == op


async def test_a_deletion_of_a_line_that_was_given_up_needs_nothing(world: SimpleNamespace):
    item = {"situation": "units", "op": "delete", "target": "L2", "rollouts": [1]}
    found = await analyse(ScriptedView(world, lambda messages: {"rollouts": [], "items": [item]}))
    assert found.proposals == ()


async def test_what_is_plain_is_put_right_without_asking_again(world: SimpleNamespace):
    reply = {
        "rollouts": [{"rollout": "Rollout 1", "situations": "units", "suspects": "L1"}, {"rollout": "2"}],
        "items": [{"situation": "units", "content": "Write units.", "rollouts": "Rollout 2", "op": "add"}],
    }
    scripted = ScriptedView(world, lambda messages: reply)
    found = await analyse(scripted)
    assert len(scripted.requests) == 1
    assert found.causes[1] == RolloutCauses(1, ("units",), ("L1",))
    assert [(proposal.edit.op, proposal.edit.evidence) for proposal in found.proposals] == [("append", ("t2",))]


@pytest.mark.parametrize("value", [[], "x", 3, {"rollouts": 3, "items": "x"}, {"rollouts": [1, None]}])
def test_other_shapes_are_left_to_the_check_of_the_form(value: Any):
    assert shape_reply(value) == value
