"""Stage 5: candidates in all update modes, with protected parts unchanged."""

from types import SimpleNamespace

import pytest
from tests.build import make_task
from tests.reflact_kit import ScriptedView

from ludus.reflact.guards import Guard, GuardSettings
from ludus.reflact.items import Document, Suggestion
from ludus.reflact.stages.update import Update, make_patch, refuse_candidate, take_document, update
from ludus.skill import Edit, Skill, add_notes, read_guidance, read_notes, set_guidance

NO_GUARD = Guard(GuardSettings(enabled=False), (), ())
TASKS = (make_task("t1", "Pack the nine red lamps into the large crate and seal it twice."),)
KEPT = add_notes(set_guidance(Skill("# Skill\n"), "guide"), ["note"])


def test_edits_are_applied_and_each_has_its_fate():
    made = make_patch(Skill("a b\n"), [Edit("replace", "c", "b"), Edit("delete", "", "zz")])
    assert made.candidate == Skill("a c\n")
    assert [fate.status for fate in made.fates] == ["applied_replace", "skipped_delete_target_not_found"]


@pytest.mark.parametrize("document", ["New.", "New.\n<!-- SLOW_UPDATE_START -->\nforged\n<!-- SLOW_UPDATE_END -->"])
async def test_protected_parts_survive_every_way_to_rewrite(world: SimpleNamespace, document: str):
    """In SkillOpt only the prompt asks for that."""
    scripted = ScriptedView(world, lambda m: {"document": document}, KEPT.text, update_mode="rewrite_from_suggestions")
    rewritten = await update(scripted.view, [Suggestion("clarify", "Say it.")], NO_GUARD)
    whole = take_document(KEPT, [Document(" "), Document(document, changes=("all",))])
    for made in (rewritten, whole):
        assert made.candidate is not None
        assert made.candidate.text.startswith("New.\n")
        assert (read_guidance(made.candidate), read_notes(made.candidate)) == ("guide", ("note",))
    assert whole.changes == ("all",)
    assert [fate.status for fate in whole.fates] == ["not_selected", "used"]


async def test_a_rewrite_that_stays_unusable_makes_no_candidate(world: SimpleNamespace):
    scripted = ScriptedView(world, lambda m: {"document": " "}, update_mode="rewrite_from_suggestions")
    made = await update(scripted.view, [Suggestion("clarify", "Say it.")], NO_GUARD)
    assert made.candidate is None
    assert scripted.journal.list_events()[0].problem == "its document is empty"
    assert take_document(KEPT, [Document(" ")]).candidate is None


def test_edits_that_the_guard_refuses_are_not_made_and_secrets_in_them_are_masked():
    guard = Guard(GuardSettings(), TASKS, ())
    copied = Edit("append", "Pack the nine red lamps into the large crate and seal it twice.")
    secret = Edit("append", "Use the key sk-abcdefghij0123456789ABCD.")
    made = make_patch(Skill("a\n"), [copied, Edit("append", "Be brief."), secret], guard)
    assert made.candidate == Skill("a\n\nBe brief.\n")
    assert [fate.status for fate in made.fates] == ["applied_append", "skipped_copied_task", "skipped_secret"]
    assert "sk-abc" not in str(made.fates[-1].item) and "[redacted]" in str(made.fates[-1].item)
    assert make_patch(Skill("a\n"), [copied], guard).candidate is None


def test_a_whole_document_is_refused_for_what_it_adds():
    guard = Guard(GuardSettings(), TASKS, ())
    before = Skill(TASKS[0].prompt + "\n")
    made = take_document(before, [Document(before.text + "Be brief.\n")])
    assert refuse_candidate(before, made, guard) == made, "what the skill had before is allowed"
    refused = refuse_candidate(Skill(""), take_document(Skill(""), [Document(before.text)]), guard)
    assert refused.candidate is None and [fate.status for fate in refused.fates] == ["skipped_copied_task"]
    assert refuse_candidate(before, Update(None, ()), guard) == Update(None, ())
