"""`ludus run`: one prompt, in a slot, with the tools of a run."""

import json
from pathlib import Path

import pytest
from tests.cli_kit import Ludus

MODEL = '''
from ludus.models.scripted import call, say

def act(messages, tools, sampling):
    """Copies the given file, then says what tools it had."""
    done = sum(message.role == "tool" for message in messages)
    if done == 0 and any(tool.name == "terminal" for tool in tools):
        return call("terminal", command="cat given.txt && cp given.txt copy.txt")
    return say(messages[-1].content + " with " + ", ".join(sorted(tool.name for tool in tools)))

def fail(messages, tools, sampling):
    from ludus.errors import ModelError
    raise ModelError("the server is on fire", retryable=False)
'''


@pytest.fixture(autouse=True)
def _files(folder: Path) -> None:
    (folder / "model.py").write_text(MODEL)
    (folder / "given").mkdir()
    (folder / "given" / "given.txt").write_text("seven\n")


def flags(function: str = "act") -> list[str]:
    return ["--model.type", "scripted", "--model.script", f"model.py:{function}"]


def test_the_agent_works_in_a_slot_and_what_it_does_is_printed(ludus: Ludus, folder: Path):
    code, out, err = ludus("run", "Copy it.", "--files", "given", "--out", "left", *flags())
    assert code == 0, err
    assert '→ terminal {"command":"cat given.txt && cp given.txt copy.txt"}' in out and "│ seven" in out
    assert "ended: finished · 2 turns" in out and "what it left: left" in out
    assert (folder / "left" / "copy.txt").read_text() == "seven\n"
    assert not (folder / "runs").exists(), "nothing is stored"


def test_settings_are_those_of_a_run(typed):
    code, out, _ = typed("run", "-", "--json", "--tools.enabled", "todo", *flags(), stdin="Hi from stdin")
    rollout = json.loads(out)
    assert code == 0 and rollout["provenance"]["toolsets"] == ["todo"] and rollout["task"]["prompt"] == "Hi from stdin"


def test_a_failure_is_said(ludus: Ludus):
    code, out, _ = ludus("run", "Hello", *flags("fail"))
    assert code == 1 and "the model failed: " in out and "on fire" in out


def test_what_makes_no_sense_is_refused(ludus: Ludus, folder: Path):
    assert "what should the agent do?" in ludus("run", " ").err
    assert "for the tasks of an environment" in ludus("run", "x", "--env.name", "gsm8k").err
    assert "there is no folder nope" in ludus("run", "x", "--files", "nope").err
    assert "given is not an empty folder" in ludus("run", "x", "--out", "given").err
    assert "name the toolsets" in ludus("run", "x", "--tools.distribution", "minimal").err
