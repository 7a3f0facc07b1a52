"""docs/scale.md, followed to the letter on two machines: namespaces with a network, processes and homes of their own.

`make test-scale` runs it (root). `ray job submit` needs the server of jobs, which `ray[default]` brings.
"""

import importlib.util
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli_kit import script_flags, write_sums
from tests.docs_kit import ROOT, read_commands
from tests.machine_kit import Machine, start_machines
from tests.node_kit import QUIET, wait_until

pytest.importorskip("ray")
pytestmark = pytest.mark.skipif(not os.environ.get("LUDUS_TEST_SCALE"), reason="make test-scale runs it")

PAGE = (ROOT / "docs" / "scale.md").read_text()
TWO = PAGE.partition("## Two machines")[2].partition("\n## ")[0].replace("\n   ", "\n")  # its blocks are in a list
OTHERS = PAGE.partition("## Other ways to start")[2].partition("\n## ")[0]


TOGETHER = """

async def together(messages, tools, sampling):
    '''Write the file, when both machines have begun.'''
    import asyncio, socket, time
    from pathlib import Path
    Path("machines").mkdir(exist_ok=True)
    Path("machines", socket.gethostname()).touch()
    until = time.monotonic() + 60
    while len(list(Path("machines").iterdir())) < 2 and time.monotonic() < until:
        await asyncio.sleep(0.05)
    return write(messages, tools, sampling)
"""


def find_command(part: str, text: str = TWO) -> str:
    """The command of the page that has a part."""
    return next(command for command in read_commands(text) if part in command)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[tuple[Machine, Machine]]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with start_machines(tmp_path, {**os.environ, **QUIET, "PATH": path}) as pair:
        yield pair


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    write_sums(folder)
    with (folder / "models.py").open("a") as file:
        file.write(TOGETHER)
    return folder


def start_cluster(machines: tuple[Machine, Machine], folder: Path, *more: str) -> str:
    """Type what the page says. Returns the export of the token mode, for what comes after."""
    first, other = machines
    mode = find_command("export RAY_AUTH_MODE")
    first.run(find_command("get-auth-token"), folder)
    token = first.home / ".ray" / "auth_token"
    assert token.stat().st_mode & 0o077 == 0
    shutil.copytree(first.home / ".ray", other.home / ".ray")  # in place of ssh and scp
    head = find_command("ray start --head").replace("HEAD", first.ip)
    first.run(f"{mode}; {head} {' '.join(more)}", folder)
    join = find_command("ray start --address").replace("HEAD", first.ip)
    log = folder / "other.log"
    other.start(f"{mode}; {join} --node-ip-address {other.ip}", folder, log)
    wait_until(lambda: "Ray runtime started" in log.read_text(), "the other machine joins")
    return mode


def read_nodes(run: Path) -> dict[str, int]:
    """How many rollouts each machine has run."""
    return {node["name"]: node.get("units", 0) for node in json.loads((run / "nodes.json").read_text())}


@pytest.mark.usefixtures("bwrap")
def test_a_run_is_on_both_machines(machines: tuple[Machine, Machine], work: Path):
    mode = start_cluster(machines, work)
    command = find_command("ludus evaluate").replace("HEAD", machines[0].ip)
    told = machines[0].run(f"{mode}; {command} --env.group_size 8 {' '.join(script_flags('together'))}", work)
    nodes = read_nodes(work / "runs" / "two")
    assert len(nodes) == 2 and all(nodes.values()), told
    assert re.search(r"mean score +1 ", told), told


def test_without_the_token_nobody_gets_in(machines: tuple[Machine, Machine], work: Path):
    mode = start_cluster(machines, work)
    shutil.rmtree(machines[1].home / ".ray")
    command = find_command("ludus evaluate").replace("HEAD", machines[0].ip).replace("runs/two", "runs/stolen")
    log = work / "stolen.log"
    stolen = machines[1].start(f"{mode}; {command} {' '.join(script_flags('write'))}", work, log)
    assert stolen.wait(120) != 0 and "token" in log.read_text().lower(), log.read_text()
    assert not (work / "runs" / "stolen" / "store.sqlite").exists()


@pytest.mark.skipif(importlib.util.find_spec("aiohttp_cors") is None, reason="ray[default] is not installed")
def test_a_job_is_submitted(machines: tuple[Machine, Machine], work: Path, tmp_path: Path):
    mode = start_cluster(machines, work, "--dashboard-host", machines[0].ip)
    command = find_command("ray job submit", OTHERS).replace("HEAD", machines[0].ip)
    command = command.replace("capitals.py", "sums.py").replace("/data/runs/capitals", str(tmp_path / "kept"))
    told = machines[0].run(f"{mode}; {command} {' '.join(script_flags('right'))}", work, 240)
    assert "succeeded" in told
    assert sum(read_nodes(tmp_path / "kept").values()) == 4, told
