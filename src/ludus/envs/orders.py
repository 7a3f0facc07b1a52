"""Orders into records: "Please send 83 blue lamps to the store." becomes `lamps|blue|83`.

The smallest task that a skill can be trained on. The system text says the form in words, but a small model keeps
chatting until it has seen example records. Tasks are sampled from a seed, phrasing by phrasing. Phrasings and colors
are the same in every split; the things are not, so no record of one split is in another.
"""

from collections.abc import Iterator
from random import Random
from typing import ClassVar

from ludus.env import Env, EnvFacts
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.types import Rollout, Score, Task

SIZES = {"train": 24, "validation": 32, "test": 64}
THINGS = (
    "bags baskets bells belts boots bottles buckets candles carpets chairs clocks cups curtains desks drums gloves "
    "hats helmets jackets kites ladders lamps mirrors pens pillows plates ropes scarves shelves spoons stamps tables "
    "tents towels umbrellas vases"
)
COLORS = "red blue green black white yellow brown gray"
PHRASINGS = {
    "send": "Please send {number} {color} {thing} to the store.",
    "need": "We need {number} {color} {thing} by Friday.",
    "get": "Could I get {number} {thing} in {color}?",
    "bare": "{number} {color} {thing}, please.",
    "out": "We are out of {color} {thing}, so ship {number} of them.",
    "like": "I would like to order {number} {thing}, all of them {color}.",
    "add": "Add {color} {thing} to my order, {number} in all.",
    "want": "The office wants {number} {color} {thing} this week.",
}
PARTS = ("thing", "color", "number")


class Orders(Env, frozen=True):
    """Turn orders in plain words into records: thing|color|number."""

    name: ClassVar[str] = "orders"
    facts: ClassVar[EnvFacts] = EnvFacts(
        licence="MIT (made from a seed)",
        scored="share of the three parts that are right",
        speed="below 1 ms per task",
    )
    sandbox: ClassVar[SandboxSpec | None] = None
    system: ClassVar[str] = f"Write each order as a record: {'|'.join(PARTS)}."

    seed: int = 0
    """The seed of the orders."""

    def tasks(self, split: str) -> Iterator[Task]:
        if split not in SIZES:
            return
        random = Random(f"{self.seed}/{split}")
        kinds, things = list(PHRASINGS), THINGS.split()[list(SIZES).index(split) :: len(SIZES)]
        seen: set[str] = set()
        while len(seen) < SIZES[split]:
            kind = kinds[len(seen) % len(kinds)]
            order = {
                "thing": random.choice(things),
                "color": random.choice(COLORS.split()),
                "number": str(random.randint(2, 99)),
            }
            record = "|".join(order[part] for part in PARTS)
            if record not in seen:
                seen.add(record)
                prompt = PHRASINGS[kind].format(**order)
                yield Task(id=record.replace("|", "-"), prompt=prompt, split=split, kind=kind, answer=record)

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        wanted, found = rollout.task.answer.split("|"), rollout.answer.strip().split("|")
        if len(found) != len(wanted):
            return Score.of(0.0, f"It has {len(found)} parts with | between them, not {len(wanted)}.")
        wrong = [part for part, a, b in zip(PARTS, wanted, found, strict=True) if a != b]
        share = 1.0 - len(wrong) / len(PARTS)
        return Score.of(share, f"Wrong: {', '.join(wrong)}." if wrong else "Every part is right.")

    async def solve(self, task: Task, box: Sandbox | None) -> str:
        return task.answer
