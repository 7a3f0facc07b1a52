"""Files of Atropos and Hermes, and the agents that play them."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

from tests.cli_kit import WORDS, make_tokenizer

ENVIRONMENTS = Path(__file__).parent / "compat" / "environments"

AGENTS = r'''
import re
from pathlib import Path
from ludus.errors import BudgetExhausted, ModelError
from ludus.models.scripted import call


def note():
    with Path("calls.txt").open("a") as file:
        file.write("x\n")


def sums(messages, tools, sampling):
    """Answers the questions of atropos_arithmetic_env.py."""
    note()
    a, b, c = map(int, re.search(r"\((\d+) \+ (\d+)\) \* (\d+)", messages[-1].content).groups())
    return f"So it is \\boxed{{{(a + b) * c}}}"


def half(messages, tools, sampling):
    """Right for even seeds only."""
    return sums(messages, tools, sampling) if sampling.seed % 2 else "no idea"


def empty(messages, tools, sampling):
    note()
    return ""


def broken(messages, tools, sampling):
    note()
    raise ModelError("the server is on fire", retryable=False)
'''


def write_files(folder: Path, *names: str, **texts: str) -> None:
    """Copy environments, and write files of the test's own, agents and a tokenizer into a folder."""
    for name in names:
        shutil.copy(ENVIRONMENTS / name, folder / name)
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text)
    (folder / "agents.py").write_text(AGENTS)
    make_tokenizer(folder, WORDS)


def flags(agent: str, *words: str) -> list[str]:
    """The flags of a run with a scripted agent."""
    given = ["--env.use_wandb", "False", "--env.tokenizer_name", ".", "--model.type", "scripted"]
    return [*given, "--model.script", f"agents.py:{agent}", *words]


def read_jsonl(path: str | Path) -> list[Any]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def count_calls() -> int:
    path = Path("calls.txt")
    return len(path.read_text().split()) if path.exists() else 0


def look_up(prompt: str) -> str:
    """Plays atropos_tool_env.py: looks both bins up, then answers."""
    asked = re.search(r"bins (\w+) and (\w+)\?", prompt)
    if asked is None:  # the engine is tried with another prompt first
        return "?"
    found = re.findall(r"<result>\w+: (\d+)</result>", prompt)
    if len(found) < 2:
        return f"<lookup>{asked[len(found) + 1]}</lookup>"
    return f"<answer>{sum(map(int, found))}</answer>"
