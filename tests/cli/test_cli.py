"""The command line as a user types it: help, errors, streams."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli_kit import (
    LUDUS,
    Ludus,
)

from ludus import __version__


def test_help_says_how_commands_end_and_the_version_is_printed(ludus: Ludus):
    assert "130 interrupted" in ludus("--help").out
    assert ludus("--version").out == f"ludus {__version__}\n"


def test_help_imports_nothing_heavy():
    code = """
import sys
from ludus.cli import main
try:
    main(["--help"])
except SystemExit:
    pass
heavy = {"rich", "msgspec", "yaml", "asyncio", "sqlite3", "mcp", "xllamacpp", "ssl", "ludus.config"}
print("heavy:", sorted(heavy & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("heavy: []\n")


def test_settings_import_nothing_that_only_some_runs_need():
    code = "import sys, ludus.config; print(sorted({'rich', 'mcp', 'xllamacpp', 'sqlite3'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["evaluate", "gsm8k", "--group_size", "4"], "did you mean --env.group_size?"),
        (["evaluate", "gsm8k", "--group-size=4"], "did you mean --env.group_size?"),
        (["evaluate", "gsm8k", "--model", "gpt-5"], "did you mean --model.name?"),
        (["evaluate", "--model=gpt-5", "gsm8k"], "did you mean --model.name?"),
        (["train", "gsm8k", "--resum"], "did you mean --resume?"),
        (["evaluate", "gsm8k", "--resum", "--out", "r"], "usage: ludus evaluate ["),
        (["show", "r", "--jsn"], "did you mean --json?"),
        (["export", "r", "--split", "train"], "did you mean --splits?"),
        (["evaluate", "gsm8k", "--env.group_size"], "--env.group_size needs a value"),
        (["evaluate", "gsm8k", "extra"], "unknown argument extra"),
        (["evaluate", "--env.limit", "3"], "which environment?"),
        (["validate"], "which environment?"),
        (["evaluate", "gsm8k", "--env.limt", "4"], "env.limt: unknown setting; did you mean 'env.limit'?"),
        (["evaluate", "gsm9k"], "did you mean 'gsm8k'?"),
        (["evaluate", "gsm8k", "--env.split", "none", "--env.path", "no.jsonl"], "no.jsonl"),
        (["evaluate", "gsm8k", "--resume"], "run.out: which run should be resumed?"),
        (["show", "somewhere", "--env.limit", "3"], "show takes no settings, such as --env.limit"),
        (["evaluate", "--resume", "--out", "nowhere"], "nowhere: there is no run to resume"),
        (["evaluate", "gsm8k", "--config", "none.yaml"], "--config: there is no file none.yaml"),
        (["show", "nowhere"], "nowhere is not a run directory"),
        ([], "COMMAND"),
    ],
)
def test_what_is_wrong_is_said_without_a_traceback(ludus: Ludus, words: list[str], message: str):
    code, out, err = ludus(*words)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


def test_a_terminal_that_knows_no_arrows_is_no_error():
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*LUDUS, "config"], capture_output=True, check=True, env=ascii_only)
    assert b"?" in done.stdout and not done.stderr


def test_a_closed_pipe_is_no_error():
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([*LUDUS, "config"], stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "words",
    [
        ["evaluate", "gsm8k", "--agent.system", "caf\udce9"],
        ["evaluate", "gsm8k", "--agent.syst\udce9m", "x"],
        ["show", "r\udcff"],
        ["\udcff"],
    ],
)
def test_words_that_are_not_utf8_are_a_message(ludus: Ludus, words: list[str]):
    done = ludus(*words)
    assert (done.code, done.out) == (2, "")
    assert "is not valid UTF-8 text" in done.err


@pytest.mark.parametrize("value", ["[" * 5_000, "{a: " * 5_000, "- " * 5_000, "[" * 300 + "]" * 300])
def test_a_flag_that_is_nested_too_deeply_is_a_message(ludus: Ludus, value: str):
    for flag in ("--sampling.extra", "--tools.mcp", "--env.limit", "--sampling"):
        done = ludus("evaluate", "gsm8k", "--print-config", flag, value) if "." in flag else None
        assert done is None or (done.code == 2 and done.err.startswith("ludus: "))
    assert ludus("evaluate", "gsm8k", "--" + "a." * 5_000 + "a", "1").code == 2


def test_half_a_surrogate_pair_in_a_flag_or_a_file_is_a_message(ludus: Ludus, tmp_path: Path):
    done = ludus("evaluate", "gsm8k", "--sampling.extra", '{"a": "\\ud800"}')
    assert done.code == 2 and "half of a surrogate pair" in done.err
    (tmp_path / "config.yaml").write_text('agent:\n  system: "x \\ud800"\n')
    done = ludus("evaluate", "gsm8k", "--config", str(tmp_path / "config.yaml"))
    assert done.code == 2 and "config.yaml" in done.err and "half of a surrogate pair" in done.err


NO_TEXT = {
    "latin": b"caf\xe9",
    "half a pair": b"\xed\xa0\x80",
    "half a pair as an escape": b'---\nname: a\ndescription: "\\ud800"\n---\nx\n',
    "nested": b"---\na: " + b"[" * 9_000 + b"\n---\nx\n",
}


@pytest.mark.parametrize("skill", NO_TEXT.values(), ids=NO_TEXT.keys())
def test_a_skill_that_is_no_text_is_a_message(ludus: Ludus, tmp_path: Path, skill: bytes):
    (tmp_path / "SKILL.md").write_bytes(skill)
    (tmp_path / "models.py").write_text("def reply(messages, tools, sampling):\n    return '4'\n")
    script = str(tmp_path / "models.py") + ":reply"
    model = ["--model.type", "scripted", "--model.script", script, "--train.proposer", "exemplars"]
    done = ludus("train", "gsm8k", *model, "--agent.skill", str(tmp_path / "SKILL.md"), "--out", str(tmp_path / "r"))
    assert (done.code, done.out) == (2, ""), done.err
    assert "skill: " in done.err.splitlines()[-1] or "skill: " in done.err
