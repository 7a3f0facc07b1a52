"""Stage 5: the candidate document, out of the items that were selected.

Edits are applied literally, one by one, each with its fate. Suggestions go to a rewriter, who returns a whole document;
in the third mode the proposals are whole documents already. Whatever way the candidate came about, the protected parts
of the current document are in it as they were.
"""

from collections.abc import Sequence

from msgspec import Struct

from ludus.reflact.items import Document, Item, numbered
from ludus.reflact.proposers import View
from ludus.reflact.records import Fate, Unusable
from ludus.skill import Edit, Skill, apply, protect


class RewriteReply(Struct, frozen=True):
    document: str
    changes: tuple[str, ...] = ()
    reasoning: str = ""


class Update(Struct, frozen=True):
    """A candidate, or None if no document came about."""

    candidate: Skill | None
    fates: tuple[Fate, ...]
    changes: tuple[str, ...] = ()


NOTHING = Update(None, ())


async def update(view: View, items: Sequence[Item]) -> Update:
    """The candidate in the run's update mode."""
    match view.settings.update_mode:
        case "patch":
            return patched(view.skill, items, lenient=view.settings.lenient_edits)
        case "rewrite_from_suggestions":
            return await _rewritten(view, items)
        case "full_rewrite_minibatch":
            return replaced(view.skill, items)


def patched(skill: Skill, items: Sequence[Item], *, lenient: bool = False) -> Update:
    edits = [item for item in items if isinstance(item, Edit)]
    candidate, reports = apply(skill, edits, lenient=lenient)
    return Update(candidate, tuple(Fate(report.edit, report.status) for report in reports))


def replaced(skill: Skill, items: Sequence[Item]) -> Update:
    """The first document that is not blank."""
    documents = [item for item in items if isinstance(item, Document)]
    chosen = next((d for d in documents if d.text.strip()), None)
    fates = tuple(Fate(d, "used" if d is chosen else "not_selected") for d in documents)
    if chosen is None:
        return Update(None, fates)
    return Update(protect(skill, chosen.text), fates, chosen.changes)


async def _rewritten(view: View, items: Sequence[Item]) -> Update:
    reply = await view.asked().ask(
        "rewrite",
        {
            "skill": view.skill.text.strip() or "(empty)",
            "suggestions": numbered(items),
            "history": view.history or "Nothing yet.",
        },
        RewriteReply,
        stage="rewrite",
        place=f"{view.epoch}/{view.step}",
        otherwise="the step made no candidate",
        check=lambda reply: "" if reply.document.strip() else "its document is empty",
        tokens=view.settings.rewrite_tokens,
    )
    if isinstance(reply, Unusable):
        return Update(None, tuple(Fate(item, "no_rewrite") for item in items))
    fates = tuple(Fate(item, "used") for item in items)
    return Update(protect(view.skill, reply.document), fates, tuple(reply.changes))
