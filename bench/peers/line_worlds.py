"""Families of rule worlds for the skill that exists and for analysts who say less than they could.

| family | what is special |
|---|---|
| existing | the initial skill has 40 lines, 10 of them harmful, and nobody suspects old lines |
| existing hard | the same with many rules and weak traces |
| existing suspected | the same as `existing`, but traces blame old lines like any other |
| deletions | the optimizer proposes to delete old lines that were blamed, and does not name them as suspects |
| strong | the initial skill has nearly all rules and 4 lines of filler |
| drift 3, drift 5 | the optimizer has three or five names for a situation and picks one at random |
| many drift 3, many drift 5 | the same with many rules |
| many unsuspected | many rules; the analyst names no suspects |
| harmful unsuspected | the same with 40 % harmful proposals |
| many misjudged, harmful misjudged | in half of the failures it suspects a line that did nothing |
| unnamed | the optimizer proposes lines about situations, but does not say which rollouts they spoiled |
| many unnamed | the same with many rules |
| again | many rules; the optimizer has one wording of each sort, and proposes lines again that were given up |

`bend_reply` makes the replies of the simulated optimizer say less, or something wrong, in these ways.
"""

from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

from rule_world import DEVELOPMENT as WORLDS
from rule_world import HELD_OUT as HELD_WORLDS
from rule_world import Setting

UNNAMED, DELETIONS, AGAIN, UNSUSPECTED, MISJUDGED = "unnamed", "deletions", "again", "unsuspected", "misjudged"


def make_families(easy: Setting, many: Setting, harmful: Setting, prefix: str) -> dict[str, Setting]:
    """The families, by name."""
    existing = replace(easy, old=(12, 18, 10), spare_old=True)
    found = {
        "existing": existing,
        "existing hard": replace(many, old=(18, 12, 10), spare_old=True),
        "existing suspected": replace(existing, spare_old=False),
        "deletions": replace(existing, spare_old=False, habit=DELETIONS),
        "strong": replace(easy, old=(easy.rules - 2, 4, 0)),
        "drift 3": replace(easy, names=3, reuse=0.0),
        "drift 5": replace(easy, names=5, reuse=0.0),
        "many drift 3": replace(many, names=3, reuse=0.0),
        "many drift 5": replace(many, names=5, reuse=0.0),
        "many unsuspected": replace(many, habit=UNSUSPECTED),
        "harmful unsuspected": replace(harmful, habit=UNSUSPECTED),
        "many misjudged": replace(many, habit=MISJUDGED),
        "harmful misjudged": replace(harmful, habit=MISJUDGED),
        "unnamed": replace(easy, habit=UNNAMED),
        "many unnamed": replace(many, habit=UNNAMED),
        "again": replace(many, wordings=1, habit=AGAIN),
    }
    return {name: replace(setting, name=f"{prefix}{name}") for name, setting in found.items()}


DEVELOPMENT = make_families(WORLDS["easy"], WORLDS["many"], WORLDS["harmful"], "")
HELD_OUT = make_families(HELD_WORLDS["easy"], HELD_WORLDS["many"], HELD_WORLDS["harmful"], "held ")
APPEND_ONLY = ("existing", "existing hard", "harmful unsuspected")
"""Families that are run without repair, too."""


class Shown(NamedTuple):
    """What the simulated analyst knows beside its reply."""

    deleted: list[dict[str, Any]]
    """Its deletions as items."""
    old: set[str]
    """The ids of lines of the initial skill."""
    texts: list[list[str]]
    """The ids of the lines in the text of each rollout."""


def bend_reply(habit: str, reply: dict[str, Any], shown: Shown, rng: Random) -> dict[str, Any]:
    """The reply of an analyst with a habit."""
    rollouts, items = reply["rollouts"], reply["items"]
    match habit:
        case "unnamed":
            rollouts = [{**entry, "situations": []} for entry in rollouts]
        case "deletions":
            rollouts = [{**e, "suspects": [id for id in e["suspects"] if id not in shown.old]} for e in rollouts]
            items = [*shown.deleted, *items]
        case "unsuspected":
            rollouts = [{**entry, "suspects": []} for entry in rollouts]
        case "misjudged":
            rollouts = [
                {**entry, "suspects": _pick_innocent(text, entry["suspects"], rng)}
                for entry, text in zip(rollouts, shown.texts, strict=True)
            ]
        case _:
            return reply
    return {"rollouts": rollouts, "items": items}


def _pick_innocent(text: list[str], guilty: list[str], rng: Random) -> list[str]:
    innocent = [id for id in text if id not in guilty]
    return [rng.choice(innocent)] if innocent and rng.random() < 0.5 else []
