"""A hundred agents, 78 of them hostile, leave the mean where an honest count has it. Nothing is excluded."""

import json
from pathlib import Path

import pytest
from tests import hostile_kit
from tests.hostile_kit import AGENTS, ATTACKS, EARNED

from ludus.cli import main

KIT = Path(hostile_kit.__file__)


@pytest.mark.parametrize("env", ["Words", "WordsInPlace"])
def test_fifty_agents_get_what_they_have_earned(
    env: str, bwrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    script = ["--model.type", "scripted", "--model.script", f"{KIT}:act"]
    place = ["--sandbox.backend", bwrap, "--run.out", "run", "--run.concurrency", "8"]
    code = main(["evaluate", f"{KIT}:{env}", *script, *place, "--json"])
    done = json.loads(capsys.readouterr().out)
    rows = [json.loads(line) for line in (tmp_path / "run" / "samples.jsonl").read_text().splitlines()]
    assert len(rows) == len(AGENTS) == 50
    scores = {row["task"]["id"].partition(": ")[2]: row["score"] and row["score"]["value"] for row in rows}
    assert {name: scores[name] for name in ATTACKS if scores[name] != 0.0} == {}, "no attack pays or is left out"
    assert [row["failure"] for row in rows if row["failure"]] == []
    assert done["summary"]["overall"]["mean"] == pytest.approx(EARNED, abs=1e-12)
    assert (done["summary"]["overall"]["scored"], done["summary"]["failed"], done["summary"]["partial"]) == (50, {}, 0)
    assert code == 0
    assert {row["provenance"]["attempt"] for row in rows} == {1}, "no agent had a second chance"
