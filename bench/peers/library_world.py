"""Worlds for libraries of skills, whose truth is known. Only the standard library is used.

Each kind of task has a skill that is for it, or none. What the agent loads depends on the descriptions that it sees:
mostly a skill for the kind of the task, seldom one of another kind. What it then passes depends on the rules in what it
has read: a rule of the task's kind changes the probability of success, up or down, and others do nothing. Rollouts with
equal seeds share most of their luck, as a server with fixed seeds does, but not all of it: another prompt is another
sample.

The skills: helpful, useless and harmful ones, two that have the same rule in other words, and some for kinds of tasks
that never occur. The truth of a skill is computed over many more tasks than a measurement has, with probabilities in
place of outcomes: on the rollouts that load it, with it minus without it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from random import Random
from statistics import fmean

_KIND = re.compile(r"\bfor (k[a-z]+) work\b")
_RULE = re.compile(r"\brule-(k[a-z]+-[a-z]+)\b")
_FILLER = (
    "Keep each answer as short as the work allows it to be.",
    "Say which assumption was made where the text leaves one open.",
    "Look at the numbers twice before they are written down.",
    "Prefer plain words to those of the trade.",
    "Name the source of every figure.",
    "Leave the files of others as they are.",
    "Write dates with the year first.",
    "Ask for nothing that can be looked up.",
)
_WORDS = (
    "amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heath",
    "inlet", "jetty", "knoll", "ledge", "marsh", "north", "ocean", "pine",
)  # fmt: skip


def draw(*key: object) -> float:
    digest = blake2b("\x1f".join(map(str, key)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


@dataclass(frozen=True)
class LibrarySetting:
    """The settings of a family of worlds."""

    name: str
    helpful: int = 3
    useless: int = 2
    harmful: int = 2
    pairs: int = 1
    """Pairs of skills with the same rule."""
    unused: int = 2
    tasks: int = 40
    """Of each kind."""
    loads: float = 0.9
    strays: float = 0.03
    """How often a skill of another kind is loaded."""
    shared_luck: float = 0.8


@dataclass(frozen=True)
class WorldTask:
    id: str
    kind: str
    base: float
    """The probability of success without any rule."""


class LibraryWorld:
    """One world. `truth` is what each skill is."""

    def __init__(self, setting: LibrarySetting, seed: int) -> None:
        self.setting, self.seed = setting, seed
        random = Random(f"{setting.name}/{seed}")
        roles = ["helpful"] * setting.helpful + ["useless"] * setting.useless + ["harmful"] * setting.harmful
        self.kinds = [f"k{_WORDS[n]}" for n in range(len(roles) + setting.pairs + 1)]
        self.effects: dict[str, float] = {}
        self.documents: dict[str, str] = {}
        self.truth: dict[str, str] = {}
        self.preferred: dict[str, float] = {}
        for kind, role in zip(self.kinds, [*roles, *["duplicate"] * setting.pairs], strict=False):
            size = random.uniform(0.22, 0.35)
            effect = {"useless": 0.0, "harmful": -size}.get(role, size)
            self.effects[f"{kind}-main"] = effect
            names = [f"{kind}-guide", f"{kind}-notes"] if role == "duplicate" else [f"{kind}-guide"]
            self.preferred[kind] = random.uniform(0.5, 0.9)
            for name in names:
                self._add(random, name, kind, role)
        for number in range(setting.unused):
            kind = f"k{_WORDS[-1 - number]}x"
            self.effects[f"{kind}-main"] = 0.3
            self._add(random, f"{kind}-guide", kind, "unused")

    def _add(self, random: Random, name: str, kind: str, role: str) -> None:
        rest = "".join(f"- {line}\n" for line in random.sample(_FILLER, 3))
        body = f"# {kind.title()}\n\n- In {kind} work follow rule-{kind}-main to the letter.\n{rest}"
        words = " ".join(random.sample(_WORDS, 3))
        self.documents[name] = f"---\nname: {name}\ndescription: Use it for {kind} work ({words}).\n---\n\n{body}"
        self.truth[name] = role

    def list_tasks(self, count: int, part: str = "") -> list[WorldTask]:
        return [
            WorldTask(f"{kind}-{part}{n}", kind, 0.36 + 0.28 * draw(self.seed, part, kind, n))
            for kind in self.kinds
            for n in range(count)
        ]

    # ---- the agent --------------------------------------------------------------------------------------------------

    def choose(self, kind: str, described: Mapping[str, str], seed: object) -> str:
        """The skill that is loaded, by the descriptions; empty if none is."""
        fits = sorted(name for name, text in described.items() if kind in _KIND.findall(text))
        others = sorted(name for name in described if name not in fits and self.truth[name] != "unused")
        if others and draw(seed, "stray") < self.setting.strays:
            return others[int(draw(seed, "which") * len(others))]
        if not fits or draw(seed, "loads") >= self.setting.loads:
            return ""
        return fits[0] if len(fits) == 1 or draw(seed, "pick") < self.preferred[kind] else fits[1]

    def compute_chance(self, task: WorldTask, read: str) -> float:
        """The probability of success with what was read."""
        rules = (rule for rule in _RULE.findall(read) if rule.startswith(f"{task.kind}-"))
        return task.base + sum(self.effects[rule] for rule in set(rules))

    def passes(self, task: WorldTask, read: str, seed: object) -> bool:
        alike = draw(seed, "alike") < self.setting.shared_luck
        luck = draw(seed, task.id, "luck") if alike else draw(seed, task.id, read, "luck")
        return luck < self.compute_chance(task, read)

    # ---- the truth --------------------------------------------------------------------------------------------------

    @cached_property
    def described(self) -> dict[str, str]:
        return {name: re.findall("^description: (.*)$", text, re.M)[0] for name, text in self.documents.items()}

    def measure_truth(self, names: Sequence[str], tasks: int = 150, runs: int = 4) -> float | None:
        """What the skills are worth together on the rollouts that load one of them; None if none does."""
        return self._average(tasks, runs, names, lambda name: name in names)

    def _average(self, tasks: int, runs: int, names: Sequence[str], is_one: Callable[[str], bool]) -> float | None:
        left = {name: text for name, text in self.described.items() if name not in names}
        means: list[float] = []
        for task in self.list_tasks(tasks, "truth"):
            gains: list[float] = []
            for run in range(runs):
                seed = f"{task.id}/{run}"
                loaded = self.choose(task.kind, self.described, seed)
                if is_one(loaded):
                    other = self.choose(task.kind, left, seed)
                    gains.append(
                        self.compute_chance(task, self.documents[loaded])
                        - self.compute_chance(task, self.documents.get(other, ""))
                    )
            if gains:
                means.append(fmean(gains))
        return fmean(means) if means else None
