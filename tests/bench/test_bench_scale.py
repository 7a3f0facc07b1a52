"""`bench/scale.py` runs. No measured figure is asserted."""

import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench" / "scale.py"


def test_a_quick_run_without_a_cluster_prints_tables_and_a_verdict():
    command = [sys.executable, BENCH, "--quick", "--only", "local,resume,journal,kills"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("scale: PASS ")
    ours = next(line for line in done.stdout.splitlines() if line.startswith("| ours"))
    assert [int(cell) for cell in ours.split("|")[6:8]] == [0, 0]  # rows lost, rows twice
