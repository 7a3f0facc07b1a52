"""The job script of examples/scale, run by a real Slurm: two nodes, both of them this machine."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docs_kit import ROOT
from tests.kill_kit import make_command, write_env
from tests.node_kit import LUDUS, QUIET, wait_until
from tests.sandbox.remote import machinery

SCRIPT = ROOT / "examples" / "scale" / "slurm.sh"
SMALL = ["--nodes=2", "--cpus-per-task=1", "--mem=10M", "--time=30", "--oversubscribe"]
"""What is given to sbatch counts before what the script says."""


@pytest.fixture
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    pytest.importorskip("ray")
    try:
        yield from machinery.start_slurm(tmp_path_factory.mktemp("slurm"))
    except machinery.Missing as missing:
        pytest.skip(f"slurm: {missing}")


def test_a_job_of_two_nodes(slurm: dict[str, str], tmp_path: Path):
    """Both nodes work: the rollouts of each wait until the other has begun."""
    write_env(tmp_path)
    (tmp_path / "ludus").write_text(f'#!/bin/bash\nexec {shlex.join(LUDUS)} "$@"\n')
    (tmp_path / "ludus").chmod(0o755)
    path = f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, **QUIET, **slurm, "PATH": path}  # Slurm gives a job the variables of whoever submits it
    words = make_command(tmp_path / "run", 60, "--json", act="act_together")[len(LUDUS) :]
    sbatch = ["sbatch", "--parsable", f"--output={tmp_path}/out", f"--error={tmp_path}/err", f"--chdir={tmp_path}"]
    submitted = subprocess.run([*sbatch, *SMALL, SCRIPT, *words], env=env, capture_output=True, text=True, check=True)
    job = submitted.stdout.strip()

    def has_ended() -> bool:
        return not subprocess.run(["squeue", "--noheader", "--jobs", job], env=env, capture_output=True).stdout

    wait_until(has_ended, "the job ends", 150)
    told = (tmp_path / "err").read_text()
    assert (tmp_path / "out").read_text(), told
    overall = json.loads((tmp_path / "out").read_text())["summary"]["overall"]
    assert (overall["rollouts"], overall["scored"]) == (60, 60)
