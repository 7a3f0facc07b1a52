"""`bench/envs.py` runs. No measured figure is asserted."""

import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench" / "envs.py"


def test_a_quick_run_prints_a_line_for_each_environment(bwrap: str):
    words = [sys.executable, BENCH, "--quick", "gsm8k", "terminal-test", "officeqa", "alfworld", "judge"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    lines = [[cell.strip() for cell in line.split("|")] for line in done.stdout.splitlines() if line.startswith("| ")]
    assert [line[1] for line in lines] == ["environment", "gsm8k", "terminal-test", "officeqa", "alfworld", "judge"]
    assert all(line[3].endswith(" s") or line[3].endswith(" ms") for line in lines[1:4])
    assert lines[4][3].startswith("not measured: env.")
    assert lines[5][3] == "that of the judge"
