"""A task of the usual kind on a real Debian: apt and pip in the Dockerfile, and a test script that fetches uv.

`make test-harbor` runs it. It needs root, debootstrap, the package `uv`, and a way to the package indexes.
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ludus.env_checks import format_report, validate
from ludus.envs.harbor import Harbor
from ludus.policy import Limits
from ludus.runner import Runner
from ludus.sandbox import SandboxSpec
from ludus.sandbox.profiles import open_pool

pytestmark = pytest.mark.skipif("LUDUS_TEST_HARBOR" not in os.environ, reason="make test-harbor")
FILES = {
    "task.toml": "[verifier]\ntimeout_sec = 300\n[environment]\nbuild_timeout_sec = 1200\n",
    "instruction.md": "Write the sum of all n in /app/events.json to /app/sum.txt.\n",
    "environment/events.json": '[{"n": 1}, {"n": 4}]\n',
    "environment/Dockerfile": """\
FROM python:3.11-slim

RUN apt-get update && apt-get install -y --no-install-recommends \\
    jq \\
    # for sessions
    tmux \\
    && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir six==1.16.0
RUN useradd -m worker && install -d -o worker -g worker /srv/data
WORKDIR /app
COPY --chown=worker:worker events.json /app/events.json
""",
    "tests/test.sh": """\
#!/bin/bash
apt-get update
apt-get install -y curl
curl -LsSf https://uv.invalid/install.sh | sh
source $HOME/.local/bin/env
uvx -w pytest==8.4.1 pytest /tests/test_outputs.py -rA
if [ $? -eq 0 ]; then echo 1 >/logs/verifier/reward.txt; else echo 0 >/logs/verifier/reward.txt; fi
""",
    "tests/test_outputs.py": """\
from pathlib import Path


def test_sum():
    assert Path("/app/sum.txt").read_text().strip() == "5"
""",
    "solution/solve.sh": 'python3 -c "import six"; jq "map(.n) | add" /app/events.json >/app/sum.txt\n',
}


class HarborOnline(Harbor, frozen=True):
    """With the network."""

    sandbox = SandboxSpec(network=True, memory_mb=2048, disk_mb=1024, processes=1024)


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ludus-debian-") as name:
        Path(name).chmod(0o755)
        for path, text in FILES.items():
            file = Path(name, "tasks/sum-events", path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        yield Path(name)


async def test_a_task_with_apt_pip_and_uv(bwrap: str, folder: Path):
    env = HarborOnline(path=str(folder / "tasks"), cache=str(folder / "cache"))

    async with open_pool("bwrap") as pool:
        report = await validate(Runner(env, pool), "train", env.tasks("train"), limits=Limits(), concurrency=1)
    assert report.ok, format_report(report)
