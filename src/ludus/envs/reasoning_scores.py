"""Samples and scores questions of reasoning-gym. These functions run in a scoring process.

reasoning-gym evaluates some answers as code: with `eval`, or with SymPy's `parse_expr`, which calls it. An agent could
run anything there and give itself any score. So `eval` is replaced by a reader of literals, and the answers that
`parse_expr` gets may only have numbers, operators, single letters and the names of common functions. `Integral` is not
one of these: an integral is no solution of itself.

For some tasks reasoning-gym gives up to 0.05 for any text at all. Up to `FLOOR`, a score counts as 0.
"""

import ast
import importlib
import re
from functools import cache
from typing import Any

FLOOR = 0.05
EVALUATED = frozenset({"countdown", "polynomial_multiplication", "puzzle24", "simple_integration"})
"""Generators that give the answer to `parse_expr`."""
READ_AS_LISTS = (
    "algorithmic.binary_matrix",
    "algorithmic.spiral_matrix",
    "algorithmic.string_insertion",
    "games.n_queens",
)
"""Modules that give the answer to `eval`, to read a list."""
FUNCTIONS = frozenset(
    [
        "sin",
        "cos",
        "tan",
        "cot",
        "sec",
        "csc",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
        "tanh",
        "exp",
        "log",
        "ln",
        "sqrt",
        "pi",
        "erf",
        "Abs",
    ]
)
BLOCK = 500
"""How many questions one data set of reasoning-gym has: some generators make all of theirs at once."""
LONGEST = 20_000
"""A longer answer is not scored."""
_PARTS = re.compile(r"\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+|[A-Za-z]+|[-+*/^(), \t\n]|[×÷]")

Sampled = list[tuple[int, str]]


def list_generators() -> list[str]:
    """The names of all generators, those of no use too."""
    factory: Any = importlib.import_module("reasoning_gym.factory")
    return sorted(factory.DATASETS)


def sample(generator: str, seed: int, first: int, count: int) -> Sampled:
    """The questions of `count` indices, from `first` on, with their indices."""
    return [(index, str(_find_entry(generator, seed, index)[1]["question"])) for index in range(first, first + count)]


def solve(generator: str, seed: int, index: int) -> str:
    """The generator's own answer, or the example of one that it keeps."""
    _, entry = _find_entry(generator, seed, index)
    if (answer := entry["answer"]) is not None:
        return str(answer)
    facts: dict[str, Any] = entry["metadata"]
    names = ("example_correct_answer", "example_answer", "possible_answer")
    answer = next(facts[name] for name in names if name in facts)
    return answer if isinstance(answer, str) else _to_json(answer)


def score(generator: str, seed: int, index: int, question: str, answer: str) -> float:
    """The generator's score of an answer, between 0 and 1.

    Raises:
        ValueError: the question is another one: the task was sampled by another version of reasoning-gym.
    """
    dataset, entry = _find_entry(generator, seed, index)
    if entry["question"] != question:
        raise ValueError(f"{generator} {seed}/{index} has another question in this version of reasoning-gym")
    if not answer.strip() or len(answer) > LONGEST or (generator in EVALUATED and not is_plain_expression(answer)):
        return 0.0
    try:
        value = float(dataset.score_answer(answer, entry))
    except Exception:  # an answer that the scorer cannot read
        return 0.0
    return value if value > FLOOR else 0.0


def is_plain_expression(text: str) -> bool:
    """Whether a text has only what expressions need: nothing in it can call or reach anything else."""
    names = (part for part in _PARTS.findall(text) if part[0].isalpha())
    rest = _PARTS.sub("", text)
    return not rest and all(len(name) == 1 or name in FUNCTIONS for name in names)


def _find_entry(generator: str, seed: int, index: int) -> tuple[Any, dict[str, Any]]:
    """The question of an index with all that is known about it, and the data set that scores it."""
    block, place = divmod(index, BLOCK)
    dataset = _make_dataset(generator, seed + 1_000_003 * block)
    return dataset, dataset[place]


@cache
def _make_dataset(generator: str, seed: int) -> Any:
    library: Any = importlib.import_module("reasoning_gym")
    for name in READ_AS_LISTS:
        module: Any = importlib.import_module(f"reasoning_gym.{name}")
        module.eval = ast.literal_eval
    return library.create_dataset(generator, seed=seed, size=BLOCK)


def _to_json(value: Any) -> str:
    import json

    return json.dumps(value)  # its keys may be numbers
