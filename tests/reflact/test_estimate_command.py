"""`ludus train --dry-run`."""

import json
from pathlib import Path

import pytest
from tests.cli_kit import (
    Ludus,
    train_words,
    write_rules,
)


@pytest.fixture(autouse=True)
def _files(folder: Path) -> None:
    write_rules(folder)


def test_a_dry_run_says_what_the_run_then_takes(ludus: Ludus):
    guess = json.loads(ludus(*train_words("--dry-run", "--json")).out)
    assert not Path("runs").exists() and not Path("calls").exists()
    assert guess["sizes"] == {"train": 6, "selection": 6, "test": 6}
    summary = json.loads(ludus(*train_words("--out", "run", "--json")).out)["summary"]
    assert guess["steps"] == summary["steps"]
    calls = {(line["role"], line["stage"]): line["calls"] for line in guess["lines"]}
    real = {(entry["role"], entry["stage"]): entry["calls"] for entry in summary["spent"]}
    assert real.keys() == calls.keys()
    for place in (("agent", "baseline"), ("agent", "rollout"), ("optimizer", "meta")):  # the same in every run
        assert calls[place] == {"least": real[place], "likely": real[place], "most": real[place]}
    for place, found in calls.items():
        assert found["least"] <= real[place] <= 2 * found["most"], place
    assert guess["earlier"] == "" and not any(line["measured"] for line in guess["lines"])


def test_a_dry_run_asks_what_the_proposer_asks(ludus: Ludus):
    def estimate_requests(proposer: str) -> dict[str, int]:
        words = ["train", "orders", "--recipe", "ledger", "--train.proposer", proposer, "--dry-run", "--json"]
        lines = json.loads(ludus(*words).out)["lines"]
        (own,) = [line for line in lines if (line["role"], line["stage"]) == ("optimizer", "analyst")]
        return {"calls": own["calls"]["likely"], "tokens": own["each"]["prompt_tokens"]}

    plain, usual = estimate_requests("plain"), estimate_requests("analysts")
    assert plain["calls"] > usual["calls"]  # one for each kind of failed tasks
    assert plain["tokens"] < usual["tokens"] / 2


def test_a_dry_run_goes_by_what_an_earlier_run_took(ludus: Ludus):
    summary = json.loads(ludus(*train_words("--out", "runs/one", "--json")).out)["summary"]
    guess = json.loads(ludus(*train_words("--dry-run", "--json")).out)
    spent = [entry for entry in summary["spent"] if entry["stage"] not in ("ship", "test")]  # not in steps.jsonl
    took = {(e["role"], e["stage"]): e["usage"]["prompt_tokens"] // e["calls"] for e in spent}
    said = {(line["role"], line["stage"]): line["each"]["prompt_tokens"] for line in guess["lines"] if line["measured"]}
    assert guess["earlier"] == "runs/one"
    assert {place: said[place] for place in took} == took
    assert ("agent", "test") in said  # as rollouts were in the other stages
    assert "Tokens of a call are as they were in runs/one" in ludus(*train_words("--dry-run")).out
    assert json.loads(ludus(*train_words("--dry-run", "--json", "--model.name", "another")).out)["earlier"] == ""


def test_a_dry_run_compares_sizes_and_says_why_it_takes_its_own(ludus: Ludus):
    server = ["--model.type", "openai", "--model.base_url", "http://127.0.0.1:9/v1", "--model.name", "m"]
    prices = ["--model.price.prompt", "1", "--model.price.completion", "4", "--model.price.cached", "0.1"]
    words = ["train", "rules.py", "--data.ratio", "1:1:1", *server, *prices, "--dry-run"]
    found = json.loads(ludus(*words, "--json").out)
    assert [(o["batch_size"], o["minibatch_size"], o["block_size"]) for o in found["options"]] == [(8, 8, 1)]
    (option,) = found["options"]
    calls = {role: found["totals"][role]["calls"]["likely"] for role in ("agent", "optimizer")}
    assert (option["rollouts"], option["requests"]) == (calls["agent"], calls["optimizer"])
    assert option["dollars"] == pytest.approx(sum(found["totals"][role]["dollars"]["likely"] for role in calls))
    assert len(found["reasons"]) == 2 and "too few for 24" in found["reasons"][0]
    shown = ludus(*words).out
    assert "this run" in shown and f"{found['reasons'][1]}." in shown
    assert json.loads(ludus(*words, "--recipe", "reflact", "--json").out)["options"] == []


def test_a_dry_run_for_people(ludus: Ludus):
    server = ["--model.type", "openai", "--model.base_url", "http://127.0.0.1:9/v1", "--model.price.prompt", "1"]
    done = ludus("train", "rules.py", "--data.ratio", "1:1:1", *server, "--model.name", "m", "--dry-run")
    assert done.code == 0, done.err
    for words in ("6 train, 6 selection and 6 test tasks; 33 steps", "analyst", "$0.", "prevent half of the failures"):
        assert words in done.out
    assert "no prices" in ludus(*train_words("--dry-run")).out
