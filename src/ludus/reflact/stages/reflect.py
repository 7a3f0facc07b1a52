"""Stages 1 and 2 meet here: rollouts are dealt into minibatches, and an analyst reads each.

Failures and successes are dealt apart, in the order of the batch's plan and not of completion, so the same rollouts
always make the same minibatches. An analyst starts as soon as its minibatch is full, beside the rollouts that still
run. Rollouts that broke are in no minibatch. What an analyst says it found is tied to the tasks it was shown: patterns
name rollouts by number, and numbers that were not shown are refused.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Generic, TypeVar

from msgspec import Struct

from ludus.reflact.items import FORMS, Document, Suggestion, credited
from ludus.reflact.journal import side_by_side
from ludus.reflact.lab import succeeded
from ludus.reflact.proposers import View
from ludus.reflact.records import Pattern, Reflection, Unusable
from ludus.reflact.train_settings import UpdateMode
from ludus.reflact.transcript import fit, transcript
from ludus.skill import Edit, Source
from ludus.types import Rollout

I = TypeVar("I")  # noqa: E741


class PatternReply(Struct, frozen=True):
    name: str
    description: str = ""
    rollouts: tuple[int, ...] = ()


class AnalystReply(Struct, Generic[I], frozen=True):
    items: tuple[I, ...]
    patterns: tuple[PatternReply, ...] = ()
    notes: str | tuple[str | dict[str, Any], ...] = ()
    reasoning: str = ""


REPLIES: dict[UpdateMode, type[AnalystReply[Any]]] = {
    "patch": AnalystReply[Edit],
    "rewrite_from_suggestions": AnalystReply[Suggestion],
    "full_rewrite_minibatch": AnalystReply[Document],
}


async def reflect(view: View, batch: int, rollouts: AsyncIterator[Rollout]) -> tuple[Reflection, ...]:
    """Have every minibatch of a batch read: failures first, then successes."""
    size = view.settings.minibatch_size
    waiting: dict[Source, list[Rollout]] = {"failure": [], "success": []}
    reading: dict[Source, list[asyncio.Task[Reflection]]] = {"failure": [], "success": []}
    async with side_by_side() as group:

        def read(source: Source) -> None:
            minibatch = tuple(waiting[source])
            waiting[source].clear()
            place = f"{view.epoch}/{view.step}/{batch}/{source}/{len(reading[source])}"
            reading[source].append(group.create_task(analyse(view, source, minibatch, place)))

        async for rollout in rollouts:
            if rollout.score is None:
                continue
            source: Source = "success" if succeeded(rollout, view.settings.success_at) else "failure"
            if source == "success" and view.settings.failure_only:
                continue
            waiting[source].append(rollout)
            if len(waiting[source]) == size:
                read(source)
        for source in waiting:
            if waiting[source]:
                read(source)
    return tuple(task.result() for source in ("failure", "success") for task in reading[source])


async def analyse(view: View, source: Source, minibatch: Sequence[Rollout], place: str) -> Reflection:
    """Have one minibatch read by the analyst of its kind."""
    settings, optimizer = view.settings, view.asked()
    form = FORMS[settings.update_mode]
    tasks = tuple(rollout.task.id for rollout in minibatch)
    notes = _notes_wanted(view, source)
    texts = [
        transcript(rollout, reference=settings.show_reference, title=f"Rollout {number}: {rollout.task.id}")
        for number, rollout in enumerate(minibatch, 1)
    ]
    limit = {"limit": str(settings.edit_budget)} if form.limited else {}
    reply = await optimizer.ask(
        f"analyst_{source}",
        {
            "skill": view.skill.text.strip() or "(empty)",
            "system": view.system.strip() or "(nothing)",
            "history": view.history or "Nothing yet.",
            "memory": view.memory.strip() or "Nothing yet.",
            "count": str(len(minibatch)),
            "rollouts": "\n\n---\n\n".join(fit(texts, settings.trajectory_tokens)),
            "item": optimizer.prompts.part(form.prompt, **limit),
            "notes": optimizer.prompts.part("notes") if notes else "",
        },
        REPLIES[settings.update_mode],
        stage="analyst",
        place=place,
        otherwise="this minibatch proposed nothing",
        check=lambda reply: _unknown_rollouts(reply, len(minibatch)),
        tokens=None if form.limited else settings.rewrite_tokens,
    )
    if isinstance(reply, Unusable):
        return Reflection(source, tasks)
    items = reply.items[: settings.edit_budget] if form.limited else reply.items
    return Reflection(
        source,
        tasks,
        tuple(credited(item, source, tasks) for item in items),
        tuple(Pattern(p.name, p.description, tuple(tasks[n - 1] for n in p.rollouts)) for p in reply.patterns),
        parse_notes(reply.notes) if notes else (),
        reply.reasoning,
        len(reply.items) - len(items),
    )


def _notes_wanted(view: View, source: Source) -> bool:
    appendix = view.settings.appendix
    return (
        appendix.enabled
        and FORMS[view.settings.update_mode].limited  # a whole document has its own place for everything
        and (source == "failure" or appendix.sources == "both")
    )


def parse_notes(notes: str | Sequence[str | dict[str, Any]]) -> tuple[str, ...]:
    """Notes as models write them: one text, texts, or objects with a `note` or a `content`."""
    entries = [notes] if isinstance(notes, str) else notes
    texts = (e if isinstance(e, str) else str(e.get("note") or e.get("content") or "") for e in entries)
    return tuple(text.strip() for text in texts if text.strip())


def _unknown_rollouts(reply: AnalystReply[Any], count: int) -> str:
    wrong = sorted({n for pattern in reply.patterns for n in pattern.rollouts if not 1 <= n <= count})
    return f"its patterns name rollouts that were not shown: {wrong}; they are numbered 1 to {count}" if wrong else ""
