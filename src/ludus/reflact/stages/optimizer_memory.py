"""Optimizer memory: what the optimizer writes down for its own next epoch.

It goes into the prompts of the analysts, the mergers, the ranking and the autonomous budget; the agent never sees it. A
reply that cannot be used leaves the memory as it was.
"""

from collections.abc import Sequence

from msgspec import Struct

from ludus.reflact.proposers import View
from ludus.reflact.records import Unusable
from ludus.reflact.stages.slow_update import Pair, comparison
from ludus.skill import Skill


class MemoryReply(Struct, frozen=True):
    memory: str
    reasoning: str = ""


async def write_memory(view: View, previous: Skill, pairs: Sequence[Pair]) -> str | Unusable:
    """What the optimizer wants to remember after this epoch."""
    reply = await view.asked().ask(
        "meta",
        {
            "previous": previous.text.strip() or "(empty)",
            "skill": view.skill.text.strip() or "(empty)",
            "memory": view.memory.strip() or "Nothing yet.",
            "comparison": comparison(view, pairs),
            "count": str(len(pairs)),
        },
        MemoryReply,
        stage="meta",
        place=str(view.epoch),
        otherwise="the memory stayed as it was",
        check=lambda reply: "" if reply.memory.strip() else "its memory is empty",
    )
    return reply if isinstance(reply, Unusable) else reply.memory.strip()
