"""Mathematical answers, compared by `math-verify`: 1/2, 0.5 and \\frac{1}{2} are the same number.

The answer is what the last `\\boxed{…}` contains, else what follows the last `####`, else whatever `math-verify` finds
in the text. Only one answer is looked at, so a list of guesses is not right because one of them is. `math-verify` reads
LaTeX with a grammar and evaluates nothing. It runs in a process of its own, because some expressions take for ever.
"""

import re
from importlib.util import find_spec
from typing import Any

from ludus.errors import ConfigError
from ludus.types import Score
from ludus.verify.scoring_process import run_scorer

MISSING = "math answers are compared with math-verify: pip install 'ludus-train[math]'"
LONGEST = 2_000
"""An answer with more characters is not read."""


async def compare_expressions(expected: str, got: str, *, problem: str = "", seconds: float = 10.0) -> Score:
    """1 if both are the same mathematical object, else 0. What only repeats the problem is no answer, although
    "expand (x − 3)(x + 8)" contains an expression that is equal to its answer.

    Raises:
        ScorerFailed: the expected answer cannot be read.
        TimeoutError: the comparison takes too long.
    """
    got = got.replace(problem, "") if problem else got
    answer = find_answer(got)
    if not answer.strip():
        return Score.of(0.0, "There is no answer.")
    if is_copied(answer, problem, expected):
        return Score.of(0.0, f"The answer {answer.strip()[:200]} only repeats the problem.")
    if len(answer) > LONGEST and answer is not got:
        return Score.of(0.0, f"The answer has more than {LONGEST} characters.")
    marked = answer is not got
    equal = await run_scorer(f"{__name__}:compare_now", expected, answer[-LONGEST:], marked, seconds=seconds)
    shown = answer.strip() if len(answer) <= 200 else "…" + answer[-200:].strip()
    return Score.of(float(equal), f"The answer {shown} is {'right' if equal else f'wrong; right is {expected}'}.")


def find_answer(text: str) -> str:
    """The part of a reply that is its answer. The whole text if nothing is marked."""
    if (boxed := find_boxed(text)) is not None:
        return boxed
    _, mark, after = text.rpartition("####")
    return after.strip().partition("\n")[0] if mark else text


def is_copied(answer: str, problem: str, expected: str) -> bool:
    """Whether an answer is a part of the problem, and the expected one is not."""
    said, asked = _squeeze(answer), _squeeze(problem)
    return bool(said) and said in asked and _squeeze(expected) not in asked


def _squeeze(text: str) -> str:
    """An expression without what does not change its meaning."""
    return re.sub(r"\\left|\\right|\\[,;! ]|[\s{}$]", "", text).replace("\\dfrac", "\\frac")


def find_boxed(text: str) -> str | None:
    """What the last `\\boxed{…}` (or `\\fbox{…}`) contains; None if there is none that is closed."""
    start = max(text.rfind("\\boxed{"), text.rfind("\\fbox{"))
    if start < 0:
        return None
    first = text.index("{", start)
    depth = 0
    for place in range(first, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[first + 1 : place]
    return None


def compare_now(expected: str, answer: str, marked: bool) -> bool:
    """Compare two answers. It runs in a scoring process. `marked`: the answer is an expression and nothing else."""
    import math_verify  # pyright: ignore  # an extra: it needs SymPy

    library: Any = math_verify
    wanted = _parse_marked(library, expected)
    if not wanted:
        raise ValueError(f"math-verify cannot read the reference answer {expected!r}")
    if answer.strip() == expected.strip():
        return True
    found = _parse_marked(library, answer) if marked else library.parse(answer, parsing_timeout=None)
    return bool(library.verify(wanted, found, timeout_seconds=None))


def _parse_marked(library: Any, text: str) -> list[Any]:
    """An expression without text around it. In a box, `math-verify` reads all of it, and not only a number in it."""
    return library.parse(f"\\boxed{{{text.strip().strip('$')}}}", parsing_timeout=None)


def require_math_verify() -> None:
    """Raises ConfigError if `math-verify` is not installed."""
    if find_spec("math_verify") is None:
        raise ConfigError(MISSING)
