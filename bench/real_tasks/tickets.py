"""Assign tickets to teams by rules of the house, which only feedback tells: the names of the teams say nothing."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from ludus.env import Env, EnvFacts
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.types import Rollout, Score, Task

sys.path.insert(0, str(Path(__file__).parent))
from splits import cut

TEAMS = ("atlas", "birch", "cedar", "delta")
THINGS = (
    "kettle", "lamp", "chair", "radio", "clock", "bicycle", "coat", "printer", "table", "camera", "mirror", "backpack",
    "blender", "tent", "helmet", "carpet", "guitar", "heater",
)  # fmt: skip
TOPICS: dict[str, tuple[str, tuple[str, ...]]] = {
    "broken": ("delta", ("My {thing} arrived broken.", "There is a crack in the new {thing}.")),
    "late": ("atlas", ("The {thing} I ordered has not come yet.", "Where is the parcel with my {thing}?")),
    "refund": ("birch", ("I want my money back for the {thing}.", "Please pay back what the {thing} cost.")),
    "invoice": ("cedar", ("I need the invoice for the {thing} again.", "The bill for my {thing} is missing.")),
    "change": ("birch", ("Can I exchange the {thing} for a larger one?", "I would rather have the {thing} in blue.")),
    "address": (
        "delta",
        ("Send the {thing} to my new address.", "I have moved; the {thing} must go to another street."),
    ),
}
"""By topic: the team, and what people write."""
SKILL = """\
Tickets about broken things go to delta.
Tickets about late parcels go to atlas.
Tickets about refunds go to birch.
Tickets about invoices go to cedar.
Tickets about exchanges go to birch.
Tickets about addresses go to delta.
"""
"""All rules, written by hand: what a good skill can reach."""


class Tickets(Env, frozen=True):
    """Assign tickets to teams by rules of the house."""

    name: ClassVar[str] = "tickets"
    sandbox: ClassVar[SandboxSpec | None] = None
    system: ClassVar[str] = (
        f"Assign each ticket to one of the teams {', '.join(TEAMS)}. Answer with the name of the team alone."
    )
    facts: ClassVar[EnvFacts] = EnvFacts(scored="the right team, and no other, is named")

    def tasks(self, split: str) -> Iterator[Task]:
        tasks = [
            Task(id=f"{topic}-{number}-{thing}", prompt=text.format(thing=thing), answer=team, kind=topic)
            for topic, (team, texts) in TOPICS.items()
            for number, text in enumerate(texts)
            for thing in THINGS
        ]
        yield from cut(tasks, split, self.name)

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        named = {team for team in TEAMS if team in rollout.answer.lower()}
        right = named == {rollout.task.answer}
        return Score.of(float(right), "Right." if right else f"The right team is {rollout.task.answer}.")

    async def solve(self, task: Task, box: Sandbox | None) -> str:
        return task.answer
