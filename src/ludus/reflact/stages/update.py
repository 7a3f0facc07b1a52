"""Stage 5: make the candidate document from the selected items.

Edits are applied literally, one by one, and the result of each is recorded. Suggestions go to the optimizer, which
rewrites the whole document. In the third mode the proposals are whole documents already. In all modes the protected
parts of the current document stay unchanged, and texts that the guard refuses do not get into the candidate.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ludus.reflact.disclosure import apply_within
from ludus.reflact.guards import Guard, list_added
from ludus.reflact.items import Document, Item, number_items
from ludus.reflact.proposers import View
from ludus.reflact.records import Fate, UnusableReply
from ludus.reflact.script_checks import FAILED_CHECK, NO_PACKAGE, check_scripts, find_refused_paths
from ludus.reflact.train_settings import PackageSettings
from ludus.runner import Runner
from ludus.skill import Edit, Skill, protect


class RewriteReply(Struct, frozen=True):
    document: str
    changes: tuple[str, ...] = ()
    reasoning: str = ""


class Update(Struct, frozen=True):
    """A candidate (None if there is none) and what happened to each item."""

    candidate: Skill | None
    fates: tuple[Fate, ...]
    changes: tuple[str, ...] = ()


NO_UPDATE = Update(None, ())


async def update(view: View, items: Sequence[Item], guard: Guard) -> Update:
    """Make the candidate in the run's update mode."""
    match view.settings.update_mode:
        case "patch":
            lone = [] if view.is_package else [item for item in items if isinstance(item, Edit) and item.path]
            fit = [item for item in items if item not in lone]
            made = make_patch(view.skill, fit, guard, view.settings.package, lenient=view.settings.lenient_edits)
            return replace(made, fates=(*made.fates, *(Fate(item, NO_PACKAGE) for item in lone)))
        case "rewrite_from_suggestions":
            return refuse_candidate(view.skill, await _rewrite(view, items), guard)
        case "full_rewrite_minibatch":
            return refuse_candidate(view.skill, take_document(view.skill, items), guard)


def make_patch(
    skill: Skill,
    items: Sequence[Item],
    guard: Guard | None = None,
    limits: PackageSettings = PackageSettings(),
    *,
    lenient: bool = False,
) -> Update:
    """Apply the edits that the guard does not refuse. There is no candidate if it refuses all of them."""
    edits = [item for item in items if isinstance(item, Edit)]
    faults = [guard.check_edit(skill, edit) if guard else None for edit in edits]
    allowed = [edit for edit, fault in zip(edits, faults, strict=True) if fault is None]
    refused = tuple(
        Fate(guard.hide_secret(edit), fault.status)
        for edit, fault in zip(edits, faults, strict=True)
        if guard and fault
    )
    candidate, reports = apply_within(skill, allowed, limits, lenient=lenient)
    fates = (*(Fate(report.edit, report.status) for report in reports), *refused)
    return Update(candidate if allowed or not refused else None, fates)


async def refuse_scripts(view: View, made: Update, runner: Runner) -> Update:
    """The candidate without the edits of scripts that fail their check in a slot. The reason is in the fates."""
    settings = view.settings
    if made.candidate is None or not made.candidate.files:
        return made
    checks = await check_scripts(view.skill, made.candidate, runner, settings.package)
    refused = find_refused_paths(checks)
    if not refused:
        return made
    fates = tuple(_refuse_fate(fate, refused) for fate in made.fates)
    kept = [fate.item for fate in fates if fate.status.startswith("applied") and isinstance(fate.item, Edit)]
    candidate = apply_within(view.skill, kept, settings.package, lenient=settings.lenient_edits)[0] if kept else None
    return Update(candidate, fates, made.changes)


def _refuse_fate(fate: Fate, refused: Mapping[str, str]) -> Fate:
    if isinstance(fate.item, Edit) and fate.item.path in refused and fate.status.startswith("applied"):
        return Fate(fate.item, FAILED_CHECK, refused[fate.item.path])
    return fate


def refuse_candidate(skill: Skill, made: Update, guard: Guard) -> Update:
    """Drop a whole document if the guard refuses what it adds."""
    fault = guard.find_fault(skill, list_added(skill, made.candidate)) if made.candidate else None
    if fault is None:
        return made
    fates = tuple(replace(fate, status=fault.status) if fate.status == "used" else fate for fate in made.fates)
    return Update(None, fates)


def take_document(skill: Skill, items: Sequence[Item]) -> Update:
    """Take the first document that is not blank as the candidate."""
    documents = [item for item in items if isinstance(item, Document)]
    chosen = next((d for d in documents if d.text.strip()), None)
    fates = tuple(Fate(d, "used" if d is chosen else "not_selected") for d in documents)
    if chosen is None:
        return Update(None, fates)
    return Update(protect(skill, chosen.text), fates, chosen.changes)


async def _rewrite(view: View, items: Sequence[Item]) -> Update:
    reply = await view.require_optimizer().ask(
        "rewrite",
        {
            "skill": view.skill.text.strip() or "(empty)",
            "suggestions": number_items(items),
            "history": view.history or "Nothing yet.",
        },
        RewriteReply,
        stage="rewrite",
        place=f"{view.epoch}/{view.step}",
        otherwise="the step made no candidate",
        check=lambda reply: "" if reply.document.strip() else "its document is empty",
        tokens=view.settings.rewrite_tokens,
        extra=view.settings.rewrite_extra,
    )
    if isinstance(reply, UnusableReply):
        return Update(None, tuple(Fate(item, "no_rewrite") for item in items))
    fates = tuple(Fate(item, "used") for item in items)
    return Update(protect(view.skill, reply.document), fates, tuple(reply.changes))
