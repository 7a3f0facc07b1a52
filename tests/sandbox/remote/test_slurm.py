"""The job scripts of docs/sandboxes.md, run by a real Slurm: two nodes, both of them this machine."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

PAGE = (Path(__file__).parents[3] / "docs" / "sandboxes.md").read_text()
SCRIPTS = [text for text in re.findall(r"```bash\n(.*?)```", PAGE, re.S) if "#SBATCH" in text]

MODELS = """
from ludus.models.scripted import call, say

def write(messages, tools, sampling):
    if messages[-1].role == "tool":
        return say("Done.")
    prompt = messages[-1].content
    path = prompt.split("called ")[1].split(" that")[0]
    return call("write_file", path=path, content=prompt.split(chr(34))[1])
"""

SSH = """
Host node1 node2
    HostName 127.0.0.1
    Port {port}
    User root
    IdentityFile {key}
    IdentitiesOnly yes
    HostKeyAlias ludus-node
"""


def submit(script: str, folder: Path, slurm: dict[str, str], extra: list[str]) -> dict:
    """Run a script as a job, with a scripted model. Returns the numbers of its run."""
    (folder / "models.py").write_text(MODELS)
    small = ["--env.limit", "4", "--sandbox.disk_mb", "32", "--sandbox.memory_mb", "256", "--run.concurrency", "4"]
    words = ["--json", "--model.type", "scripted", "--model.script", "models.py:write", *small, *extra]
    command = f"{sys.executable} -c 'import sys; from ludus.cli import main; sys.exit(main())'"
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    (bin_folder / "ludus").write_text(f'#!/bin/bash\nexec {command} "$@" {" ".join(words)}\n')
    (bin_folder / "ludus").chmod(0o755)
    (folder / "job.sh").write_text(script.replace("--cpus-per-task=16 --mem=64G", "--cpus-per-task=1 --mem=10M"))
    # Slurm gives a job the variables of whoever submits it.
    env = {**os.environ, **slurm, "PATH": f"{bin_folder}:{os.environ['PATH']}"}
    sbatch = ["sbatch", "--parsable", f"--output={folder}/out", f"--error={folder}/err", f"--chdir={folder}"]
    job = subprocess.run([*sbatch, str(folder / "job.sh")], env=env, capture_output=True, text=True, check=True).stdout
    until = time.monotonic() + 90
    while subprocess.run(["squeue", "--noheader", "--jobs", job.strip()], env=env, capture_output=True).stdout:
        assert time.monotonic() < until, "the job does not end"
        time.sleep(0.1)
    assert (folder / "out").read_text(), (folder / "err").read_text()
    return json.loads((folder / "out").read_text())["summary"]["overall"]


def scored(overall: dict) -> tuple[int, int, float]:
    return overall["rollouts"], overall["scored"], overall["mean"]


def test_a_job_of_one_node_with_apptainer(slurm, apptainer, tmp_path):
    command, image = apptainer
    (script,) = [text for text in SCRIPTS if "apptainer" in text]
    extra = ["--sandbox.apptainer.command", str(command), "--sandbox.apptainer.image", str(image)]
    assert scored(submit(script, tmp_path, slurm, extra)) == (4, 4, 1.0)


def test_a_job_of_two_nodes_over_ssh(slurm, sshd, tmp_path):
    """With one slot on each, both nodes are needed, and some rollouts have to wait."""
    (script,) = [text for text in SCRIPTS if "ssh" in text]
    script = script.replace("--nodes=4 --exclusive", "--nodes=2")
    (tmp_path / "ssh").write_text(SSH.format(port=sshd.port, key=sshd.key))
    (tmp_path / "known").write_text(f"ludus-node {sshd.known_hosts.read_text().partition(' ')[2]}")
    extra = ["--sandbox.ssh.config_file", str(tmp_path / "ssh"), "--sandbox.ssh.known_hosts", str(tmp_path / "known")]
    extra += ["--sandbox.ssh.python", "/usr/bin/python3", "--sandbox.ssh.slots", "1"]
    assert scored(submit(script, tmp_path, slurm, extra)) == (4, 4, 1.0)
