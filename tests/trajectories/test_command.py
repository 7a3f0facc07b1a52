"""`ludus batch`: rows in, shards out; resumed, killed, filtered, checked, exported."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.cli_kit import LUDUS, Ludus
from tests.trajectories_kit import SCRIPT, read_called, read_rows, write_prompts

from ludus.store import RunDir

TEXT = (*SCRIPT, "--env.slots", "none")
"""An agent without a slot."""


def sums(count: int) -> list[dict[str, Any]]:
    return [{"id": f"t{n}", "prompt": f"{n}+{n}?", "answer": 2 * n, "n": n} for n in range(count)]


def run_json(ludus: Ludus, *words: str) -> dict[str, Any]:
    code, out, err = ludus("batch", *words, "--json")
    assert code == 0, err
    return json.loads(out)


def test_rows_become_trajectories_in_the_order_of_the_file(ludus: Ludus, folder: Path):
    write_prompts(folder, *sums(5), {"prompt": "hello", "system": "Be brief.", "topic": "greeting"})
    found = run_json(ludus, "prompts.jsonl", "--out", "r", *TEXT)
    assert (found["statistics"]["written"], found["statistics"]["checked"]) == (6, 0)
    rows = read_rows(folder / "r")
    assert [row["id"] for row in rows[:5]] == [f"t{n}" for n in range(5)]
    assert [message["content"] for message in rows[5]["messages"]] == ["Be brief.", "hello", "done: hello"]
    assert (rows[5]["metadata"], rows[0]["metadata"], rows[0]["score"]) == ({"topic": "greeting"}, {"n": 0}, None)
    with RunDir.read(folder / "r") as directory:
        assert {(r.score, r.failure) for _, r in directory.read_outcomes()} == {(None, None)}


def test_rows_have_files_a_folder_and_tools_in_a_slot(ludus: Ludus, folder: Path):
    row = {
        "id": "a",
        "prompt": "run: pwd; cat /workspace/in.txt > /workspace/left.txt",
        "cwd": "x/y",
        "files": {"in.txt": "A"},
    }
    write_prompts(folder, row, {"id": "b", "prompt": "run: true"})
    found = run_json(ludus, "prompts.jsonl", "--out", "r", "--check", "models.py:left_file", *SCRIPT)
    numbers, (first, *_) = found["statistics"], read_rows(folder / "r")
    assert first["messages"][2]["content"].strip() == "/workspace/x/y"
    assert (first["passed"], first["toolsets"]) == (True, ["terminal", "file"])
    assert numbers["tools"][0] == {"tool": "terminal", "calls": 2, "errors": 0}
    assert (numbers["reasoning"]["turns"], numbers["reasoning"]["with_reasoning"]) == (4, 2)
    assert (numbers["checked"], numbers["passed"]) == (2, 1)


def test_a_finished_batch_runs_nothing_again_and_a_longer_file_only_what_is_new(ludus: Ludus, folder: Path):
    path = write_prompts(folder, *sums(4))
    first = run_json(ludus, "prompts.jsonl", "--out", "r", *TEXT)
    before = read_rows(folder / "r")
    again = run_json(ludus, "--resume", "--out", "r")
    assert (len(read_called(folder)), read_rows(folder / "r")) == (4, before)
    assert again["statistics"] == first["statistics"]
    path.write_text(path.read_text() + json.dumps({"prompt": "9?"}) + "\n")
    run_json(ludus, "--resume", "--out", "r")
    assert (read_called(folder)[4:], len(read_rows(folder / "r"))) == (["9?"], 5)


def test_rows_that_left_the_file_are_said_to_be_left_over(ludus: Ludus, folder: Path):
    write_prompts(folder, *sums(4))
    run_json(ludus, "prompts.jsonl", "--out", "r", *TEXT)
    write_prompts(folder, *sums(3))
    assert run_json(ludus, "--resume", "--out", "r")["statistics"]["left_over"] == 1
    assert [row["id"] for row in read_rows(folder / "r")] == ["t0", "t1", "t2"]


def test_kills_lose_nothing_and_repeat_nothing(folder: Path):
    """The process is killed at its 3rd, 7th and 12th call; a call that it was killed in is made again."""
    write_prompts(folder, *sums(12))
    command = [*LUDUS, "batch", "prompts.jsonl", "--out", "r", "--run.concurrency", "1", *TEXT]
    for at in (3, 7, 12):
        (folder / "kill").write_text(str(at))
        assert subprocess.run([*command, "--resume"], capture_output=True).returncode == -9
    assert subprocess.run([*command, "--resume"], capture_output=True).returncode == 0
    calls = read_called(folder)
    killed_in = [calls[2], calls[6], calls[11]]
    assert sorted(calls) == sorted([*(f"{n}+{n}?" for n in range(12)), *killed_in])
    rows = read_rows(folder / "r")
    assert [(row["id"], row["messages"][-1]["content"]) for row in rows] == [(f"t{n}", str(2 * n)) for n in range(12)]


def test_failed_rollouts_are_counted_and_run_again(ludus: Ludus, folder: Path):
    write_prompts(folder, {"id": "bad", "prompt": "broken"}, {"id": "good", "prompt": "1?"})
    code, out, _ = ludus("batch", "prompts.jsonl", "--out", "r", "--run.retries", "0", "--json", *TEXT)
    numbers = json.loads(out)["statistics"]
    assert (code, numbers["rollouts"], numbers["written"], numbers["dropped"]) == (1, 2, 1, {"failed": 1})
    assert numbers["failures"] == {"bug": 1}
    ludus("batch", "--resume", "--out", "r")
    assert [call for call in read_called(folder) if call == "1?"] == ["1?"]
    assert read_called(folder).count("broken") == 2


def test_filters_say_what_they_dropped_and_can_change(ludus: Ludus, folder: Path):
    rows = [{"id": "right", "prompt": "1?", "answer": 1}, {"id": "wrong", "prompt": "2?", "answer": 3}]
    write_prompts(folder, *rows, {"id": "same", "prompt": "1?", "answer": 1, "n": 2})
    flags = ("--check", "models.py:is_right", "--drop", "failed-check,duplicates")
    found = run_json(ludus, "prompts.jsonl", "--out", "r", *flags, *TEXT)["statistics"]
    assert (found["written"], found["dropped"]) == (1, {"failed-check": 1, "duplicates": 1})
    assert (found["checked"], found["passed"], found["mean"]) == (3, 2, 2 / 3)
    code, out, _ = ludus("batch", "--resume", "--out", "r", "--drop", "no-reasoning")
    assert (code, "dropped" in out, "no-reasoning 3" in out) == (1, True, True), "nothing is left"
    assert len(read_called(folder)) == 3


def test_toolsets_are_drawn_for_each_prompt_and_recorded(ludus: Ludus, folder: Path):
    write_prompts(folder, *({"id": f"t{n}", "prompt": f"{n}?"} for n in range(12)))
    flags = ("--tools.distributions.mine.todo", "50", "--tools.distributions.mine.terminal", "50")
    run_json(ludus, "prompts.jsonl", "--out", "r", "--tools.distribution", "mine", *flags, *SCRIPT)
    drawn = {row["id"]: row["toolsets"] for row in read_rows(folder / "r")}
    assert {tuple(each) for each in drawn.values()} == {("todo",), ("terminal",), ("todo", "terminal")}
    assert all(row["tools"] for row in read_rows(folder / "r"))
    write_prompts(folder, *({"id": f"t{n}", "prompt": f"{n}?"} for n in (7, 3)))
    run_json(ludus, "prompts.jsonl", "--out", "s", "--tools.distribution", "mine", *flags, *SCRIPT)
    assert {row["id"]: row["toolsets"] for row in read_rows(folder / "s")} == {id: drawn[id] for id in ("t7", "t3")}


def test_several_rollouts_of_each_prompt(ludus: Ludus, folder: Path):
    write_prompts(folder, *sums(2))
    run_json(ludus, "prompts.jsonl", "--out", "r", "--env.group_size", "3", "--env.limit", "1", *TEXT)
    assert [(row["id"], row["replicate"]) for row in read_rows(folder / "r")] == [("t0", n) for n in range(3)]


@pytest.mark.parametrize(
    ("rows", "flags", "words"),
    [
        ([{"text": "x"}], [], "prompts.jsonl, line 1: prompt: there is none"),
        ([{"prompt": "x"}], ["--drop", "failed-check"], "nothing is checked; name a check with --check"),
        ([{"prompt": "x"}], ["--drop", "no-reason"], "no-reasoning"),
        ([{"prompt": "x", "image": "py:3"}], ["--env.slots", "none"], "line 1: image: the run has none"),
        ([{"prompt": "x", "image": "py:3"}], ["--sandbox.backend", "bwrap"], "rows name images"),
        ([{"prompt": "x", "cwd": "d"}], ["--env.slots", "none"], "line 1: cwd: an agent without a slot"),
        ([{"prompt": "x"}], ["--env.name", "gsm8k"], "ludus process gsm8k"),
        ([{"prompt": "x"}], ["--run.suspects", "drop"], "run.suspects"),
    ],
)
def test_what_cannot_be_is_refused_before_the_run(
    ludus: Ludus, folder: Path, rows: list[dict[str, Any]], flags: list[str], words: str
):
    write_prompts(folder, *rows)
    code, _, err = ludus("batch", "prompts.jsonl", "--out", "r", *flags, *SCRIPT)
    assert (code, words in err, (folder / "r").exists()) == (2, True, False), err


def test_bad_rows_are_left_out_if_asked_for(ludus: Ludus, folder: Path):
    write_prompts(folder, {"text": "x"}, {"prompt": "1?"}, {"prompt": "1?"})
    code, out, err = ludus("batch", "prompts.jsonl", "--out", "r", "--skip-bad", *TEXT)
    assert (code, "bad rows left out: 1, repeated rows left out: 1" in " ".join(out.split())) == (0, True)
    assert "(1): line 1: prompt: there is none" in err
    assert "run once (1): line 3" in err


def test_without_prompts_it_says_what_to_type(ludus: Ludus):
    code, _, err = ludus("batch", *TEXT)
    assert (code, "ludus batch prompts.jsonl" in err) == (2, True)


# ---- other commands -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["openai", "sharegpt", "trl-sft"])
def test_trajectories_without_a_verdict_are_exported(ludus: Ludus, folder: Path, format: str):
    write_prompts(folder, *sums(3), {"id": "short", "prompt": "run: true"})
    run_json(ludus, "prompts.jsonl", "--out", "r", *SCRIPT)
    code, out, err = ludus("export", "r", "--format", format)
    rows = [json.loads(line) for line in out.splitlines()]
    assert (code, len(rows), rows[0]["score"]) == (0, 4, None), err
    assert all(row["tools"] for row in rows)
    assert (
        json.loads(ludus("batch", "--resume", "--out", "r", "--drop", "short", "--json").out)["statistics"]["written"]
        == 1
    )
    code, out, err = ludus("export", "r", "--format", format)
    assert (code, len(out.splitlines()), "3 short" in err) == (0, 1, True)


def test_show_and_runs_know_a_batch(ludus: Ludus, folder: Path):
    write_prompts(folder, *sums(3))
    run_json(ludus, "prompts.jsonl", "--out", "runs/r", *TEXT)
    code, out, _ = ludus("show", "runs/r")
    assert (code, "3 of 3 rollouts" in out, "part-00000.jsonl" in out) == (0, True, True)
    assert json.loads(ludus("show", "runs/r", "--json").out)["written"] == 3
    assert "not judged" in ludus("show", "runs/r", "t1").out
    assert "batch" in ludus("runs").out


def test_a_batch_is_checked_later(ludus: Ludus, folder: Path):
    write_prompts(folder, {"id": "a", "prompt": "run: echo A > left.txt"}, {"id": "b", "prompt": "run: true"})
    run_json(ludus, "prompts.jsonl", "--out", "r", *SCRIPT)
    code, _, err = ludus("rescore", "r")
    assert (code, "name a check with --env.check" in err) == (2, True)
    code, _, err = ludus("rescore", "r", "--env.check", "models.py:left_file", "--out", "s")
    assert code == 0, err
    asked = len(read_called(folder))
    found = run_json(ludus, "--resume", "--out", "s", "--drop", "failed-check")["statistics"]
    assert (found["checked"], found["passed"], found["written"]) == (2, 1, 1)
    assert len(read_called(folder)) == asked
