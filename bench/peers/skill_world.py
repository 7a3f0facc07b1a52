"""A small training problem that both systems use: the questions, the agent's model and the optimizer's.

Question n is answered correctly when the skill has rule n modulo 40, so every step has failures, and its edits help.
The models are functions that reply at once, or after a delay that simulates a server. Only the standard library is
used.
"""

import json
import re
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

RULES = 40
SPLITS = {"train": 160, "val": 40, "test": 40}
EPOCHS, PER_STEP, WORKERS = 3, 40, 64
SKILL = "# How to answer\n"

_NUMBER = re.compile(r"Question (\d+)\?")


def make_items(split: str) -> list[dict[str, Any]]:
    start = {"train": 0, "val": 1000, "test": 2000}[split]  # multiples of RULES
    return [
        {"id": f"{split}-{n}", "question": f"Question {n}?", "context": "[DOC] nothing", "answers": [make_answer(n)]}
        for n in range(start, start + SPLITS[split])
    ]


def make_answer(number: int) -> str:
    return f"word{number % RULES}"


def make_rule(number: int) -> str:
    return f"Rule {number % RULES}: say it."


def make_reply(system: str, user: str) -> str:
    """Make the reply of the agent's model."""
    numbers = _NUMBER.findall(user)
    number = int(numbers[-1])
    return f"<answer>{make_answer(number) if make_rule(number) in system else 'no idea'}</answer>"


def find_needed_rules(user: str) -> list[str]:
    """Find the rules that the questions of a prompt need, each once."""
    return list(dict.fromkeys(make_rule(int(number)) for number in _NUMBER.findall(user)))


@dataclass(frozen=True)
class Reading:
    """The figures and the result of a training run. Results of both systems must be equal."""

    system: str
    steps: int
    accepted: int
    cpu_seconds: float
    wall_seconds: float
    test: float
    """The share of test questions that the best skill answers correctly."""

    @property
    def cpu_ms_per_step(self) -> float:
        return self.cpu_seconds * 1000 / self.steps


class Plan(NamedTuple):
    """The delay of the models, the batches per step, and the epochs."""

    delay: float
    batches: int
    epochs: int


def measure(system: str, run: Callable[[Plan], tuple[int, int, float]]) -> None:
    """Measure a driver and print the figures.

    `run` trains and returns the steps, the accepted steps, and the share of correct test questions.
    """
    delay, batches = float(sys.argv[1]) / 1000, int(sys.argv[2])
    run(Plan(0.0, batches, 1))  # imports, caches, compiled patterns
    cpu, wall = time.process_time(), time.perf_counter()
    steps, accepted, right = run(Plan(delay, batches, EPOCHS))
    taken = time.process_time() - cpu, time.perf_counter() - wall
    print(json.dumps(asdict(Reading(system, steps, accepted, *taken, right))), flush=True)
