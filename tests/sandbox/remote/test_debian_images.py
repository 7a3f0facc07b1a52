"""A task of the usual kind on a real Debian, in containers of real engines: apt in the Dockerfile and in the test
script, users and owners.

`make test-harbor` runs it. It needs root, debootstrap, docker, podman and a way to Debian's packages.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.envs.test_harbor_debian import HarborOnline
from tests.sandbox.remote import machinery

from ludus.env_checks import format_report, validate
from ludus.policy import Limits
from ludus.runner import Runner
from ludus.sandbox.profiles import open_pool

pytestmark = pytest.mark.skipif("LUDUS_TEST_HARBOR" not in os.environ, reason="make test-harbor")
FILES = {
    "task.toml": "[verifier]\ntimeout_sec = 600\n[environment]\nbuild_timeout_sec = 1200\n",
    "instruction.md": "Write the sum of all n in /app/events.json to /app/sum.txt.\n",
    "environment/events.json": '[{"n": 1}, {"n": 4}]\n',
    "environment/Dockerfile": """\
FROM debian:bookworm

RUN apt-get update && apt-get install -y --no-install-recommends \\
    jq \\
    # for sessions
    tmux \\
    && rm -rf /var/lib/apt/lists/*
RUN useradd -m worker && install -d -o worker -g worker /srv/data
WORKDIR /app
COPY --chown=worker:worker events.json /app/events.json
""",
    "tests/test.sh": """\
#!/bin/bash
apt-get update && apt-get install -y --no-install-recommends bc
test "$(stat -c %U /srv/data)" = worker && test "$(echo "$(cat /app/sum.txt) * 2" | bc)" = 10
if [ $? -eq 0 ]; then echo 1 >/logs/verifier/reward.txt; else echo 0 >/logs/verifier/reward.txt; fi
""",
    "solution/solve.sh": "su worker -c 'jq \"map(.n) | add\" events.json >/srv/data/sum' && cp /srv/data/sum sum.txt\n",
}


@pytest.fixture(scope="module")
def debian() -> Iterator[Path]:
    """A Debian as an archive."""
    if shutil.which("debootstrap", path="/usr/sbin:/usr/bin") is None:
        pytest.skip("debootstrap is not installed")
    with tempfile.TemporaryDirectory(prefix="ludus-debian-") as name:
        root, archive = f"{name}/root", Path(name, "debian.tar")
        packages = "--include=ca-certificates,python3"
        machinery.run_command("debootstrap", "--variant=minbase", packages, "bookworm", root, seconds=900)
        machinery.run_command("tar", "--create", "--exclude=./dev/*", "--file", str(archive), "--directory", root, ".")
        yield archive


@pytest.mark.parametrize("engine", ["docker", "podman"])
async def test_a_task_with_apt_and_users(engine: str, debian: Path, request: pytest.FixtureRequest, tmp_path: Path):
    socket, fleet = request.getfixturevalue(f"{engine}_socket"), request.getfixturevalue(f"{engine}_fleet")
    place = {"docker": ("--host",), "podman": ("--remote", "--url")}[engine]
    machinery.run_command(
        engine, *place, f"unix://{socket}", "import", str(debian), "docker.io/library/debian:bookworm"
    )
    for path, text in FILES.items():
        file = tmp_path / "sum-events" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    env = HarborOnline(path=str(tmp_path), engine="backend")
    profile: Any = fleet.profile(network="host")

    async with open_pool(profile) as pool:
        report = await validate(Runner(env, pool), "train", env.tasks("train"), limits=Limits(), concurrency=1)
    assert report.ok, format_report(report)
