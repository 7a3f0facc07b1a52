"""Send requests of hotel guests to one of four people, by duties that only feedback tells: the names say nothing."""

import sys
from pathlib import Path
from typing import ClassVar

sys.path.insert(0, str(Path(__file__).parent))
from duties import Duties

from ludus.env import EnvFacts

PEOPLE = ("mira", "otto", "nils", "vera")
ROOMS = (
    "101", "104", "109", "112", "205", "208", "211", "217", "220", "303", "306", "310", "314", "319", "402", "407",
    "411", "416",
)  # fmt: skip
TOPICS: dict[str, tuple[str, tuple[str, ...]]] = {
    "towels": ("otto", ("Room {thing} has run out of towels.", "Could you bring fresh towels to {thing}?")),
    "taxi": ("vera", ("Please order a taxi for room {thing}.", "The guests of {thing} need a car to the station.")),
    "noise": (
        "mira",
        ("It is too loud next to {thing}.", "The neighbours of {thing} have a party and I cannot sleep."),
    ),
    "breakfast": ("nils", ("Room {thing} would like to eat in bed tomorrow.", "When is breakfast? I am in {thing}.")),
    "key": ("mira", ("The door of {thing} does not open with my card.", "I have lost the key of {thing}.")),
    "heating": ("otto", ("It is cold in {thing}.", "The radiator of {thing} makes no heat.")),
}
"""By topic: the person, and what guests say."""
SKILL = """\
Requests about towels go to otto.
Requests about a taxi or a car go to vera.
Requests about noise go to mira.
Requests about breakfast go to nils.
Requests about keys and doors go to mira.
Requests about cold rooms and heating go to otto.
"""
"""All duties, written by hand: what a good skill can reach."""


class Guests(Duties, frozen=True):
    """Send requests of hotel guests to the right person."""

    name: ClassVar[str] = "guests"
    who, answers, topics, things = "person", PEOPLE, TOPICS, ROOMS
    system: ClassVar[str] = f"Send each request of a guest to one of {', '.join(PEOPLE)}. Answer with the name alone."
    facts: ClassVar[EnvFacts] = EnvFacts(scored="the right person, and nobody else, is named")
