"""Stage 2: divide rollouts into minibatches, and have an analyst read each.

Failures and successes go into separate minibatches, in the order of the batch's plan and not of completion, so the same
rollouts always make the same minibatches. An analyst starts when its minibatch is full, while other rollouts still run.
Rollouts without a score are in no minibatch. The patterns of an analyst and the origins of its proposals name rollouts
by number. A number that was not shown is refused. A proposal counts only the rollouts that it was learned from. If an
analyst names none for any proposal, all that it has read count.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Generic, TypeVar

from msgspec import Struct

from ludus.reflact.items import FORMS, Document, ItemForm, Suggestion, credit_item
from ludus.reflact.journal import open_task_group
from ludus.reflact.measure import is_success
from ludus.reflact.proposers import View
from ludus.reflact.records import Pattern, Reflection, UnusableReply
from ludus.reflact.train_settings import UpdateMode
from ludus.reflact.transcript import fit_texts, render_transcript
from ludus.skill import Edit, Source, render_whole
from ludus.types import Rollout

I = TypeVar("I")  # noqa: E741


class PatternReply(Struct, frozen=True):
    name: str
    description: str = ""
    rollouts: tuple[int, ...] = ()


class ItemOrigin(Struct, frozen=True):
    """The rollouts that an item was learned from, by number."""

    item: int
    """The place of the item in the list, from 1."""
    rollouts: tuple[int, ...] = ()


class AnalystReply(Struct, Generic[I], frozen=True):
    items: tuple[I, ...]
    patterns: tuple[PatternReply, ...] = ()
    origins: tuple[ItemOrigin, ...] = ()
    notes: str | tuple[str | dict[str, Any], ...] = ()
    reasoning: str = ""


REPLIES: dict[UpdateMode, type[AnalystReply[Any]]] = {
    "patch": AnalystReply[Edit],
    "rewrite_from_suggestions": AnalystReply[Suggestion],
    "full_rewrite_minibatch": AnalystReply[Document],
}


async def reflect(view: View, batch: int, rollouts: AsyncIterator[Rollout]) -> tuple[Reflection, ...]:
    """Have every minibatch of a batch read. Returns the reflections on failures, then those on successes."""
    size = view.settings.rollouts_per_request
    waiting: dict[Source, list[Rollout]] = {"failure": [], "success": []}
    reading: dict[Source, list[asyncio.Task[Reflection]]] = {"failure": [], "success": []}
    async with open_task_group() as group:

        def start_reading(source: Source) -> None:
            minibatch = tuple(waiting[source])
            waiting[source].clear()
            place = f"{view.epoch}/{view.step}/{batch}/{source}/{len(reading[source])}"
            reading[source].append(group.create_task(analyse(view, source, minibatch, place)))

        async for rollout in rollouts:
            if rollout.score is None:
                continue
            source: Source = "success" if is_success(rollout, view.settings.success_at) else "failure"
            if source == "success" and view.settings.failure_only:
                continue
            waiting[source].append(rollout)
            if len(waiting[source]) == size:
                start_reading(source)
        for source in waiting:
            if waiting[source]:
                start_reading(source)
    return tuple(task.result() for source in ("failure", "success") for task in reading[source])


async def analyse(view: View, source: Source, minibatch: Sequence[Rollout], place: str) -> Reflection:
    """Have one minibatch read by the analyst for its source."""
    settings, optimizer = view.settings, view.require_optimizer()
    form = FORMS[settings.update_mode]
    tasks = tuple(rollout.task.id for rollout in minibatch)
    notes = _wants_notes(view, source)
    texts = [
        render_transcript(rollout, reference=settings.show_reference, title=f"Rollout {number}: {rollout.task.id}")
        for number, rollout in enumerate(minibatch, 1)
    ]
    reply = await optimizer.ask(
        f"analyst_{source}",
        {
            "skill": render_whole(view.skill).strip() or "(empty)",
            "system": view.system.strip() or "(nothing)",
            "history": view.history or "Nothing yet.",
            "memory": view.memory.strip() or "Nothing yet.",
            "count": str(len(minibatch)),
            "rollouts": "\n\n---\n\n".join(fit_texts(texts, settings.trajectory_tokens)),
            "item": _render_item(view, form),
            "notes": optimizer.prompts.render_part("notes") if notes else "",
        },
        REPLIES[settings.update_mode],
        stage="analyst",
        place=place,
        otherwise="this minibatch proposed nothing",
        check=lambda reply: _check_rollouts(reply, len(minibatch)),
        tokens=None if form.limited else settings.rewrite_tokens,
    )
    if isinstance(reply, UnusableReply):
        return Reflection(source, tasks)
    items = reply.items[: settings.edit_budget] if form.limited else reply.items
    return Reflection(
        source,
        tasks,
        tuple(credit_item(item, source, tasks) for item, tasks in zip(items, list_origins(reply, tasks), strict=False)),
        tuple(Pattern(p.name, p.description, tuple(tasks[n - 1] for n in p.rollouts)) for p in reply.patterns),
        parse_notes(reply.notes) if notes else (),
        reply.reasoning,
        len(reply.items) - len(items),
    )


def _render_item(view: View, form: ItemForm) -> str:
    """What an item looks like, and that its origin must be named."""
    prompts = view.require_optimizer().prompts
    limit = {"limit": str(view.settings.edit_budget)} if form.limited else {}
    parts = [prompts.render_part(form.prompt, **limit)]
    if form.item is Edit and view.is_package:
        parts.append(prompts.render_part("item_files"))
    if view.settings.support == "named":
        parts.append(prompts.render_part("origins"))
    return "\n\n".join(parts)


def list_origins(reply: AnalystReply[Any], tasks: Sequence[str]) -> list[tuple[str, ...]]:
    """The tasks that each item was learned from. All of the minibatch if the analyst named none for any item."""
    if not reply.origins:
        return [tuple(tasks) for _ in reply.items]
    numbers: dict[int, list[int]] = {}
    for origin in reply.origins:
        numbers.setdefault(origin.item, []).extend(origin.rollouts)
    return [
        tuple(tasks[n - 1] for n in dict.fromkeys(numbers.get(place, ()))) for place in range(1, len(reply.items) + 1)
    ]


def _wants_notes(view: View, source: Source) -> bool:
    appendix = view.settings.appendix
    return (
        appendix.enabled
        and FORMS[view.settings.update_mode].limited  # a whole document includes its notes
        and (source == "failure" or appendix.sources == "both")
    )


def parse_notes(notes: str | Sequence[str | dict[str, Any]]) -> tuple[str, ...]:
    """Read notes in the forms that models write: one text, a list of texts, objects with `note` or `content`."""
    entries = [notes] if isinstance(notes, str) else notes
    texts = (e if isinstance(e, str) else str(e.get("note") or e.get("content") or "") for e in entries)
    return tuple(text.strip() for text in texts if text.strip())


def _check_rollouts(reply: AnalystReply[Any], count: int) -> str:
    named = {"patterns": reply.patterns, "origins": reply.origins}
    for name, entries in named.items():
        wrong = sorted({n for entry in entries for n in entry.rollouts if not 1 <= n <= count})
        if wrong:
            return f"its {name} name rollouts that were not shown: {wrong}; they are numbered 1 to {count}"
    unknown = sorted({origin.item for origin in reply.origins if not 1 <= origin.item <= len(reply.items)})
    return f"its origins name items that do not exist: {unknown}; there are {len(reply.items)}" if unknown else ""
