"""Small real runs of each kind for tests of `ludus.view`, made by the commands themselves without a model.

python -m tests.view_kit FOLDER            # notes-a, notes-b, lines, steps, letters, exact, hostile, damaged
python -m tests.view_kit FOLDER --running  # and one that goes on until the file FOLDER/go exists
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import msgspec
from tests.build import make_rollout, make_task, make_turn
from tests.cli_kit import LUDUS, WORDS, make_tokenizer, serve_engine, token_flags, write_doubles, write_rules
from tests.export_kit import make_seen, make_sum
from tests.rl_kit import LETTERS_FILE, TableTrainer

from ludus.cli import main
from ludus.run_info import keep_info
from ludus.store import CONFIG, RunDir
from ludus.types import Call, Failure, Message, Provenance, Rollout, Score, StopReason, ToolResult

NOTES = '''
"""Files that an agent writes in its slot."""
from typing import ClassVar
from ludus.env import Env
from ludus.types import Score, Task

class Notes(Env, frozen=True):
    """Write files."""
    name: ClassVar[str] = "notes"
    toolsets: ClassVar[tuple[str, ...]] = ("terminal", "file")
    size: int = 6

    def tasks(self, split):
        for n in range(self.size):
            yield Task(id=f"note-{n}", prompt=f"Write the number **{n * n}** into `note-{n}.txt`.", split=split,
                       kind="even" if n % 2 == 0 else "odd", answer=str(n * n))

    async def verify(self, rollout, box):
        try:
            text = (await box.read(rollout.task.id + ".txt")).decode()
        except Exception:
            return Score(0.0, False, 0.0, "There is no file.", {"exists": 0.0, "right": 0.0})
        right = text.strip() == rollout.task.answer
        return Score(float(right), right, 1.0 if right else 0.5, "Right." if right else f"It contains `{text[:20]}`.",
                     {"exists": 1.0, "right": float(right)})
'''

NOTE_MODELS = '''
import asyncio
import random
import re
from pathlib import Path
from ludus.errors import ModelError
from ludus.models.scripted import call, join_calls, say

def act(messages, sampling, skill):
    n = int(re.search(r"note-(\\d+)", messages[1].content if messages[0].role == "system" else messages[0].content)[1])
    luck = random.Random(f"{sampling.seed}-{n}-{len(messages)}").random()
    done = sum(m.role == "assistant" for m in messages)
    path = f"note-{n}.txt"
    if done == 0:
        return join_calls(call("terminal", command="ls -la && python3 --version"), call("read_file", path=path),
                          text="I look around first.", reasoning="What is there already? I should not overwrite it.")
    if done == 1:
        value = n * n if luck < skill - 0.06 * n else n * n + 1
        return join_calls(call("write_file", path=path, content=f"{value}\\n"), reasoning=f"{n} times {n} is {value}.")
    if done == 2 and luck < 0.3:
        return call("no_such_tool", path=path)
    return say(f"# Done\\n\\nI wrote `{path}`:\\n\\n```python\\nprint({n} * {n})\\n```\\n\\n"
               "| file | state |\\n|---|---|\\n| " + path + " | written |")

def good(messages, tools, sampling):
    return act(messages, sampling, 1.0)

def weak(messages, tools, sampling):
    if "note-5" in str(messages[-1].content) and sampling.seed % 2:
        raise ModelError("the server is on fire", retryable=False)
    return act(messages, sampling, 0.7)

async def waiting(messages, tools, sampling):
    """Task 0 and 1 go on at once; the others wait until `go` exists."""
    while "note-0" not in str(messages) and "note-1" not in str(messages) and not Path("go").exists():
        await asyncio.sleep(0.05)
    return act(messages, sampling, 1.0)
'''


LINE_MODELS = """
import json
import random
import re

def agent(messages, tools, sampling):
    number = int(messages[-1].content.split()[-1])
    wanted = f"RULE-{number % 3}"
    luck = random.Random(f"{sampling.seed}-{number}").random()
    return wanted if luck < (0.9 if wanted in messages[0].content else 0.15) else "no idea"

def optimizer(messages, tools, sampling):
    asked = messages[-1].content
    if not sampling.stage.startswith("analyst"):
        return json.dumps({"items": []})
    shown = re.split(r"Rollout \\d+: ", asked)[1:]
    rules = [(re.findall(r"RULE-\\d", text.split("rule missing")[-1]) or ["RULE-0"])[0] for text in shown]
    items = [{"situation": f"{rule} is not known", "content": f"Obey **{rule}** in every answer.",
              "rollouts": [n for n, its in enumerate(rules, 1) if its == rule]} for rule in dict.fromkeys(rules)]
    items.append({"situation": "answers in prose", "content": "Answer in verse.", "rollouts": [1]})
    return json.dumps({"rollouts": [{"rollout": n, "situations": [f"{rule} is not known"], "suspects": []}
                                    for n, rule in enumerate(rules, 1)],
                       "items": items, "reasoning": "a rule is missing"})
"""
"""An agent that mostly passes once its skill has the rule, and an optimizer that names rules for `ledger`."""

LINES_CONFIG = """
env: {name: rules.py, size: 60}
model: {type: scripted, script: "line_models.py:agent", name: agent}
optimizer: {type: scripted, script: "line_models.py:optimizer", name: optimizer}
data: {ratio: "2:1:1"}
train: {recipe: ledger, epochs: 2}
run: {concurrency: 4}
"""


@contextmanager
def enter(folder: Path) -> Generator[None]:
    before = Path.cwd()
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def write_notes(folder: Path) -> None:
    (folder / "notes.py").write_text(NOTES)
    (folder / "note_models.py").write_text(NOTE_MODELS)


def note_words(out: str, function: str, *more: str) -> list[str]:
    model = ["--model.type", "scripted", "--model.script", f"note_models.py:{function}", "--model.name", function]
    return ["evaluate", "notes.py", "--out", out, *model, "--env.group_size", "3", "--quiet", *more]


def make_notes(folder: Path) -> None:
    """Two runs of evaluate with tools, slots, failures and files: `notes-a` and `notes-b`."""
    with enter(folder):
        write_notes(folder)
        assert main(note_words("runs/notes-a", "good")) in (0, 1)
        assert main(note_words("runs/notes-b", "weak", "--run.retries", "0")) in (0, 1)


def make_training(folder: Path) -> None:
    """Runs of train: `lines` with the ledger, `steps` with the gate."""
    with enter(folder):
        write_rules(folder)
        (folder / "line_models.py").write_text(LINE_MODELS)
        (folder / "lines.yaml").write_text(LINES_CONFIG)
        assert main(["train", "--config", "lines.yaml", "--out", "runs/lines", "--quiet"]) == 0
        assert main(["train", "--config", "config.yaml", "--out", "runs/steps", "--quiet"]) == 0


def make_weights(folder: Path) -> None:
    """A run of rl with a trainer that needs no PyTorch: `letters`."""
    with enter(folder):
        (folder / "letters.py").write_text(LETTERS_FILE)
        words = ["rl", "letters.py", "--out", "runs/letters", "--quiet", "--rl.steps", "6", "--rl.groups", "3"]
        words += ["--rl.group_size", "4", "--rl.eval_every", "2", "--rl.eval_split", "test"]
        with mock.patch("ludus.rl.command.build_trainer", lambda *_: TableTrainer()):
            assert main(words) == 0


def make_exact(folder: Path) -> None:
    """A run of process in token mode: `exact`, with its tokenizer in `tokenizer`."""
    with enter(folder):
        write_doubles(folder)
        (folder / "tokenizer").mkdir(exist_ok=True)
        tokenizer = make_tokenizer(folder / "tokenizer", WORDS)
        with serve_engine(tokenizer) as url:
            words = ["process", "doubles.py", "--out", "runs/exact", "--quiet", "--env.group_size", "3"]
            assert main([*words, *token_flags(url, tokenizer)]) in (0, 1)


HOSTILE = (
    "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    "[click](javascript:document.title='owned') <javascript:alert(1)> [data](data:text/html,x) "
    "\u202egnirts lamron\u202c \x1b[31mred\x1b[0m \x00\x07 </textarea></script><svg onload=alert(1)> \ud83d broken"
)


def make_hostile_rollout(number: int = 0) -> Rollout:
    """A rollout in which every text is hostile."""
    call = Call("c1", HOSTILE[:60], '{"a": "' + "<script>x</script>" + '"}')
    turn = make_turn(HOSTILE, ToolResult(call, HOSTILE, HOSTILE[:100], seconds=0.1), thinking=HOSTILE)
    return make_rollout(
        Score(0.0, False, 0.0, HOSTILE, {"<b>part</b>": 0.5}, (HOSTILE,)),
        turn,
        make_turn("x" * 5_000_000, stop=StopReason.FINISHED),
        task=make_task(f"hostile-{number}<script>", HOSTILE),
        opening=(Message("system", HOSTILE), Message("user", HOSTILE)),
        provenance=Provenance(policy="p" * 16, model="<i>m</i>", replicate=number),
    )


def make_long_rollout(turns: int = 5000, result: int = 20_000_000) -> Rollout:
    """A rollout with very many turns, and one very long result."""
    call = Call("c", "terminal", '{"command": "cat big"}')
    long = make_turn("", ToolResult(call, "0123456789abcdef" * (result // 16), seconds=0.5))
    many = [make_turn(f"turn {n}", ToolResult(call, f"line {n}", seconds=0.01)) for n in range(turns - 2)]
    return make_rollout(1.0, long, *many, make_turn("Done.", stop=StopReason.FINISHED), task=make_task("long"))


def write_rollouts(path: Path, rollouts: list[Rollout], **settings: object) -> Path:
    """A finished run of evaluate that holds these rollouts."""
    with RunDir.open(path, {"env": {"name": "made"}, **settings}) as run, keep_info(run, "evaluate", "ludus evaluate"):
        for number, rollout in enumerate(rollouts):
            run.put(f"{number:032x}", rollout)
    return path


def make_odd(folder: Path) -> None:
    """Runs that the store tests of viewers need: `hostile`, `branches`, `damaged`."""
    failed = make_rollout(
        None, task=make_task("failed"), stop=StopReason.FAILED, failure=Failure("sandbox", "the slot is gone")
    )
    write_rollouts(folder / "runs/hostile", [make_hostile_rollout(n) for n in range(2)])
    branched = [msgspec.structs.replace(make_sum(score, n, branch=True)) for n, score in enumerate((1.0, 0.0))]
    write_rollouts(folder / "runs/branches", [*branched, *make_seen(), failed])
    damaged = write_rollouts(folder / "runs/damaged", [make_rollout(1.0)])
    (damaged / "store.sqlite").write_bytes(b"this is no database" * 100)
    (folder / "runs/broken-config").mkdir(parents=True, exist_ok=True)
    (folder / "runs/broken-config" / CONFIG).write_text("{")


def make_runs(folder: Path) -> Path:
    """All of them, in FOLDER/runs."""
    folder = folder.resolve()
    make_notes(folder)
    make_training(folder)
    make_weights(folder)
    make_exact(folder)
    make_odd(folder)
    return folder / "runs"


@contextmanager
def keep_running(folder: Path, name: str = "running") -> Generator[subprocess.Popen[bytes]]:
    """A run of evaluate in another process. It waits for the file `go`, and can be paused and resumed meanwhile."""
    folder.mkdir(parents=True, exist_ok=True)
    write_notes(folder)
    words = note_words(f"runs/{name}", "waiting", "--run.concurrency", "4")
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen([*LUDUS, *words], cwd=folder, stdout=log, stderr=log)
    try:
        while not (folder / "runs" / name / "store.sqlite").exists() and process.poll() is None:
            time.sleep(0.02)
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(60)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--running", action="store_true")
    given = parser.parse_args()
    print(make_runs(given.folder))
    if given.running:
        with keep_running(given.folder.resolve()) as started:
            print("one runs until the file 'go' exists:", started.args)
            sys.exit(started.wait())
