"""Assign tickets to teams by rules of the house, which only feedback tells: the names of the teams say nothing."""

import sys
from pathlib import Path
from typing import ClassVar

sys.path.insert(0, str(Path(__file__).parent))
from duties import Duties

from ludus.env import EnvFacts

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


class Tickets(Duties, frozen=True):
    """Assign tickets to teams by rules of the house."""

    name: ClassVar[str] = "tickets"
    who, answers, topics, things = "team", TEAMS, TOPICS, THINGS
    system: ClassVar[str] = (
        f"Assign each ticket to one of the teams {', '.join(TEAMS)}. Answer with the name of the team alone."
    )
    facts: ClassVar[EnvFacts] = EnvFacts(scored="the right team, and no other, is named")
