"""`ludus compress`: files and runs, summaries by a model, and what is counted."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.cli_kit import LUDUS, Ludus, make_tokenizer
from tests.trajectories_kit import SCRIPT, write_prompts

MODELS = """
import os, signal
from pathlib import Path
from ludus.errors import ModelError

def sum_up(messages, tools, sampling):
    if "unwell" in messages[-1].content:
        raise ModelError("down", retryable=False)
    return "They listed files. " * 100

def silent(messages, tools, sampling):
    return ""

def count(messages, tools, sampling):
    '''Ends the process, as a power cut would, at the call that the file `kill` names.'''
    with Path("calls").open("a") as file:
        file.write(".")
    if Path("kill").exists() and Path("calls").stat().st_size == int(Path("kill").read_text()):
        os.kill(os.getpid(), signal.SIGKILL)
    return "They listed files."
"""


def make_row(name: str, steps: int, words: str = "x" * 400) -> dict[str, Any]:
    call = [{"id": "c", "type": "function", "function": {"name": "ls", "arguments": "{}"}}]
    work = [
        {"role": "assistant", "content": "", "tool_calls": call},
        {"role": "tool", "content": words, "tool_call_id": "c"},
    ]
    return {
        "id": name,
        "messages": [{"role": "user", "content": "do it"}, *work * steps, {"role": "assistant", "content": "ok"}],
    }


def write_rows(folder: Path, *rows: dict[str, Any]) -> None:
    (folder / "models.py").write_text(MODELS)
    (folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def read_out(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]


COMPRESS = ("compress", "in.jsonl", "out.jsonl", "--tokens", "600", "--summary-tokens", "60", "--json")


def test_rows_fit_afterwards_and_those_that_fit_are_as_they_were(ludus: Ludus, folder: Path):
    rows = [make_row("short", 2), make_row("long", 12)]
    write_rows(folder, *rows)
    code, out, err = ludus(*COMPRESS)
    found, report = read_out(folder), json.loads(out)
    assert (code, found[0], found[1]["id"]) == (0, rows[0], "long")
    assert (report["compressed"], report["unchanged"], report["over"], report["exact"]) == (1, 1, 0, False)
    assert found[1]["compression"]["tokens_after"] <= 600 < found[1]["compression"]["tokens_before"]
    assert "[CONTEXT SUMMARY]: 18 messages are left out" in json.dumps(found[1])
    assert "tokens are estimated" in err


def test_a_model_sums_up_and_a_row_without_a_summary_is_left_out(ludus: Ludus, folder: Path):
    write_rows(folder, make_row("good", 12), make_row("bad", 12, "unwell " * 60), make_row("good, too", 12))
    code, out, err = ludus(
        *COMPRESS, "--summary", "model", "--model.type", "scripted", "--model.script", "models.py:sum_up"
    )
    report = json.loads(out)
    assert (code, report["written"], report["without_summary"]) == (0, 2, 1), err
    assert [row["id"] for row in read_out(folder)] == ["good", "good, too"]
    assert "They listed files." in json.dumps(read_out(folder)[0])
    assert all(row["compression"]["tokens_after"] <= 600 for row in read_out(folder))


def test_an_empty_summary_is_none(ludus: Ludus, folder: Path):
    write_rows(folder, make_row("a", 12))
    code, out, _ = ludus(
        *COMPRESS, "--summary", "model", "--model.type", "scripted", "--model.script", "models.py:silent"
    )
    assert (code, json.loads(out)["without_summary"]) == (1, 1)


@pytest.mark.parametrize(("flag", "written"), [("keep", 1), ("drop", 0)])
def test_rows_that_cannot_be_made_to_fit_are_counted(ludus: Ludus, folder: Path, flag: str, written: int):
    write_rows(folder, make_row("a", 1, "x" * 9000))
    code, out, _ = ludus(*COMPRESS, "--over", flag)
    report = json.loads(out)
    assert (code, report["over"], report["written"]) == (0 if written else 1, 1, written)


def test_tokens_are_exact_with_a_tokenizer(ludus: Ludus, folder: Path):
    write_rows(folder, make_row("long", 12, "listing of files " * 20))
    tokenizer = make_tokenizer(folder, "listing of files in a folder, do it, ok")
    code, out, err = ludus(*COMPRESS, "--tokenizer", str(tokenizer))
    assert (code, json.loads(out)["exact"], "estimated" in err) == (0, True, False), err


def test_the_shards_of_a_batch_are_compressed(ludus: Ludus, folder: Path):
    write_prompts(folder, *({"prompt": f"{n}?", "system": "Be brief. " * 200} for n in range(3)))
    assert ludus("batch", "prompts.jsonl", "--out", "r", "--env.slots", "none", *SCRIPT).code == 0
    code, out, _ = ludus("compress", "r", "out.jsonl", "--tokens", "2000")
    assert (code, "3 of 3 rows in out.jsonl" in out) == (0, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["none.jsonl", "out.jsonl", "--tokens", "900"], "none.jsonl is neither a JSONL file nor a run"),
        (["in.jsonl", "out.csv", "--tokens", "900"], "out.csv should end in .jsonl"),
        (["in.jsonl", "out.jsonl", "--tokens", "700"], "a summary alone may have 750"),
        (["in.jsonl", "out.jsonl", "--tokens", "900", "--keep-last", "0"], "use 1 or more"),
        (["in.jsonl", "out.jsonl", "--tokens", "900", "--model.name", "x"], "--model.name has no effect"),
        (["in.jsonl", "out.jsonl", "--tokens", "900"], "in.jsonl, line 1: it has neither messages nor conversations"),
    ],
)
def test_what_cannot_be_done_is_refused(ludus: Ludus, folder: Path, words: list[str], message: str):
    write_rows(folder, {"text": "x"})
    code, _, err = ludus("compress", *words)
    assert (code, message in err, (folder / "out.jsonl").exists()) == (2, True, False), err


def test_a_killed_command_goes_on_and_asks_for_no_summary_twice(ludus: Ludus, folder: Path):
    write_rows(folder, *(make_row(str(n), 12, f"{n} " * 200) for n in range(8)))
    words = (*COMPRESS, "--summary", "model", "--model.type", "scripted", "--model.script", "models.py:count")
    (folder / "kill").write_text("6")
    killed = subprocess.run([*LUDUS, *words, "--run.concurrency", "2"], capture_output=True, text=True)
    assert killed.returncode == -9 and not (folder / "out.jsonl").exists()
    (folder / "kill").unlink()
    code, out, err = ludus(*words, "--run.concurrency", "2")
    report = json.loads(out)
    assert (code, report["written"]) == (0, 8), err
    asked = (folder / "calls").stat().st_size
    assert asked + report["earlier"] == 6 + 8 and report["earlier"] >= 4  # what was under way is asked again
    assert [row["id"] for row in read_out(folder)] == [str(n) for n in range(8)]
    assert [path.name for path in folder.glob(".out.jsonl*")] == []
