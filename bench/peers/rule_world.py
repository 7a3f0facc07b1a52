"""Worlds for optimizers of a skill, with a true accuracy in closed form. Only the standard library is used.

A world has rules, kinds of items, and items that need one to three of the rules. A skill is any text; the agent reacts
only to the codes in brackets at the ends of its lines, such as `(r07.x2)`:

| code | the line |
|---|---|
| `r07.x2` | a good wording of rule 7 |
| `r07.b1` | rule 7 put too broadly: it helps where the rule is needed and spoils items of another kind |
| `r07.h4` | harmful advice: it helps nowhere and spoils items of one or two kinds |
| `r07.f9` | filler: it does nothing |

A rollout is spoiled independently by bad luck, by each needed rule that no line gives, by each harmful line that
touches its kind, and by too many lines. So the probability of success is a product, and the accuracy of a text on the
test items needs no rollouts. Part of the luck is shared by all texts with the same item and seed, so paired comparisons
pay, as with real agents. A rule may need a second line beside its own, the agent may ignore a line, and it may read
only the first lines of a long text.

The trace of a failed rollout names, with errors, what spoiled it, and lines that misled the agent. The simulated
optimizer reads traces and nothing else. It proposes lines of random quality for what was named, and, if it can repair,
replaces or deletes the lines that were blamed. It does not know which of its lines are good.

All draws are hashes of the world, the purpose and the content: results do not depend on the order of calls.
"""

import json
import math
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from random import Random
from typing import NamedTuple

SKILL = "# How to work\n\nRead the whole task first. Say the result at the end.\n"
"""The initial skill."""
BUDGET = 1600
"""The rollouts of a run, without those of the test split."""

_CODE = re.compile(r"\((r(\d+)\.([xbhf])(\d+))\)")
_LINE = re.compile(r"- When (\w+): [^\n(]*\((r\d+\.[xbhf]\d+)\)")
_TRACE = re.compile(r"item (\S+) kind (\S+)\ntrouble: ([^\n]*)\nmisled by: ([^\n]*)\nresult: (\w+)")


@dataclass(frozen=True)
class Setting:
    """The settings of a family of worlds."""

    name: str
    rules: int = 16
    kinds: int = 4
    train: int = 80
    selection: int = 40
    test: int = 400
    base: float = 0.95
    """The probability that bad luck does not spoil a rollout."""
    miss: tuple[float, float] = (0.25, 0.45)
    """The probability, from and to, that a missing rule does not spoil a rollout."""
    need: tuple[float, float, float] = (0.4, 0.4, 0.2)
    """The shares of items that need one, two and three rules."""
    skew: float = 0.7
    """How much more often some rules are needed than others."""
    quality: tuple[float, float, float, float] = (0.5, 0.2, 0.2, 0.1)
    """The shares of proposals that are good, too broad, filler and harmful."""
    hint: float = 0.8
    """The probability that a trace names a rule whose absence spoiled the rollout."""
    spurious: float = 0.15
    """The probability that a trace names something that did not spoil it."""
    decoys: int = 30
    """The number of situations that can be named although no rule is about them."""
    blame: float = 0.6
    """The probability that a trace names a line that spoiled the rollout."""
    false_blame: float = 0.1
    """The probability that it names a line that did not."""
    damage: tuple[float, float] = (0.3, 0.6)
    """The probability, from and to, that a harmful line spoils an item that it touches."""
    dilution: float = 0.002
    free: int = 20
    """Each line beyond `free` spoils a share `dilution` of the rollouts."""
    luck: float = 0.5
    """The share of the luck that all texts share on the same item and seed."""
    ignore: float = 0.0
    """The probability that the agent ignores a line in a rollout."""
    partners: float = 0.0
    """The share of rules that work only together with a line about another rule."""
    names: int = 1
    """How many names the optimizer has for a situation. It uses one that it was shown, if there is one, most often."""
    context: int = 0
    """The number of lines that the agent reads; 0: all."""
    repair: bool = True
    """Whether the optimizer can replace and delete lines that were blamed."""
    old: tuple[int, int, int] = (0, 0, 0)
    """How many lines of the initial skill are good, filler and harmful."""
    old_damage: tuple[float, float] = (0.15, 0.45)
    """The same as `damage` for a harmful line of the initial skill. It spoils one kind."""
    spare_old: bool = False
    """Whether traces never name a line of the initial skill as one that misled the agent."""
    reuse: float = 0.8
    """With several names for a situation: how often the optimizer uses one that it was shown."""
    wordings: int = 12
    """The most wordings of each sort that the optimizer has for a line."""
    habit: str = ""
    """How replies of the optimizer contradict themselves (`line_worlds.bend_reply`)."""


class Item(NamedTuple):
    id: str
    kind: str
    needs: tuple[int, ...]


class Line(NamedTuple):
    """A line of a skill, as the agent reads it."""

    code: str
    rule: int
    sort: str


class Trace(NamedTuple):
    """What an analyst can see of a rollout."""

    item: str
    kind: str
    trouble: tuple[str, ...]
    misled: tuple[str, ...]
    passed: bool


class Proposal(NamedTuple):
    """A proposed change: an added line, a replaced line (`code`), or a deleted one (no text)."""

    text: str
    situation: str
    items: tuple[str, ...]
    code: str = ""
    """The code of the old line."""


def draw(*key: object) -> float:
    """A number in [0, 1) that depends on the key alone."""
    digest = blake2b("\x1f".join(map(str, key)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def make_random(*key: object) -> Random:
    return Random("\x1f".join(map(str, key)))


class World:
    """One world of a family."""

    def __init__(self, setting: Setting, seed: int) -> None:
        self.setting, self.seed = setting, seed
        self.key = f"{setting.name}/{seed}"
        rng = make_random("world", setting.name, seed)
        self.situations = _make_words(setting.rules + setting.decoys, rng)
        """The name of each rule's situation, then those of the decoys."""
        self.number = {name: number for number, name in enumerate(self.situations)}
        self.miss = [rng.uniform(*setting.miss) for _ in range(setting.rules)]
        weights = [1 / (place + 1) ** setting.skew for place in range(setting.rules)]
        rng.shuffle(weights)
        self.partner = {
            rule: rng.choice([other for other in range(setting.rules) if other != rule])
            for rule in range(setting.rules)
            if rng.random() < setting.partners
        }
        self.kinds = tuple(f"K{number}" for number in range(setting.kinds))
        taste = {kind: [w * rng.uniform(0.1, 2.0) for w in weights] for kind in self.kinds}
        sizes = {"train": setting.train, "selection": setting.selection, "test": setting.test}
        self.items: dict[str, tuple[Item, ...]] = {
            split: tuple(self._make_item(f"{split}-{n}", taste, rng) for n in range(size))
            for split, size in sizes.items()
        }
        self.by_id = {item.id: item for part in self.items.values() for item in part}
        self.skill = SKILL + "".join(f"\n{line}\n" for line in self._make_old_lines())
        """The initial skill."""
        self.old = read_codes(self.skill)
        self._parsed: dict[str, tuple[Line, ...]] = {}
        self._accuracy: dict[frozenset[str], float] = {}

    def _make_item(self, name: str, taste: dict[str, list[float]], rng: Random) -> Item:
        kind = rng.choice(self.kinds)
        count = rng.choices((1, 2, 3), self.setting.need)[0]
        needs: list[int] = []
        while len(needs) < count:
            rule = rng.choices(range(self.setting.rules), taste[kind])[0]
            if rule not in needs:
                needs.append(rule)
        return Item(name, kind, tuple(sorted(needs)))

    def _make_old_lines(self) -> list[str]:
        """The lines of the initial skill: some rules, filler and harmful advice, shuffled."""
        rng = make_random(self.key, "old lines")
        known = dict(zip("xfh", self.setting.old, strict=True))
        places = {"x": rng.sample(range(self.setting.rules), known["x"])}
        for sort in "fh":
            places[sort] = [rng.randrange(len(self.situations)) for _ in range(known[sort])]
        lines = [
            f"- When {self.situations[place]}: {_ADVICE[sort]} (r{place:02d}.{sort}{20 + number})"
            for sort, found in places.items()
            for number, place in enumerate(found)
        ]
        rng.shuffle(lines)
        return lines

    # ---- the agent ------------------------------------------------------------------------------------------------

    def read_lines(self, text: str) -> tuple[Line, ...]:
        """The lines that the agent reads, each once."""
        if (found := self._parsed.get(text)) is None:
            lines = {code: Line(code, int(rule), sort) for code, rule, sort, _ in _CODE.findall(text)}
            found = tuple(lines.values())
            if self.setting.context:
                found = found[: self.setting.context]
            if len(self._parsed) > 5000:
                self._parsed.clear()
            self._parsed[text] = found
        return found

    def find_victims(self, line: Line) -> dict[str, float]:
        """The kinds that a line spoils, with the probability."""
        if line.sort not in "bh":
            return {}
        rng = make_random(self.key, "victims", line.code)
        if line.code in self.old:
            return {rng.choice(self.kinds): rng.uniform(*self.setting.old_damage)}
        kinds = rng.sample(self.kinds, 1 if line.sort == "b" else rng.choice((1, 2)))
        return {kind: rng.uniform(*self.setting.damage) for kind in kinds}

    @cached_property
    def _victims(self) -> dict[str, dict[str, float]]:
        return {}

    def _list_dangers(self, item: Item, lines: Sequence[Line]) -> list[tuple[str, float]]:
        """What can spoil a rollout, with its probability: `rule 3`, the code of a line, `luck` or `length`."""
        setting = self.setting
        given = Counter(line.rule for line in lines if line.sort in "xb")
        found: list[tuple[str, float]] = [("luck", 1 - setting.base)]
        for rule in item.needs:
            partner = self.partner.get(rule)
            count = given[rule] if partner is None or given[partner] else 0
            found.append((f"rule {rule}", (1 - self.miss[rule]) * (setting.ignore**count if count else 1.0)))
        for line in lines:
            if line.sort in "bh":
                if (victims := self._victims.get(line.code)) is None:
                    victims = self._victims[line.code] = self.find_victims(line)
                if item.kind in victims:
                    found.append((line.code, victims[item.kind] * (1 - setting.ignore)))
        surplus = max(0, len(lines) - setting.free)
        found.append(("length", 1 - math.exp(-setting.dilution * surplus)))
        return [(name, chance) for name, chance in found if chance > 0]

    def compute_chance(self, item: Item, lines: Sequence[Line]) -> float:
        """The probability of success."""
        return math.prod(1 - chance for _, chance in self._list_dangers(item, lines))

    def compute_accuracy(self, text: str) -> float:
        """The true accuracy of a text on the test items."""
        return self._compute_accuracy(self.read_lines(text))

    def _compute_accuracy(self, lines: Sequence[Line]) -> float:
        key = frozenset(line.code for line in lines)
        if (known := self._accuracy.get(key)) is None:
            test = self.items["test"]
            known = math.fsum(self.compute_chance(item, lines) for item in test) / len(test)
            self._accuracy[key] = known
        return known

    @cached_property
    def ceiling(self) -> float:
        """The true accuracy with every rule that the train items need, and their partners."""
        rules = {rule for item in self.items["train"] for rule in item.needs}
        rules |= {self.partner[rule] for rule in rules if rule in self.partner}
        return self._compute_accuracy([Line(f"r{rule:02d}.x1", rule, "x") for rule in sorted(rules)])

    @property
    def start(self) -> float:
        return self.compute_accuracy(self.skill)

    def run_agent(self, text: str, item: Item, seed: object) -> str:
        """One rollout: the trace that the agent leaves. Its last line is the result."""
        setting, lines = self.setting, self.read_lines(text)
        own = ",".join(sorted(line.code for line in lines))
        place = (self.key, item.id, seed)
        causes: list[str] = []
        for name, chance in self._list_dangers(item, lines):
            shared = draw(*place, name, "shared") < setting.luck
            if draw(*place, name, "" if shared else own) < chance:
                causes.append(name)
        if not causes:
            return f"item {item.id} kind {item.kind}\ntrouble: -\nmisled by: -\nresult: right"
        trouble = [
            self.situations[int(name[5:])]
            for name in causes
            if name.startswith("rule ") and draw(*place, name, own, "hint") < setting.hint
        ]
        misled = [name for name in causes if name.startswith("r") and " " not in name]
        misled = [code for code in misled if draw(*place, code, own, "blame") < setting.blame]
        if setting.spare_old:
            misled = [code for code in misled if code not in self.old]
        if draw(*place, own, "spurious") < setting.spurious:
            trouble.append(self.situations[int(draw(*place, own, "which") * len(self.situations))])
        if lines and draw(*place, own, "false blame") < setting.false_blame:
            whose = lines[int(draw(*place, own, "whose") * len(lines))].code
            misled += [whose] if not (setting.spare_old and whose in self.old) else []
        named = ", ".join(dict.fromkeys(trouble)) or "-"
        blamed = ", ".join(dict.fromkeys(misled)) or "-"
        return f"item {item.id} kind {item.kind}\ntrouble: {named}\nmisled by: {blamed}\nresult: wrong"

    # ---- the optimizer --------------------------------------------------------------------------------------------

    def make_line(self, situation: str, rng: Random, avoid: Iterable[str] = (), quality: str = "") -> str:
        """A line about a situation, of random quality. It is seldom one that was rejected before."""
        avoid = set(avoid)
        text = ""
        for _ in range(3):
            sort = quality or rng.choices("xbfh", self.setting.quality)[0]
            rule = self.number[situation]
            if rule >= self.setting.rules and sort in "xb":
                sort = "f"  # there is nothing to be right about
            code = f"r{rule:02d}.{sort}{rng.randint(1, min(self.setting.wordings, _WORDINGS[sort]))}"
            text = f"- When {situation}: {_ADVICE[sort]} ({code})"
            if code not in avoid or rng.random() > 0.7:
                break
        return text

    def propose(
        self, skill: str, traces: Sequence[Trace], limit: int, rng: Random, avoid: Iterable[str] = ()
    ) -> list[Proposal]:
        """Propose changes of a skill from the traces of rollouts."""
        failed = [trace for trace in traces if not trace.passed]
        named: dict[str, list[str]] = {}
        blamed: dict[str, list[str]] = {}
        for trace in failed:
            for name in trace.trouble:
                named.setdefault(name, []).append(trace.item)
            for code in trace.misled:
                blamed.setdefault(code, []).append(trace.item)
        texts = {code: match for match in _LINE.finditer(skill) if (code := match[2])}
        avoid = set(avoid)
        found: list[Proposal] = []
        touched: set[str] = set()
        if self.setting.repair:
            for code, items in _by_count(blamed):
                if code in texts and (len(items) > 1 or rng.random() < 0.5):
                    situation = texts[code][1]
                    sort = _CODE.findall(f"({code})")[0][2]
                    better = sort == "b" and rng.random() < 0.7
                    text = self.make_line(situation, rng, quality="x") if better else ""
                    found.append(Proposal(text, situation, tuple(items), code))
                    touched.add(situation)
        for situation, items in _by_count(named):
            if situation in touched:
                continue
            old = [code for code, match in texts.items() if match[1] == situation]
            if old and rng.random() < 0.5:
                continue  # the rule is there: perhaps it was only not followed
            text = self.make_line(situation, rng, avoid)
            replaced = old[0] if old and self.setting.repair and rng.random() < 0.5 else ""
            if text.rpartition("(")[2][:-1] not in texts:
                found.append(Proposal(text, situation, tuple(items), replaced))
        return found[:limit]

    def praise(self, skill: str, rng: Random) -> list[Proposal]:
        """What an analyst of successes proposes: now and then a line that does nothing."""
        if rng.random() > 0.3:
            return []
        situation = rng.choice(self.situations)
        return [Proposal(self.make_line(situation, rng, quality="f"), situation, ())]

    def rename(self, situation: str, shown: str, rng: Random) -> str:
        """The name that the optimizer gives a situation: one that it was shown, most often, or any of its names."""
        if self.setting.names == 1:
            return situation
        words = _make_words(self.setting.names, make_random(self.key, "names", situation))
        names = [situation, f"{situation} again", *words][: self.setting.names]
        known = [name for name in names if re.search(rf"\b{name}\b", shown)]
        if known and rng.random() < self.setting.reuse:
            return known[0]
        return rng.choice(names)


_WORDINGS = {"x": 3, "b": 4, "f": 12, "h": 8}
_ADVICE = {
    "x": "follow the checked procedure",
    "b": "always do it the safe way",
    "f": "work with care",
    "h": "take the short way",
}


def _make_words(count: int, rng: Random) -> list[str]:
    """Invented words that differ from each other in more than a letter."""
    syllables = [c + v for c in "bdfgklmnprstvz" for v in "aeiou"]
    words: dict[str, None] = {}
    while len(words) < count:
        words.setdefault("".join(rng.sample(syllables, 4)))
    return list(words)


def _by_count(found: dict[str, list[str]]) -> list[tuple[str, list[str]]]:
    """The most frequent first."""
    return sorted(found.items(), key=lambda entry: (-len(entry[1]), entry[0]))


def read_traces(text: str) -> list[Trace]:
    """The traces in a prompt."""
    return [
        Trace(item, kind, _split(trouble), _split(misled), result == "right")
        for item, kind, trouble, misled, result in _TRACE.findall(text)
    ]


def _split(names: str) -> tuple[str, ...]:
    return tuple(name for name in names.strip().split(", ") if name != "-")


def read_codes(text: str) -> set[str]:
    """The codes of all lines in a text."""
    return {match[0] for match in _CODE.findall(text)}


def find_line(skill: str, code: str) -> str:
    """The line of a skill with this code; empty if there is none."""
    return next((line for line in skill.splitlines() if f"({code})" in line), "")


def make_edit(skill: str, proposal: Proposal) -> dict[str, str] | None:
    """The change as an edit of the document; None if the old line is gone."""
    if not proposal.code:
        return {"op": "append", "content": proposal.text}
    target = find_line(skill, proposal.code)
    if not target:
        return None
    if proposal.text:
        return {"op": "replace", "target": target, "content": proposal.text}
    return {"op": "delete", "target": target}


def merge_edits(edits: Sequence[dict[str, str]]) -> list[tuple[dict[str, str], list[int]]]:
    """One edit for each situation and each old line, the most frequent first, with the places it was made of."""
    groups: dict[str, list[int]] = {}
    for place, edit in enumerate(edits):
        line = _LINE.search(edit.get("content", ""))
        groups.setdefault(edit.get("target") or (line[1] if line else ""), []).append(place)
    ordered = sorted(groups.values(), key=lambda places: (-len(places), places[0]))
    return [(edits[places[0]], places) for places in ordered]


def apply_proposals(skill: str, proposals: Iterable[Proposal]) -> str:
    """The text after the changes, for optimizers that write whole texts."""
    for proposal in proposals:
        old = find_line(skill, proposal.code) if proposal.code else ""
        if old:
            skill = skill.replace(old, proposal.text) if proposal.text else skill.replace(f"{old}\n", "")
        elif proposal.text and not proposal.code:
            skill = f"{skill.rstrip()}\n{proposal.text}\n"
    return skill


# ---- families -------------------------------------------------------------------------------------------------------

_EASY = Setting("easy")
_MANY = Setting(
    "many", rules=28, kinds=5, miss=(0.35, 0.55), quality=(0.3, 0.2, 0.3, 0.2), hint=0.65, spurious=0.25, train=100
)
DEVELOPMENT: dict[str, Setting] = {
    setting.name: setting
    for setting in (
        _EASY,
        replace(_EASY, name="small", train=35, selection=17),
        _MANY,
        replace(_MANY, name="harmful", quality=(0.3, 0.15, 0.15, 0.4)),
        replace(_EASY, name="filler", quality=(0.0, 0.0, 1.0, 0.0)),
        replace(_EASY, name="partners", partners=0.3),
        replace(_EASY, name="names", names=3),
        replace(_EASY, name="ignore", ignore=0.25),
        replace(_EASY, name="context", context=18),
    )
}
"""Worlds for the choice of constants."""

_EASY_HELD = replace(
    _EASY,
    name="held easy",
    rules=18,
    kinds=5,
    base=0.94,
    miss=(0.2, 0.4),
    need=(0.35, 0.4, 0.25),
    skew=0.9,
    quality=(0.5, 0.15, 0.2, 0.15),
    hint=0.75,
    spurious=0.2,
    damage=(0.25, 0.6),
)
_MANY_HELD = replace(
    _EASY_HELD,
    name="held many",
    rules=32,
    kinds=6,
    train=90,
    miss=(0.3, 0.55),
    quality=(0.3, 0.2, 0.3, 0.2),
    hint=0.6,
    spurious=0.3,
    false_blame=0.15,
)
HELD_OUT: dict[str, Setting] = {
    "easy": _EASY_HELD,
    "small": replace(_EASY_HELD, name="held small", train=35, selection=17),
    "many": _MANY_HELD,
    "harmful": replace(_MANY_HELD, name="held harmful", quality=(0.3, 0.15, 0.15, 0.4)),
    "filler": replace(_EASY_HELD, name="held filler", quality=(0.0, 0.0, 1.0, 0.0)),
    "partners": replace(_EASY_HELD, name="held partners", partners=0.35),
    "names": replace(_EASY_HELD, name="held names", names=3),
    "ignore": replace(_EASY_HELD, name="held ignore", ignore=0.2),
    "context": replace(_EASY_HELD, name="held context", context=20),
}
"""Worlds for the report: other settings, and other seeds."""


def load_world(family: str, seed: int, *, held_out: bool, repair: bool) -> World:
    import line_worlds  # which derives its families from those above

    setting = (HELD_OUT | line_worlds.HELD_OUT if held_out else DEVELOPMENT | line_worlds.DEVELOPMENT)[family]
    return World(replace(setting, repair=repair), seed)


def count_epochs(setting: Setting, batch: int, *, slow: bool) -> int:
    """The epochs after which a gated loop has spent the budget. Schedules that fall reach their end about there."""
    steps = math.ceil(setting.train / batch)
    return math.ceil(BUDGET / (setting.train + 0.9 * steps * setting.selection + 40 * slow)) + 1


# ---- runs -----------------------------------------------------------------------------------------------------------


class BudgetSpent(BaseException):
    """The rollouts of a run are spent. No `except Exception` of an optimizer catches it."""


class Meter:
    """Counts the rollouts of a run, and keeps its curve and its decisions."""

    def __init__(self, world: World, budget: int = BUDGET) -> None:
        self.world, self.budget = world, budget
        self.counts: Counter[str] = Counter()
        self.curve: list[tuple[int, float, int]] = []
        self.decisions: list[tuple[float, bool]] = []
        self.tokens = {"prompt": 0, "new": 0}
        """Tokens of the skill in all prompts, and those of them that no earlier prompt had as its beginning."""
        self._prompts: set[int] = set()
        self._bought: Counter[tuple[str, str]] = Counter()

    @property
    def spent(self) -> int:
        """The rollouts that count: all but those of the test split."""
        return sum(count for split, count in self.counts.items() if split != "test")

    def count(self, item: str) -> None:
        self.counts[item.partition("-")[0]] += 1

    def prompt(self, text: str) -> None:
        """Count the tokens of a prompt. A server with a cache reads only what follows a beginning that it knows."""
        start = 0
        for line in text.splitlines():
            start = hash((start, line))
            self.tokens["prompt"] += (len(line) + 1) // 4
            if start not in self._prompts:
                self._prompts.add(start)
                self.tokens["new"] += (len(line) + 1) // 4

    def buy(self, text: str, item: Item) -> str:
        """Run the agent, for optimizers that give no seeds: an item that is run again with the same text gets a new
        seed."""
        if self.spent >= self.budget:
            raise BudgetSpent
        self.count(item.id)
        place = (item.id, text)
        self._bought[place] += 1
        return self.world.run_agent(text, item, self._bought[place])

    def deploy(self, text: str) -> None:
        """Note what would be shipped now."""
        if self.spent <= self.budget:
            lines = len(self.world.read_lines(text))
            point = (self.spent, self.world.compute_accuracy(text), lines)
            if not self.curve or self.curve[-1][1:] != point[1:]:
                self.curve.append(point)

    def report(self, text: str, claim: float, **more: object) -> dict[str, object]:
        """The result of a run that ships this text and claims this gain."""
        world = self.world
        return {
            "start": world.start,
            "ceiling": world.ceiling,
            "accuracy": world.compute_accuracy(text),
            "lines": len(world.read_lines(text)),
            "claim": claim,
            "spent": self.spent,
            "counts": dict(self.counts),
            "curve": self.curve,
            "decisions": self.decisions,
            **more,
        }

    def decide(self, candidate: str, current: str, accepted: bool) -> None:
        """Note a decision with the true change."""
        change = self.world.compute_accuracy(candidate) - self.world.compute_accuracy(current)
        self.decisions.append((round(change, 6), accepted))


def serve(run: Callable[[World, str], dict[str, object]]) -> None:
    """Run the jobs of the standard input, one JSON object per line, and print each result as a line of JSON."""
    for text in sys.stdin:
        job = json.loads(text)
        world = load_world(job["family"], job["seed"], held_out=job["held_out"], repair=job["repair"])
        cpu = time.process_time()
        result = run(world, job["variant"])
        print(json.dumps({**job, **result, "cpu": time.process_time() - cpu}), flush=True)
