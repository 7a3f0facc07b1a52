"""`ludus show`."""

import json
from pathlib import Path

from tests.cli_kit import (
    Ludus,
    script_flags,
    train_words,
    write_rules,
    write_sums,
)


def test_show_prints_a_run_and_its_transcripts(ludus: Ludus, folder: Path):
    write_sums(folder)
    ludus("evaluate", "sums.py", "--out", "r", "--env.group_size", "2", *script_flags())
    text = ludus("show", "r").out
    assert "mean score" in text and "sum-0" in text
    assert "2+2" in ludus("show", "r", "sum-2").out
    assert "task sum-2, rollout 2" in ludus("show", "r", "sum-2#2").out
    code, _, err = ludus("show", "r", "sum-2#3")
    assert code == 2 and "has 2 rollouts in this run, not 3" in err
    code, _, err = ludus("show", "r", "som-2")
    assert code == 2 and "did you mean 'sum-2'?" in err


def test_show_for_machines(ludus: Ludus, folder: Path):
    write_sums(folder)
    ludus("evaluate", "sums.py", "--out", "r", *script_flags())
    found = json.loads(ludus("show", "r", "--json").out)
    assert found["summary"]["overall"]["mean"] == 1.0
    assert len(found["rollouts"]) == 4
    assert "not a run of `ludus train`" in ludus("show", "r", "--lines").err
    assert "no optimizer was asked" in ludus("show", "r", "--replies").err
    row = json.loads(ludus("show", "r", "sum-3", "--json").out)
    assert (row["task"]["id"], row["answer"]) == ("sum-3", "6")


def test_show_prints_the_steps(ludus: Ludus, folder: Path):
    write_rules(folder)
    ludus(*train_words("--out", "run", "--quiet"))
    shown = ludus("show", "run")
    assert shown.code == 0
    assert "accept new best" in shown.out and "initial_skill" in shown.out and "optimizer" in shown.out
    found = json.loads(ludus("show", "run", "--json").out)
    assert found["records"][0]["record"] == "baseline"
    assert found["records"][-1]["record"] == "summary"
    assert "question" in ludus("show", "run", "train-3").out


def test_lines_are_those_of_a_training_run_with_a_ledger(ludus: Ludus, folder: Path):
    write_rules(folder)
    ludus(*train_words("--out", "gated", "--quiet", "--train.recipe", "reflact", "--budget.calls", "1"))
    done = ludus("show", "gated", "--lines")
    assert done.code == 2 and "--train.recipe ledger" in done.err
    ludus("train", "--config", "lines.yaml", "--out", "lines", "--quiet")
    assert "line" in ludus("show", "lines", "--lines").out
    found = json.loads(ludus("show", "lines", "--lines", "--json").out)
    assert all({"line", "situation", "evidence_for", "events", "status"} <= each.keys() for each in found["lines"])


def test_replies_are_those_of_the_optimizer(ludus: Ludus, folder: Path):
    write_rules(folder)
    ludus("train", "--config", "lines.yaml", "--out", "lines", "--quiet")
    replies = json.loads(ludus("show", "lines", "--replies", "--json").out)["replies"]
    shown = ludus("show", "lines", "--replies").out
    assert replies[-1]["completion"]["message"]["content"].strip() in shown and f"{len(replies)} replies" in shown
    assert "analyst_lines" in shown and all(reply["messages"] for reply in replies)


def test_toolsets_that_a_draw_had_to_leave_out_are_recorded_and_shown(ludus: Ludus, folder: Path):
    write_sums(folder)
    draw = ["--tools.distributions.mine", "{todo: 50, web: 50}", "--tools.distribution", "mine"]
    done = ludus("evaluate", "sums.py", "--env.limit", "1", "--out", "run", "--quiet", *draw, *script_flags())
    assert done.code == 0, done.err
    (sample,) = [json.loads(line) for line in Path("run/samples.jsonl").read_text().splitlines()]
    assert (sample["provenance"]["toolsets"], sample["provenance"]["skipped"]) == (["todo"], ["web"])
    assert "toolsets todo · not available: web" in " ".join(ludus("show", "run", "sum-0").out.split())
