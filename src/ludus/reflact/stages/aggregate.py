"""Stage 3: one list of items out of many proposals.

Proposals from failures and from successes are merged apart, in groups, level by level, and then with each other,
failures first. The merger says of each item which ones it was made of; from that, and not from what it claims, come
the support and the evidence. A merge that returns nothing, or items made of nothing, is not believed: it is asked
again, and if it stays so the items of its group are kept as they are and the event is recorded.
"""

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from msgspec import Struct

from ludus.reflact.items import FORMS, Document, Item, Suggestion, merged_credit, numbered
from ludus.reflact.journal import side_by_side
from ludus.reflact.proposers import View
from ludus.reflact.records import Reflection, Unusable
from ludus.reflact.train_settings import UpdateMode
from ludus.skill import Edit

I = TypeVar("I")  # noqa: E741
Items = tuple[Item, ...]


class Merged(Struct, Generic[I], frozen=True):
    item: I
    made_of: tuple[int, ...]


class MergeReply(Struct, Generic[I], frozen=True):
    items: tuple[Merged[I], ...]
    reasoning: str = ""


REPLIES: dict[UpdateMode, type[MergeReply[Any]]] = {
    "patch": MergeReply[Edit],
    "rewrite_from_suggestions": MergeReply[Suggestion],
    "full_rewrite_minibatch": MergeReply[Document],
}


async def aggregate(view: View, reflections: Sequence[Reflection]) -> Items:
    """Everything that was proposed in a step, merged."""
    failures = [r.items for r in reflections if r.source == "failure" and r.items]
    successes = [r.items for r in reflections if r.source == "success" and r.items]
    async with side_by_side() as group:
        left = group.create_task(_levels(view, failures, "merge_failure"))
        right = group.create_task(_levels(view, successes, "merge_success"))
    failure, success = left.result(), right.result()
    if failure and success:
        return await _merge(view, [failure, success], "merge_final", 0, 0)
    return failure or success


async def _levels(view: View, patches: Sequence[Items], prompt: str) -> Items:
    """Merge in groups until one is left."""
    level = 0
    while len(patches) > 1:
        level += 1
        size = view.settings.merge_batch_size
        groups = [patches[start : start + size] for start in range(0, len(patches), size)]
        async with side_by_side() as tasks:
            merges = [tasks.create_task(_merge(view, group, prompt, level, n)) for n, group in enumerate(groups)]
        patches = [merge.result() for merge in merges]
    return patches[0] if patches else ()


async def _merge(view: View, group: Sequence[Items], prompt: str, level: int, number: int) -> Items:
    if len(group) == 1:
        return group[0]
    settings, optimizer = view.settings, view.asked()
    form = FORMS[settings.update_mode]
    items = [item for patch in group for item in patch]
    limit = {"limit": str(len(items))} if form.limited else {}
    reply = await optimizer.ask(
        prompt,
        {
            "skill": view.skill.text.strip() or "(empty)",
            "memory": view.memory.strip() or "Nothing yet.",
            "proposals": numbered(items),
            "count": str(len(items)),
            "item": optimizer.prompts.part(form.prompt, **limit),
        },
        REPLIES[settings.update_mode],
        stage="merge",
        place=f"{view.epoch}/{view.step}/{prompt}/{level}/{number}",
        otherwise="the items of the group were kept as they were",
        check=lambda reply: _made_of_nothing(reply, len(items)),
        tokens=None if form.limited else settings.rewrite_tokens,
    )
    if isinstance(reply, Unusable):
        return tuple(items)
    deepest = max(item.level for item in items) + 1
    return tuple(
        merged_credit(merged.item, [items[n - 1] for n in dict.fromkeys(merged.made_of)], deepest)
        for merged in reply.items
    )


def _made_of_nothing(reply: MergeReply[Any], count: int) -> str:
    if not reply.items:
        return "it has no items; merging must not drop everything"
    for number, merged in enumerate(reply.items, 1):
        if not merged.made_of:
            return f"item {number} has an empty made_of; name the proposals it was made of"
        wrong = [n for n in merged.made_of if not 1 <= n <= count]
        if wrong:
            return f"item {number} is made of proposals that do not exist: {wrong}; they are numbered 1 to {count}"
    return ""
