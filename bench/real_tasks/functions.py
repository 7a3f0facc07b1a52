"""Write small Python functions. The hidden tests follow conventions of the house, which the tasks do not tell."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from msgspec.structs import replace

from ludus.env import EnvFacts
from ludus.envs.function_env import FILE, FunctionEnv, FunctionTests, make_task
from ludus.sandbox import Sandbox
from ludus.types import Rollout, Score, Task

sys.path.insert(0, str(Path(__file__).parent))
from splits import cut

NUMBERS = (
    ("mean_above", "the mean of the numbers in xs that are greater than {n}", "sum(c) / len(c)", "x > {n}"),
    ("mean_below", "the mean of the numbers in xs that are less than {n}", "sum(c) / len(c)", "x < {n}"),
    ("largest_below", "the largest number in xs that is less than {n}", "max(c)", "x < {n}"),
    ("smallest_above", "the smallest number in xs that is greater than {n}", "min(c)", "x > {n}"),
)
"""Name, what to compute, how, and which numbers count."""
WORDS = (
    "tea", "sun", "oak", "cat", "ink", "map", "fog", "rye", "jam", "pen", "bee", "elm", "owl", "sea", "hat", "cup",
)  # fmt: skip
TEXTS = (
    ("count_{w}", "how often the word '{w}' occurs in text", "text.lower().split().count('{w}')",
     [("{w} and {w}", 2), ("{W} or {w} or none", 2), ("none", 0)]),
    ("has_{w}", "whether the word '{w}' occurs in text", "'{w}' in text.lower().split()",
     [("the {w}", True), ("The {W} here", True), ("none", False)]),
    ("after_{w}", "the word that comes first after the word '{w}' in text",
     "next((b for a, b in zip(text.lower().split(), text.lower().split()[1:]) if a == '{w}'), None)",
     [("a {w} falls", "falls"), ("a {W} falls", "falls"), ("none here", None)]),
)  # fmt: skip
SAMPLES = ("[1, 2, 9, 4, 12, 15.5, 30]", "[3, 3.25, 20, 7, 41, -2]")
SKILL = """\
Return None if there is nothing to compute the result from, such as an empty list.
Round every number that is returned to two decimals: round(x, 2).
Ignore case in texts: use text.lower() first.
"""


def make_number_task(name: str, what: str, how: str, which: str, n: int) -> Task:
    """A task about numbers. Without a number that counts, the result is None; results have two decimals."""
    solution = (
        f"def {name}(xs):\n    c = [x for x in xs if {which.format(n=n)}]\n    return round({how}, 2) if c else None\n"
    )
    scope: dict[str, object] = {}
    exec(solution, scope)  # our own code
    tests = [f"assert {name}({xs}) == {scope[name](eval(xs))!r}" for xs in (*SAMPLES, "[]")]  # type: ignore[operator]
    return _make(f"{name}_{n}", name, "xs", what.format(n=n), solution, tests, "numbers")


def make_text_task(name: str, what: str, how: str, cases: Sequence[tuple[str, object]], word: str) -> Task:
    """A task about texts. Case does not count."""
    name, what, how = (text.format(w=word) for text in (name, what, how))
    tests = [f"assert {name}({case.format(w=word, W=word.capitalize())!r}) == {expected!r}" for case, expected in cases]
    return _make(name, name, "text", what, f"def {name}(text):\n    return {how}\n", tests, "texts")


def _make(id: str, name: str, parameter: str, what: str, solution: str, tests: list[str], kind: str) -> Task:
    prompt = f"Write the Python function {name}({parameter}). It returns {what}."
    return make_task(id, prompt, "", FunctionTests([name], tests, solution), "", kind)


class Functions(FunctionEnv, frozen=True):
    """Write small Python functions by conventions of the house."""

    name: ClassVar[str] = "functions"
    toolsets: ClassVar[tuple[str, ...]] = ()
    system: ClassVar[str] = "Answer with the function alone, in one code block. No explanation, no example."
    facts: ClassVar[EnvFacts] = EnvFacts(scored="all hidden tests pass; soft: the share")

    def tasks(self, split: str) -> Iterator[Task]:
        numbers = [make_number_task(*each, n) for each in NUMBERS for n in range(2, 18)]
        texts = [make_text_task(*each, word) for each in TEXTS for word in WORDS]
        yield from cut([*numbers, *texts], split, self.name)

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        assert box is not None
        if rollout.answer.startswith("def "):  # the model often leaves the fence out
            await box.write(FILE, rollout.answer.encode())
        score = await super().verify(rollout, box)
        told = "Right." if score.passed else f"This must hold: {'; '.join(rollout.task.answer['tests'])}"
        return replace(score, feedback=told)
