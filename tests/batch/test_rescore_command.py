"""`ludus rescore`: from a run with a wrong verifier to a run with right scores, without a model."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from tests.cli_kit import LUDUS, Ludus, read_calls, script_flags, write_sums

LAX = """
from ludus.envs.terminal_test import TerminalTest
from ludus.types import Score

class Lax(TerminalTest, frozen=True):
    async def verify(self, rollout, box):
        found = (await box.read(rollout.task.id)).decode()
        return Score.of(float("o" in found), "It looks for an o.")
"""


@pytest.fixture
def sums(ludus: Ludus, folder: Path) -> Path:
    """A run of `sums.py`."""
    write_sums(folder)
    assert ludus("evaluate", "sums.py", "--out", "old", *script_flags()).code == 0
    return folder / "sums.py"


def test_a_corrected_environment_judges_the_run_again(ludus: Ludus, folder: Path, sums: Path):
    asked = len(read_calls(folder))
    assert "4 of 4 rollouts judged, 4 tasks: 0 higher, 0 lower, 4 unchanged" in ludus("rescore", "old").out
    wrong = sums.read_text().replace("rollout.answer == rollout.task.answer", "rollout.answer in '02'")
    (folder / "other_sums.py").write_text(wrong)
    code, out, _ = ludus("rescore", "old", "--env", "other_sums.py")
    assert code == 0 and "0 higher, 2 lower, 2 unchanged" in out and "sum-3#1" in out
    assert "ludus rescore old --env other_sums.py --out DIR" in out
    code, out, _ = ludus("rescore", "old", "--env", "other_sums.py", "--out", "new", "--json")
    report = json.loads(out)
    assert (code, report["mean_before"], report["mean_after"]) == (0, 1.0, 0.5)
    assert json.loads(ludus("show", "new", "--json").out)["summary"]["overall"]["mean"] == 0.5
    assert json.loads(ludus("show", "old", "--json").out)["summary"]["overall"]["mean"] == 1.0
    assert ludus("evaluate", "--resume", "--out", "new").code == 0
    assert len(read_calls(folder)) == asked, "no model was asked"


def test_the_files_of_the_agents_are_judged_in_slots(ludus: Ludus, folder: Path):
    write_sums(folder)
    (folder / "lax.py").write_text(LAX)
    flags = ["--env.limit", "4", *script_flags("write")]
    assert ludus("evaluate", "terminal-test", "--out", "old", *flags).code == 0
    report = json.loads(ludus("rescore", "old", "--env", "lax.py", "--out", "new", "--json").out)
    assert (report["judged"], report["lowered"]) == (4, 1)
    assert ludus("rescore", "new").out.count("unchanged") == 1, "the new run has the files too"
    assert ludus("evaluate", "terminal-test", "--out", "none", "--run.keep_files_mb", "0", *flags).code == 0
    code, out, _ = ludus("rescore", "none")
    assert code == 1 and "not judged: 4: its files were not kept" in out


STUCK = """
import os
import signal
from pathlib import Path

from sums import Sums


class Stuck(Sums, frozen=True):
    async def verify(self, rollout, box):
        if rollout.task.id == "sum-3":
            Path("half").write_text(str(sorted(each.name for each in Path().iterdir())))
            os.kill(os.getpid(), getattr(signal, os.environ["END_WITH"]))
        return await super().verify(rollout, box)
"""


@pytest.mark.parametrize("end", ["SIGINT", "SIGKILL"])
def test_a_run_that_is_half_rescored_is_not_there(folder: Path, sums: Path, end: str):
    (folder / "stuck.py").write_text(STUCK)
    words = [*LUDUS, "rescore", "old", "--env", "stuck.py", "--out", "new"]
    done = subprocess.run(words, cwd=folder, env={**os.environ, "END_WITH": end}, capture_output=True)
    assert done.returncode != 0 and (folder / "half").exists(), done
    assert not (folder / "new").exists()


def test_what_cannot_be_rescored_is_refused(ludus: Ludus, folder: Path, sums: Path):
    assert "is not a run directory" in ludus("rescore", "nowhere").err
    assert "already holds a run" in ludus("rescore", "old", "--out", "old").err
    assert "unknown environment 'gsm9k'" in ludus("rescore", "old", "--env", "gsm9k").err
