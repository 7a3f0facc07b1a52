"""A hundred agents, 80 of them hostile, leave the mean where an honest count has it. Nothing is excluded.

Fifty are judged in a fresh slot and fifty in their own. The latter are run once more by a driver that is not root:
there the pipes of a shell belong to the user that the agent is.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests import hostile_kit
from tests.cli_kit import LUDUS
from tests.hostile_kit import AGENTS, ATTACKS, EARNED

KIT = Path(hostile_kit.__file__)
ORDINARY = ("unshare", "--user", "--map-user=1000", "--map-group=1000")
"""Run a command as an ordinary user, without capabilities, who owns the same files."""


def can_become_ordinary() -> bool:
    if os.geteuid() != 0 or not shutil.which("unshare"):
        return False
    return subprocess.run([*ORDINARY, "true"], capture_output=True).returncode == 0


@pytest.mark.parametrize(
    ("env", "become"), [("Words", ()), ("WordsInPlace", ()), ("WordsInPlace", ORDINARY)], ids=["fresh", "same", "user"]
)
def test_fifty_agents_get_what_they_have_earned(env: str, become: tuple[str, ...], bwrap: str, tmp_path: Path):
    if become and not can_become_ordinary():
        pytest.skip("the driver is not root, or cannot become an ordinary user")
    script = ["--model.type", "scripted", "--model.script", f"{KIT}:act"]
    place = ["--sandbox.backend", bwrap, "--run.out", "run", "--run.concurrency", "12"]
    command = [*become, *LUDUS, "evaluate", f"{KIT}:{env}", *script, *place, "--json"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=600)
    assert ended.returncode == 0, ended.stderr.decode(errors="replace")[-2000:]
    rows = [json.loads(line) for line in (tmp_path / "run" / "samples.jsonl").read_text().splitlines()]
    assert len(rows) == len(AGENTS) == 50
    scores = {row["task"]["id"].partition(": ")[2]: row["score"] and row["score"]["value"] for row in rows}
    assert {name: scores[name] for name in ATTACKS if scores[name] != 0.0} == {}, "no attack pays or is left out"
    assert [row["failure"] for row in rows if row["failure"]] == []
    assert {row["provenance"]["attempt"] for row in rows} == {1}, "no agent had a second chance"
    summary = json.loads(ended.stdout)["summary"]
    assert summary["overall"]["mean"] == pytest.approx(EARNED, abs=1e-12)
    assert (summary["overall"]["scored"], summary["failed"], summary["partial"]) == (50, {}, 0)
    assert ended.stderr == b"", "nothing of an agent reaches the terminal"
