"""Skill-aware reflection: a correct rule that was not followed leads to a note in the appendix instead of an edit.

Notes are added to the current skill after the gate, whatever the decision was. The text then differs from the one that
was measured, so it counts as unmeasured until the next decision measures it. Above a threshold the optimizer merges and
shortens the notes. A reply that does not reduce their number is refused.
"""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from ludus.reflact.guards import Guard
from ludus.reflact.proposers import View
from ludus.reflact.records import MeasuredSkill, Reflection, RunState, UnusableReply
from ludus.skill import Skill, add_notes, drop_duplicates, read_notes, set_notes


class NotesReply(Struct, frozen=True):
    notes: tuple[str, ...]


async def note_lapses(
    view: View, state: RunState, step: int, reflections: Sequence[Reflection], guard: Guard
) -> tuple[RunState, bool]:
    """Add the notes of a step to the current skill. Returns the new state and whether the notes were consolidated."""
    if not view.settings.appendix.enabled:
        return state, False
    added = [note for reflection in reflections for note in reflection.notes]
    skill, shorter = await extend_notes(view, state.current.skill, added, guard)
    if skill == state.current.skill:
        return state, shorter
    return replace(state, current=MeasuredSkill(skill, f"appendix_step_{step:04d}", step)), shorter


async def extend_notes(view: View, skill: Skill, added: Sequence[str], guard: Guard) -> tuple[Skill, bool]:
    """The skill with those of the notes that the guard allows, and whether all notes were consolidated."""
    skill = add_notes(skill, guard.keep_allowed(skill, added))
    threshold = view.settings.appendix.consolidate_above
    if not threshold or len(read_notes(skill)) <= threshold:
        return skill, False
    shorter = guard.keep_allowed(skill, await _consolidate_notes(view, read_notes(skill)))
    return (set_notes(skill, shorter) if shorter else skill), bool(shorter)


async def _consolidate_notes(view: View, before: Sequence[str]) -> tuple[str, ...]:
    reply = await view.require_optimizer().ask(
        "consolidate",
        {"notes": "\n".join(f"- {note}" for note in before), "count": str(len(before))},
        NotesReply,
        stage="consolidate",
        place=f"{view.epoch}/{view.step}",
        otherwise="the notes stayed as they were",
        check=lambda reply: (
            "" if 0 < len(drop_duplicates(reply.notes)) < len(before) else "the notes must become fewer, not none"
        ),
    )
    return () if isinstance(reply, UnusableReply) else drop_duplicates(reply.notes)
