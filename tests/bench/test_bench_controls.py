"""`bench/controls.py` runs. No measured figure is asserted."""

import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench" / "controls.py"


def test_a_quick_run_prints_a_table_and_a_verdict(bwrap):
    done = subprocess.run([sys.executable, BENCH, "--quick"], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode in (0, 1), done.stderr
    assert done.stdout.splitlines()[-1].startswith(("controls: PASS ", "controls: FAIL "))
    assert done.stdout.count("\n|") > 3
