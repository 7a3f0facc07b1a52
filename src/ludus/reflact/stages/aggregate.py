"""Stage 3: merge many proposals into one list of items.

Proposals from failures and from successes are merged separately, in groups, level by level, and then with each other,
failures first. The optimizer names the proposals that each merged item was made of. Support and evidence are computed
from these, not from what the optimizer claims. A merge that returns no items, or items made of nothing, is asked for
again. If it stays bad, the items of its group are kept unchanged and the event is recorded.
"""

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from msgspec import Struct

from ludus.reflact.items import FORMS, Document, Item, Suggestion, credit_merged, number_items
from ludus.reflact.journal import open_task_group
from ludus.reflact.proposers import View
from ludus.reflact.records import Reflection, UnusableReply
from ludus.reflact.train_settings import UpdateMode
from ludus.skill import Edit, render_whole

I = TypeVar("I")  # noqa: E741
Items = tuple[Item, ...]


class MergedItem(Struct, Generic[I], frozen=True):
    item: I
    made_of: tuple[int, ...]


class MergeReply(Struct, Generic[I], frozen=True):
    items: tuple[MergedItem[I], ...]
    reasoning: str = ""


REPLIES: dict[UpdateMode, type[MergeReply[Any]]] = {
    "patch": MergeReply[Edit],
    "rewrite_from_suggestions": MergeReply[Suggestion],
    "full_rewrite_minibatch": MergeReply[Document],
}


async def aggregate(view: View, reflections: Sequence[Reflection]) -> Items:
    """All proposals of a step, merged."""
    failures = [r.items for r in reflections if r.source == "failure" and r.items]
    successes = [r.items for r in reflections if r.source == "success" and r.items]
    async with open_task_group() as group:
        left = group.create_task(_merge_levels(view, failures, "merge_failure"))
        right = group.create_task(_merge_levels(view, successes, "merge_success"))
    failure, success = left.result(), right.result()
    if failure and success:
        return await _merge_group(view, [failure, success], "merge_final", 0, 0)
    return failure or success


async def _merge_levels(view: View, patches: Sequence[Items], prompt: str) -> Items:
    """Merge in groups until one list is left."""
    level = 0
    while len(patches) > 1:
        level += 1
        size = view.settings.merge_batch_size
        groups = [patches[start : start + size] for start in range(0, len(patches), size)]
        async with open_task_group() as tasks:
            merges = [tasks.create_task(_merge_group(view, group, prompt, level, n)) for n, group in enumerate(groups)]
        patches = [merge.result() for merge in merges]
    return patches[0] if patches else ()


async def _merge_group(view: View, group: Sequence[Items], prompt: str, level: int, number: int) -> Items:
    if len(group) == 1:
        return group[0]
    settings, optimizer = view.settings, view.require_optimizer()
    form = FORMS[settings.update_mode]
    items = [item for patch in group for item in patch]
    limit = {"limit": str(len(items))} if form.limited else {}
    reply = await optimizer.ask(
        prompt,
        {
            "skill": render_whole(view.skill).strip() or "(empty)",
            "memory": view.memory.strip() or "Nothing yet.",
            "proposals": number_items(items),
            "count": str(len(items)),
            "item": optimizer.prompts.render_part(form.prompt, **limit),
        },
        REPLIES[settings.update_mode],
        stage="merge",
        place=f"{view.epoch}/{view.step}/{prompt}/{level}/{number}",
        otherwise="the items of the group were kept as they were",
        check=lambda reply: _check_sources(reply, len(items)),
        tokens=None if form.limited else settings.rewrite_tokens,
    )
    if isinstance(reply, UnusableReply):
        return tuple(items)
    deepest = max(item.level for item in items) + 1
    return tuple(
        credit_merged(merged.item, [items[n - 1] for n in dict.fromkeys(merged.made_of)], deepest)
        for merged in reply.items
    )


def _check_sources(reply: MergeReply[Any], count: int) -> str:
    if not reply.items:
        return "it has no items; merging must not drop everything"
    for number, merged in enumerate(reply.items, 1):
        if not merged.made_of:
            return f"item {number} has an empty made_of; name the proposals it was made of"
        wrong = [n for n in merged.made_of if not 1 <= n <= count]
        if wrong:
            return f"item {number} is made of proposals that do not exist: {wrong}; they are numbered 1 to {count}"
    return ""
