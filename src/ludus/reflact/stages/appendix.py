"""Skill-aware reflection: where a right rule was not followed, a note in the appendix instead of an edit.

Notes are added to the current skill after the gate, whatever it decided. The text is then another one than was
measured, so it counts as unmeasured until the next decision measures it. Past a threshold the optimizer merges and
shortens the notes; a reply that does not make them fewer is refused.
"""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from ludus.reflact.proposers import View
from ludus.reflact.records import Held, Reflection, RunState, Unusable
from ludus.skill import distinct, notes, replace_notes, with_notes


class NotesReply(Struct, frozen=True):
    notes: tuple[str, ...]


async def note_lapses(
    view: View, state: RunState, step: int, reflections: Sequence[Reflection]
) -> tuple[RunState, bool]:
    """The state with the notes of a step in its current skill, and whether the notes were consolidated."""
    if not view.settings.appendix.enabled:
        return state, False
    skill = with_notes(state.current.skill, [note for reflection in reflections for note in reflection.notes])
    threshold = view.settings.appendix.consolidate_above
    shorter: tuple[str, ...] = ()
    if threshold and len(notes(skill)) > threshold:
        shorter = await _consolidated(view, notes(skill))
        skill = replace_notes(skill, shorter) if shorter else skill
    if skill == state.current.skill:
        return state, bool(shorter)
    return replace(state, current=Held(skill, f"appendix_step_{step:04d}", step)), bool(shorter)


async def _consolidated(view: View, before: Sequence[str]) -> tuple[str, ...]:
    reply = await view.asked().ask(
        "consolidate",
        {"notes": "\n".join(f"- {note}" for note in before), "count": str(len(before))},
        NotesReply,
        stage="consolidate",
        place=f"{view.epoch}/{view.step}",
        otherwise="the notes stayed as they were",
        check=lambda reply: (
            "" if 0 < len(distinct(reply.notes)) < len(before) else "the notes must become fewer, not none"
        ),
    )
    return () if isinstance(reply, Unusable) else distinct(reply.notes)
