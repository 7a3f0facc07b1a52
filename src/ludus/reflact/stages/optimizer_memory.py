"""Optimizer memory: notes that the optimizer writes at the end of an epoch for its own use.

The memory goes into the prompts of the analysts, the merges, the ranking and the autonomous budget. The agent never
sees it. An unusable reply leaves the memory unchanged.
"""

from collections.abc import Sequence

from msgspec import Struct

from ludus.reflact.proposers import View
from ludus.reflact.records import UnusableReply
from ludus.reflact.stages.slow_update import Pair, describe_pairs
from ludus.skill import Skill, render_whole


class MemoryReply(Struct, frozen=True):
    memory: str
    reasoning: str = ""


async def write_memory(view: View, previous: Skill, pairs: Sequence[Pair]) -> str | UnusableReply:
    """Ask the optimizer what to remember after this epoch."""
    reply = await view.require_optimizer().ask(
        "meta",
        {
            "previous": previous.text.strip() or "(empty)",
            "skill": render_whole(view.skill).strip() or "(empty)",
            "memory": view.memory.strip() or "Nothing yet.",
            "comparison": describe_pairs(view, pairs),
            "count": str(len(pairs)),
        },
        MemoryReply,
        stage="meta",
        place=str(view.epoch),
        otherwise="the memory stayed as it was",
        check=lambda reply: "" if reply.memory.strip() else "its memory is empty",
    )
    return reply if isinstance(reply, UnusableReply) else reply.memory.strip()
