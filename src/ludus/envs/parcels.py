"""Parcels to desks: "Send 7 red lamps." goes to one of four desks, which stamps it. The stamp is the answer.

The smallest task that needs a tool and that weights can be trained on. The color decides which desk is the right one,
and nothing in the prompt says how: an agent learns it from its scores, or reads it in its skill. A parcel goes to one
desk only, so an agent that guesses is right once in four times. Colors, things and numbers are the same in every split;
their combinations are not.
"""

import itertools
from collections.abc import Iterator, Sequence
from random import Random
from typing import ClassVar

from msgspec.structs import replace

from ludus.env import Env, EnvFacts
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.tools import Tool, tool
from ludus.types import Rollout, Score, Task

SIZES = {"train": 240, "validation": 48, "test": 96}
DESKS = ("north", "south", "east", "west")
COLORS = "red blue green black white yellow brown gray"
THINGS = "lamps chairs clocks cups drums gloves hats kites pens ropes"
NUMBERS = range(2, 10)
STAMPS = (
    "acorn anchor badge basin beacon bishop bridge button cactus canoe castle cherry comet coral cradle dagger eagle "
    "ember falcon feather fiddle garnet ginger harbor hazel helmet ivory jasper kettle lantern linen lotus magnet "
    "marble meadow nickel olive otter pebble quartz raven saddle thistle velvet walnut"
)
WRONG_DESK = "wrong desk"


class Parcels(Env, frozen=True):
    """Send each parcel to the right one of four desks, and answer with its stamp."""

    name: ClassVar[str] = "parcels"
    facts: ClassVar[EnvFacts] = EnvFacts(
        licence="MIT (made from a seed)",
        runs="a tool of its own, no slot",
        scored="the stamp of the right desk",
        speed="below 1 ms per task",
    )
    sandbox: ClassVar[SandboxSpec | None] = None

    seed: int = 0
    """The seed of the parcels, and of which desk is right for which color."""

    def tasks(self, split: str) -> Iterator[Task]:
        if split not in SIZES:
            return
        desks = self.assign_desks()
        parcels = list(itertools.product(COLORS.split(), THINGS.split(), NUMBERS))
        Random(f"{self.seed}/parcels").shuffle(parcels)
        first = sum(itertools.takewhile(lambda size: size != SIZES[split], SIZES.values()))
        for color, thing, number in parcels[first : first + SIZES[split]]:
            stamp = Random(f"{self.seed}/{color}/{thing}/{number}").choice(STAMPS.split())
            yield Task(
                id=f"{number}-{color}-{thing}",
                prompt=f"Send {number} {color} {thing}.",
                split=split,
                kind=color,
                answer={"desk": desks[color], "number": number, "stamp": stamp},
            )

    def assign_desks(self) -> dict[str, str]:
        """The right desk of each color. Each desk has the same number of colors."""
        colors = COLORS.split()
        Random(f"{self.seed}/desks").shuffle(colors)
        return {color: DESKS[place % len(DESKS)] for place, color in enumerate(colors)}

    def tools(self, task: Task, box: Sandbox | None) -> Sequence[Tool]:
        return make_desks(task)

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        if rollout.answer.strip() == rollout.task.answer["stamp"]:
            return Score.of(1.0, "The stamp is right.")
        first = next((call.name for turn in rollout.turns for call in turn.completion.message.calls), "")
        return Score.of(0.0, f"It went to {first} first." if first else "It went to no desk.")

    async def solve(self, task: Task, box: Sandbox | None) -> str:
        return task.answer["stamp"]


def make_desks(task: Task) -> list[Tool]:
    """The desks of one rollout. The first that is called gets the parcel."""
    called: list[str] = []

    def make(name: str) -> Tool:
        async def stamp(number: int) -> str:
            called.append(name)
            right = called == [task.answer["desk"]] and number == task.answer["number"]
            return task.answer["stamp"] if right else WRONG_DESK

        made = tool(stamp)
        return Tool(replace(made.spec, name=name, description="Stamp."), made.run)

    return [make(name) for name in DESKS]
