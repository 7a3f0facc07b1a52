"""Prompts and a scripted model for tests of batches."""

import json
from pathlib import Path
from typing import Any

MODELS = '''
import os
import signal
from pathlib import Path

from ludus.types import Call, Message, Reasoning


def act(messages, tools, sampling):
    """Answers sums; runs what a prompt says after "run:"; kills this process at the call that `kill` names."""
    with Path("calls").open("a") as file:
        file.write(messages[-1].content[:20].replace("\\n", " ") + "\\n")
    if Path("kill").exists() and len(Path("calls").read_text().splitlines()) == int(Path("kill").read_text()):
        Path("kill").unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    said = messages[-1].content
    if messages[-1].role == "user" and said.startswith("run:"):
        command = said.removeprefix("run:").strip().replace('"', "'")
        call = Call("c1", "terminal", f'{{"command": "{command}"}}')
        return Message("assistant", "", (call,), reasoning=Reasoning("I run it", "reasoning_content"))
    if said.startswith("broken"):
        raise ValueError("no model")
    return str(eval(said.rstrip("?"))) if said.endswith("?") else f"done: {said}"


def is_right(answer, row):
    return answer == str(row["answer"])


async def left_file(box):
    try:
        return (await box.read("left.txt")).strip() == b"A"
    except FileNotFoundError:
        return False
'''

SCRIPT = ("--model.type", "scripted", "--model.script", "models.py:act")


def write_prompts(folder: Path, *rows: dict[str, Any]) -> Path:
    """The file `prompts.jsonl`, and a scripted model and checks in `models.py`."""
    (folder / "models.py").write_text(MODELS)
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read_called(folder: Path) -> list[str]:
    """What the model was asked, in order."""
    path = folder / "calls"
    return path.read_text().splitlines() if path.exists() else []


def read_rows(run: Path) -> list[dict[str, Any]]:
    """The rows of a run's shards."""
    return [json.loads(line) for path in sorted(run.glob("shards/part-*")) for line in path.read_text().splitlines()]
