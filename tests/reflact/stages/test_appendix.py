"""Notes in the appendix: added once, consolidated into fewer."""

from types import SimpleNamespace
from typing import Any

from tests.reflact_kit import (
    ScriptedView,
)

from ludus.reflact.guards import Guard, GuardSettings
from ludus.reflact.records import (
    MeasuredSkill,
    Reflection,
    RunState,
)
from ludus.reflact.stages.appendix import note_lapses
from ludus.reflact.train_settings import Appendix
from ludus.skill import Skill, add_notes, read_notes


async def add_step_notes(
    world: SimpleNamespace, replies: Any, threshold: int, *step_notes: str
) -> tuple[RunState, bool, ScriptedView]:
    scripted = ScriptedView(world, replies, appendix=Appendix(enabled=True, consolidate_above=threshold))
    start = MeasuredSkill(add_notes(Skill("body"), ["old"]), "initial_skill")
    state = RunState(initial=start, current=start, best=start)
    reflections = [Reflection("failure", ("a",), notes=step_notes)]
    guard = Guard(GuardSettings(), (), (), scripted.journal.warn)
    after, consolidated = await note_lapses(scripted.view, state, 3, reflections, guard)
    return after, consolidated, scripted


async def test_notes_change_the_current_skill_which_is_then_unmeasured(world: SimpleNamespace):
    after, consolidated, scripted = await add_step_notes(world, None, 0, "new", "OLD.")
    assert read_notes(after.current.skill) == ("old", "new")
    assert (after.current.measure, after.current.origin, consolidated) == (None, "appendix_step_0003", False)
    assert after.best == after.initial
    assert scripted.requests == []


async def test_notes_that_are_there_already_change_nothing(world: SimpleNamespace):
    after, _, _ = await add_step_notes(world, None, 0, "Old")
    assert after.current == after.initial


async def test_too_many_notes_are_consolidated_and_only_into_fewer(world: SimpleNamespace):
    after, consolidated, _ = await add_step_notes(world, lambda m: {"notes": ["both"]}, 1, "new")
    assert (read_notes(after.current.skill), consolidated) == (("both",), True)
    for bad in ([], ["a", "b"], ["a", "b", "c"]):
        after, consolidated, scripted = await add_step_notes(world, lambda m, bad=bad: {"notes": bad}, 1, "new")
        assert (read_notes(after.current.skill), consolidated) == (("old", "new"), False)
        assert scripted.journal.list_events()[0].consequence == "the notes stayed as they were"


async def test_notes_with_secrets_or_hidden_characters_are_left_out_with_a_warning(world: SimpleNamespace):
    bad = ("Use sk-proj-abcdefghijklmnop0123456789", "Wait\u200b for it", "\x1b[2J")
    after, _, scripted = await add_step_notes(world, None, 0, *bad, "<!-- KEEP_START -->fine<!-- KEEP_END -->")
    assert read_notes(after.current.skill) == ("old", "fine")
    assert [warning.partition(": ")[0] for warning in scripted.journal.list_warnings()] == ["a note is left out"] * 3
    after, consolidated, _ = await add_step_notes(world, lambda m: {"notes": ["Say\u202e it"]}, 1, "new")
    assert (read_notes(after.current.skill), consolidated) == (("old", "new"), False)
