"""`ludus train` with a file: each item is a task, and the skill is in the system message of every call."""

import json
from pathlib import Path

import pytest
from compat.tests.file_kit import flags, write_files
from tests.cli_kit import Ludus

AGENT = r'''
import re
from pathlib import Path


def learner(messages, tools, sampling):
    """Answers in the right form only if its skill shows an example."""
    system = messages[0].content if messages[0].role == "system" else ""
    a, b, c = map(int, re.search(r"\((\d+) \+ (\d+)\) \* (\d+)", messages[-1].content).groups())
    with Path("systems.txt").open("a") as file:
        file.write(f"{len(system)}\n")
    return f"\\boxed{{{(a + b) * c}}}" if "boxed{1" in system or a % 2 else "I do not know"
'''


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path, "atropos_arithmetic_env.py", learner=AGENT)
    return tmp_path


def test_a_skill_is_trained_on_the_items_of_a_file(ludus: Ludus):
    given = flags("sums", "--env.total_steps", "12", "--data.ratio", "1:1:1", "--train.proposer", "exemplars")
    given[given.index("agents.py:sums")] = "learner.py:learner"
    settings = ["--train.epochs", "1", "--train.batch_size", "4", "--out", "run", "--json"]
    done = ludus("train", "atropos:atropos_arithmetic_env.py", *given, *settings)
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert report["summary"] is not None and report["steps"] >= 1
    sizes = {int(line) for line in Path("systems.txt").read_text().split()}
    assert len(sizes) > 1  # a candidate was measured: its text is in the system message
    assert "boxed" in ludus("show", "run", "item-00001").out
    again = ludus("train", "--resume", "--out", "run", "--json")
    assert again.code == 0, again.err


def test_a_file_that_calls_its_model_in_setup_is_told_so(ludus: Ludus):
    Path("early.py").write_text(
        "from atroposlib.envs.base import BaseEnv\n"
        "class Early(BaseEnv):\n"
        "    async def setup(self):\n"
        "        await self.server.chat_completion(messages=[{'role': 'user', 'content': 'hi'}])\n"
    )
    done = ludus("train", "atropos:early.py", *flags("sums"))
    assert done.code == 2 and "calls its model while its items are listed" in done.err
