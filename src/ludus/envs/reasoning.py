"""Puzzles of reasoning-gym (`ludus-train[reasoning-gym]`): about a hundred generators, each with its own scorer.

Every question is sampled from a seed, so there is no end of them. Which split a question belongs to is decided by its
text: no question is in two splits. The generators in `LEFT_OUT` are not used, for the reasons that stand there.
Sampling and scoring happen in a process with a fixed hash seed. Without one, eight generators sample other questions in
each process.

Where a generator has few different answers, one constant earns much of the score: "Yes" is right for two of three
syllogisms. What the best constant earns was measured for each generator (`scripts/measure-constants`, `CONSTANTS`), and
`max_constant` leaves out those in which it earns more.
"""

import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta, Struct

from ludus.env import Env, EnvFacts
from ludus.envs import reasoning_scores
from ludus.errors import ConfigError, suggest
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.types import Count, Rollout, Score, Task
from ludus.verify.scoring_process import run_scorer, run_scorer_now

MISSING = "env.name: reasoning-gym is not installed: pip install 'ludus-train[reasoning-gym]'"
SPLITS = {"train": (0, 1), "validation": (2,), "test": (3,)}
"""The quarters of all questions that belong to a split."""
DRAWS = 40
"""How many questions are sampled for each one that is wanted, before a generator counts as exhausted."""
LEFT_OUT: Mapping[str, str] = MappingProxyType(
    {
        "boxnet": "no reference answer to prove it with",
        "codeio": "cannot repeat: it runs programs that sample random numbers of their own",
        "composite": "no generator of its own: it mixes others",
        "figlet_font": "scores junk: 0.1 for each letter that fits by chance",
        "game_of_life_halting": "scores junk: any text but 'True' is right where the answer is 'False'",
        "intermediate_integration": "its reference is at times the integral itself, which its scorer takes as solved",
        "letter_jumble": "scores junk: a share for each word that fits by chance",
        "list_functions": "cannot repeat: it samples from the random numbers of the whole process",
        "propositional_logic": "scores junk: up to 0.25 for any text",
        "puzzle24": "scores junk: any four numbers that make 24 are right, such as 3*8/(1*1), not only the given ones",
        "rush_hour": "no reference answer to prove it with",
        "spell_backward": "scores junk: a share for each letter that fits by chance",
    }
)
"""The generators that are not used, and why."""
CONSTANTS = Path(__file__).parent / "data" / "reasoning_constants.json"
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.S)


class BestConstant(Struct, frozen=True):
    """The answer that earns most in a generator, if it is given to every question."""

    answer: str
    score: float
    """The mean over questions by which it was not chosen."""


class _Constants(Struct, frozen=True):
    generators: dict[str, BestConstant]


@cache
def read_constants() -> Mapping[str, BestConstant]:
    """The best constant of each generator."""
    return msgspec.json.decode(CONSTANTS.read_bytes(), type=_Constants).generators


class ReasoningGym(Env, frozen=True):
    """Puzzles of reasoning-gym, scored by the generators' own scorers."""

    name: ClassVar[str] = "reasoning-gym"
    facts: ClassVar[EnvFacts] = EnvFacts(
        tasks="94 generators times env.size",
        licence="Apache-2.0 (reasoning-gym)",
        scored="the generator's own scorer, with partial credit; a constant earns much in some (env.max_constant)",
        extra="reasoning-gym",
        speed="2 ms per task",
    )
    sandbox: ClassVar[SandboxSpec | None] = None
    system: ClassVar[str] = (
        "Think the puzzle through. Then write the final answer, and only it, between <answer> and </answer>."
    )

    generators: tuple[str, ...] = ()
    """The generators to use, such as `sudoku,countdown`; empty: all that can be proved."""
    size: Count = 2
    """How many tasks of each generator a split has."""
    seed: int = 0
    """The seed of the questions."""
    max_constant: Annotated[float, Meta(ge=0.0, le=1.0)] = 1.0
    """Leave out the generators in which one constant answer earns more than this (the table in `environments.md`)."""

    def tasks(self, split: str) -> Iterator[Task]:
        if find_spec("reasoning_gym") is None:
            raise ConfigError(MISSING)
        if split not in SPLITS:
            return
        for generator in self._choose_generators():
            for index, question in itertools.islice(self._sample(generator, split), self.size):
                yield Task(
                    id=f"{generator}-{self.seed}-{index}",
                    prompt=question,
                    split=split,
                    kind=generator,
                    answer={"generator": generator, "seed": self.seed, "index": index},
                )

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        place, answer = rollout.task.answer, find_tagged(rollout.answer)
        arguments = (place["generator"], place["seed"], place["index"], rollout.task.prompt, answer)
        value = await run_scorer(f"{reasoning_scores.__name__}:score", *arguments)
        if value >= 1.0:
            return Score.of(1.0, "The answer is right.")
        why = "It is right in part." if value else "The answer is wrong." if answer else "There is no answer."
        return Score.of(value, why)

    async def solve(self, task: Task, box: Sandbox | None) -> str:
        place = task.answer
        arguments = (place["generator"], place["seed"], place["index"])
        return f"<answer>{await run_scorer(f'{reasoning_scores.__name__}:solve', *arguments)}</answer>"

    def _choose_generators(self) -> list[str]:
        known: list[str] = run_scorer_now(f"{reasoning_scores.__name__}:list_generators")
        for name in self.generators:
            if name in LEFT_OUT:
                raise ConfigError(f"env.generators: '{name}' is left out ({LEFT_OUT[name]})")
            if name not in known:
                raise ConfigError(f"env.generators: there is no '{name}'; {suggest(name, known)}")
        chosen = list(self.generators) or [name for name in known if name not in LEFT_OUT]
        kept = [name for name in chosen if not self._is_guessable(name)]
        if not kept:
            raise ConfigError(f"env.max_constant: {self.max_constant:g} leaves no generator; the lowest is 0")
        return kept

    def _is_guessable(self, generator: str) -> bool:
        """Whether a constant earns too much. A generator that was not measured is used only if all are."""
        found = read_constants().get(generator)
        return (1.0 if found is None else found.score) > self.max_constant

    def _sample(self, generator: str, split: str) -> Iterator[tuple[int, str]]:
        """Different questions of a split, as many as the generator has."""
        seen: set[str] = set()
        step = min(64, 2 * self.size)
        for first in range(0, DRAWS * self.size, step):
            arguments = (generator, self.seed, first, step)
            for index, question in run_scorer_now(f"{reasoning_scores.__name__}:sample", *arguments, seconds=300.0):
                if find_quarter(question) in SPLITS[split] and question not in seen:
                    seen.add(question)
                    yield index, question


def find_tagged(text: str) -> str:
    """What the last pair of answer tags contains; the whole text if there is none."""
    found = _ANSWER.findall(text)
    return (found[-1] if found else text).strip()


def find_quarter(question: str) -> int:
    return hashlib.sha256(question.encode()).digest()[0] % 4
