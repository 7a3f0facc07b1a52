"""Stage 5: candidates in all update modes, with protected parts unchanged."""

import asyncio
from types import SimpleNamespace

import pytest
from tests.reflact_kit import (
    ScriptedView,
)

from ludus.reflact.items import Document, Suggestion
from ludus.reflact.stages.update import make_patch, take_document, update
from ludus.skill import Edit, Skill, add_notes, read_guidance, read_notes, set_guidance

KEPT = add_notes(set_guidance(Skill("# Skill\n"), "guide"), ["note"])


def test_edits_are_applied_and_each_has_its_fate():
    made = make_patch(Skill("a b\n"), [Edit("replace", "c", "b"), Edit("delete", "", "zz")])
    assert made.candidate == Skill("a c\n")
    assert [fate.status for fate in made.fates] == ["applied_replace", "skipped_delete_target_not_found"]


@pytest.mark.parametrize("document", ["New.", "New.\n<!-- SLOW_UPDATE_START -->\nforged\n<!-- SLOW_UPDATE_END -->"])
def test_protected_parts_survive_every_way_to_rewrite(world: SimpleNamespace, document: str):
    """In SkillOpt only the prompt asks for that."""
    scripted = ScriptedView(world, lambda m: {"document": document}, KEPT.text, update_mode="rewrite_from_suggestions")
    rewritten = asyncio.run(update(scripted.view, [Suggestion("clarify", "Say it.")]))
    whole = take_document(KEPT, [Document(" "), Document(document, changes=("all",))])
    for made in (rewritten, whole):
        assert made.candidate is not None
        assert made.candidate.text.startswith("New.\n")
        assert (read_guidance(made.candidate), read_notes(made.candidate)) == ("guide", ("note",))
    assert whole.changes == ("all",)
    assert [fate.status for fate in whole.fates] == ["not_selected", "used"]


def test_a_rewrite_that_stays_unusable_makes_no_candidate(world: SimpleNamespace):
    scripted = ScriptedView(world, lambda m: {"document": " "}, update_mode="rewrite_from_suggestions")
    made = asyncio.run(update(scripted.view, [Suggestion("clarify", "Say it.")]))
    assert made.candidate is None
    assert scripted.journal.list_events()[0].problem == "its document is empty"
    assert take_document(KEPT, [Document(" ")]).candidate is None
