"""`bench/pool.py` runs. No measured figure is asserted."""

import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench" / "pool.py"


def test_a_quick_run_prints_a_table_and_a_verdict(bwrap):
    done = subprocess.run([sys.executable, BENCH, "--quick"], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode in (0, 1), done.stderr
    verdict = done.stdout.splitlines()[-1]
    assert verdict.startswith(("pool: PASS ", "pool: FAIL "))
    assert "failed of 16 at once 0 (target ≤ 0)" in verdict
    assert done.stdout.count("\n|") == 7
