"""Worlds for catalogues of skills, with a truth in closed form. Only the standard library is used.

A skill is for some topics, of which pairs of skills share a few. A request mentions one to three topics of the skill
that is right for it, or topics that no skill is for. A description is a text; the agent reacts to the topic words in
it. What the agent loads is a draw from a softmax over how well descriptions fit the request, with "none" among the
choices, so the probability of every choice is known. A description with many words fits everything a little.

The simulated optimizer reads the requests that went wrong, as a model would, and proposes descriptions of random
quality: better ones, too broad ones, ones that lose something, and rewordings that do nothing. In A/A worlds all of
its proposals are rewordings.
"""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from random import Random

_WORD = re.compile(r"\btopic[a-z]+\b")
_LETTERS = "abcdefghij"


@dataclass(frozen=True)
class CatalogueSetting:
    """The settings of a family of worlds."""

    name: str
    skills: int = 8
    topics: int = 6
    shared: int = 2
    """Topics that each skill shares with its neighbour."""
    queries: int = 24
    """Of each skill; half of them are sealed."""
    none: int = 24
    known: float = 0.5
    """The share of its topics that a description names at first."""
    foreign: int = 1
    """Topics of others that a description names at first."""
    quality: tuple[float, float, float, float] = (0.5, 0.2, 0.15, 0.15)
    """The shares of proposals that are better, too broad, lossy, and rewordings."""
    sharp: float = 2.2
    """How much a fitting word counts."""


def draw(*key: object) -> float:
    digest = blake2b("\x1f".join(map(str, key)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def find_words(text: str) -> set[str]:
    """What the agent reacts to: topic words, or in texts without any (the controls) all long words."""
    return set(_WORD.findall(text)) or {word for word in re.findall("[a-z]+", text.lower()) if len(word) > 5}


def name_topic(number: int) -> str:
    return "topic" + "".join(_LETTERS[int(digit)] for digit in f"{number:03d}")


@dataclass(frozen=True)
class CatalogueWorld:
    """One world."""

    setting: CatalogueSetting
    seed: int

    @cached_property
    def owned(self) -> list[list[int]]:
        """The topics of each skill. Neighbours share some."""
        fresh = self.setting.topics - self.setting.shared
        first = [[s * fresh + t for t in range(fresh)] for s in range(self.setting.skills)]
        return [mine + first[(s + 1) % len(first)][: self.setting.shared] for s, mine in enumerate(first)]

    @cached_property
    def names(self) -> list[str]:
        return [f"skill-{_LETTERS[s // 10]}{_LETTERS[s % 10]}" for s in range(self.setting.skills)]

    def describe(self, topics: Sequence[int], words: str = "Use it for") -> str:
        return f"{words} {', '.join(name_topic(t) for t in topics)}."

    @cached_property
    def initial(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for s, name in enumerate(self.names):
            random = Random(f"{self.seed}/initial/{s}")
            own = random.sample(self.owned[s], round(self.setting.known * len(self.owned[s])))
            others = [t for t in range(self.setting.skills * self.setting.topics) if t not in self.owned[s]]
            found[name] = self.describe([*own, *random.sample(others, self.setting.foreign)])
        return found

    @cached_property
    def best(self) -> dict[str, str]:
        """Descriptions of exactly the topics that are a skill's own, shared ones where it is first."""
        fresh = self.setting.topics - self.setting.shared
        return {name: self.describe(self.owned[s][:fresh]) for s, name in enumerate(self.names)}

    @cached_property
    def queries(self) -> list[dict[str, str]]:
        rows: list[dict[str, str]] = []
        fresh = self.setting.topics - self.setting.shared
        for s, name in enumerate(self.names):
            for q in range(self.setting.queries):
                random = Random(f"{self.seed}/query/{s}/{q}")
                own = random.sample(self.owned[s][:fresh], random.choice((1, 2, 2)))
                rows.append({"id": f"{name}-{q}", "query": self._ask(own, random), "skill": name})
        free = self.setting.skills * self.setting.topics + 100
        for q in range(self.setting.none):
            random = Random(f"{self.seed}/none/{q}")
            rows.append({"id": f"none-{q}", "query": self._ask([free + random.randrange(50)], random), "skill": ""})
        return rows

    def _ask(self, topics: Sequence[int], random: Random) -> str:
        verb = random.choice(("Please help with", "Can you look at", "I need", "Now do"))
        return f"{verb} {' and '.join(name_topic(t) for t in topics)}, item {random.randrange(1000)}."

    # ---- the agent --------------------------------------------------------------------------------------------------

    def route(self, request: str, catalogue: dict[str, str]) -> dict[str, float]:
        """The probability that each skill is loaded; `""`: none."""
        asked = find_words(request)
        weights = {"": math.exp(1.2)}
        for name, description in catalogue.items():
            known = find_words(description)
            fit = len(asked & known) / math.sqrt(len(asked)) - 0.08 * max(0, len(known) - 8)
            weights[name] = math.exp(self.setting.sharp * fit) if asked & known else math.exp(-1.0)
        total = sum(weights.values())
        return {name: weight / total for name, weight in weights.items()}

    def choose(self, request: str, catalogue: dict[str, str], seed: object) -> str:
        luck, at = draw(self.seed, "route", request, seed), 0.0
        for name, share in self.route(request, catalogue).items():
            at += share
            if luck < at:
                return name
        return ""

    def compute_accuracy(self, catalogue: dict[str, str], ids: Sequence[str] | None = None) -> float:
        rows = [row for row in self.queries if ids is None or row["id"] in ids]
        return sum(self.route(row["query"], catalogue)[row["skill"]] for row in rows) / len(rows)

    def compute_recall(self, catalogue: dict[str, str], name: str) -> float:
        rows = [row for row in self.queries if row["skill"] == name]
        return sum(self.route(row["query"], catalogue)[name] for row in rows) / len(rows)

    def compute_precision(self, catalogue: dict[str, str], name: str) -> float:
        shares = [(self.route(row["query"], catalogue)[name], row["skill"] == name) for row in self.queries]
        return sum(share for share, right in shares if right) / sum(share for share, _ in shares)

    # ---- the optimizer ----------------------------------------------------------------------------------------------

    def propose(self, asked: str) -> str:
        """The reply to a request for descriptions, from the texts of the request alone."""
        description = asked.split("Its description now:")[1].split("\n#")[0].strip()
        missed, taken = (
            asked.split(head)[1].split("\n#")[0] for head in ("for which it was not loaded", "for which it was loaded")
        )
        have = list(dict.fromkeys(_WORD.findall(description)))
        wanted = [word for word in dict.fromkeys(_WORD.findall(missed)) if word not in have]
        unwanted = [word for word in dict.fromkeys(_WORD.findall(taken)) if word in have]
        texts = [self._propose_one(have, wanted, unwanted, (description, asked, n)) for n in range(3)]
        return json.dumps({"descriptions": texts})

    def _propose_one(self, have: list[str], wanted: list[str], unwanted: list[str], key: object) -> str:
        random, (good, broad, lossy, _) = Random(f"{self.seed}/{key}"), self.setting.quality
        luck, said = random.random(), "Use it for"
        if luck < good:
            words = [w for w in have if w not in unwanted] + random.sample(wanted, min(len(wanted), 4))
        elif luck < good + broad:
            words = have + wanted + [name_topic(random.randrange(60)) for _ in range(6)]
        elif luck < good + broad + lossy:
            words = random.sample(have, max(1, len(have) // 2)) + random.sample(wanted, min(len(wanted), 2))
        else:
            words, said = have, f"It is made for ({random.randrange(10_000)})"
        return f"{said} {', '.join(words) or 'nothing'}."
