"""What can go wrong with a cluster: each fault is survived, or said in one sentence.

The first part runs everywhere. The second one starts nodes in network namespaces, under other clocks and on full disks,
and kills 200 processes: `make test-scale` (root, half an hour). Prompts that kill their worker, other versions of
Ludus and missing files are in test_ray_engine.py.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.cli_kit import Ludus
from tests.kill_kit import EACH, HEADING, Kill, Ordeal, count_begun, make_command, plan_kills, summarize_rows, write_env
from tests.node_kit import LUDUS, QUICK_LOSS, QUIET, RayNode, start_cluster, wait_until
from tests.ray_kit import TestCluster

pytest.importorskip("ray")

full = pytest.mark.skipif(not os.environ.get("LUDUS_TEST_SCALE"), reason="make test-scale runs it")
KILLS = int(os.environ.get("LUDUS_TEST_KILLS", "200"))


def evaluate(ludus: Ludus, *more: str, act: str = "act", size: int = 40) -> tuple[int, str]:
    """Run the command in this process, on Ray. Returns the exit code and what it said."""
    write_env(Path.cwd())
    words = make_command(Path("run"), size, "--engine", "ray", *more, act=act)[len(LUDUS) :]
    code, _, err = ludus(*words)
    return code, err


# ---- one sentence each ----------------------------------------------------------------------------------------------


def test_ray_is_not_installed(ludus: Ludus, folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert evaluate(ludus) == (2, "ludus: engine.type ray: Ray is not installed: pip install 'ludus-train[ray]'\n")
    assert not (folder / "run").exists()


def test_ray_is_too_old(ludus: Ludus, folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(__version__="2.9.3"))
    code, err = evaluate(ludus)
    assert code == 2
    assert "Ray 2.9.3 is installed, and 2.49 or later is needed: pip install -U 'ludus-train[ray]'" in err


def test_the_cluster_has_another_version_of_ray(
    ludus: Ludus, folder: Path, cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
):
    import ray

    there = ray.__version__
    monkeypatch.setattr("ray.__version__", "2.59.1")
    code, err = evaluate(ludus, "--engine.address", cluster.address)
    assert code == 2 and len(err.splitlines()) == 1, err
    assert there in err and "2.59.1" in err
    assert not (folder / "run").exists()


def test_there_is_no_cluster_at_the_address(ludus: Ludus, folder: Path):
    code, err = evaluate(ludus, "--engine.address", "127.0.0.1:1")
    assert code == 2 and len(err.splitlines()) == 1, err
    assert "engine.address: there is no Ray cluster at 127.0.0.1:1" in err


# ---- a run that goes on ---------------------------------------------------------------------------------------------


def test_a_model_that_becomes_ten_times_slower(ludus: Ludus, folder: Path, cluster: TestCluster):
    """Leases were sized for the fast one. Nothing is lost, and nothing is begun twice."""
    code, err = evaluate(ludus, "--engine.address", cluster.address, act="act_slower", size=120)
    assert code == 0, err
    assert set(count_begun(folder).values()) == {1} and len(count_begun(folder)) == 120


def test_a_worker_a_driver_and_a_raylet_are_killed(tmp_path: Path):
    kills = [Kill(1, "worker", 10, 0.1, 0.5), Kill(2, "driver", 10, 0.1, 0), Kill(3, "raylet", 10, 0.1, 0.9)]
    survive(tmp_path, kills)


def survive(folder: Path, kills: Sequence[Kill]) -> Ordeal:
    with start_cluster(0) as cluster:
        ordeal = Ordeal(folder, cluster, EACH * len(kills))
        try:
            for row in ordeal.work(kills):
                print(row, flush=True)
        finally:
            ordeal.close()
        ordeal.check()
    return ordeal


# ---- with make test-scale -------------------------------------------------------------------------------------------


@full
@pytest.mark.parametrize("seed", [1])
def test_two_hundred_kills(tmp_path: Path, seed: int):
    """The table is printed: pytest -s."""
    print("\n" + HEADING)
    ordeal = survive(tmp_path, plan_kills(seed, KILLS))
    print("\n" + summarize_rows(ordeal.rows))
    assert len(ordeal.rows) == KILLS


AHEAD = """
import time

now, now_ns = time.time, time.time_ns
time.time = lambda: now() + 3600
time.time_ns = lambda: now_ns() + 3600 * 10**9
"""
"""The calendar of all Python on a node: libfaketime breaks `time.sleep`."""


@full
@pytest.mark.parametrize("clock", ["calendar", "uptime"])
def test_a_node_whose_clock_is_an_hour_off(tmp_path: Path, clock: str):
    """By the calendar, or by the time since the start of the machine."""
    (tmp_path / "ahead").mkdir()
    (tmp_path / "ahead" / "sitecustomize.py").write_text(AHEAD)
    path = f"{tmp_path / 'ahead'}:{QUIET['PYTHONPATH']}"
    uptime = ["unshare", "--fork", "--time", "--monotonic", "3600", "--boottime", "3600"]
    with start_cluster(0) as cluster:
        if clock == "uptime":
            cluster.start_node(before=uptime).wait()
        else:
            cluster.start_node(env={"PYTHONPATH": path}).wait()
        finish(Ordeal(tmp_path, cluster, 60, nodes=1, act="act_together"))


@full
def test_a_node_whose_disk_is_full(tmp_path: Path):
    """A worker keeps nothing on disk: rollouts without slots do not notice."""
    with start_cluster(0) as cluster, mount_memory(tmp_path / "disk", "24m") as disk:
        cluster.start_node(env={"TMPDIR": str(disk)}).wait()
        with suppress_full_disk(), (disk / "fill").open("wb") as file:
            while True:
                file.write(bytes(2**16))
        finish(Ordeal(tmp_path / "run", cluster, 60, nodes=1, act="act_together"))


@full
@pytest.mark.parametrize("seconds", [1.0, 12.0], ids=["for a second", "until it is missed"])
def test_a_node_that_is_cut_off_and_comes_back(tmp_path: Path, seconds: float):
    with make_network() as (near, far, name), start_cluster(0, QUICK_LOSS, ip=near) as cluster:
        enter = ["ip", "netns", "exec", name]
        node = cluster.start_node(
            "--node-ip-address", far, "--temp-dir", str(cluster.folder / "far"), before=enter
        ).wait()
        ordeal = Ordeal(tmp_path / "run", cluster, 300, nodes=1, act="act_together")
        ordeal.start_driver()
        wait_until(lambda: len(count_begun(tmp_path / "run")) > 60, "both nodes work")
        subprocess.run(["ip", "link", "set", f"{name}-0", "down"], check=True)
        time.sleep(seconds)
        subprocess.run(["ip", "link", "set", f"{name}-0", "up"], check=True)
        finish(ordeal)
        check_end_of(node, lost=seconds > 5)


def check_end_of(node: RayNode, lost: bool) -> None:
    """Ray ends a node that it has missed, when it is back."""
    if lost:
        wait_until(lambda: node.process.poll() is not None, "the node ends itself")
    else:
        assert node.process.poll() is None


def finish(ordeal: Ordeal) -> None:
    """Let a run end, and compare its store with that of an undisturbed one."""
    try:
        if ordeal.driver is None:
            ordeal.start_driver()
        assert ordeal.driver is not None
        assert ordeal.driver.wait(120) == 0, ordeal.log.read_text()
    finally:
        ordeal.close()
    ordeal.check()


@contextmanager
def suppress_full_disk() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        assert "No space left" in str(error)


@contextmanager
def mount_memory(place: Path, size: str) -> Iterator[Path]:
    """A disk of a few megabytes."""
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", place], capture_output=True).returncode:
        pytest.skip("this machine does not let us mount")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


@contextmanager
def make_network() -> Iterator[tuple[str, str, str]]:
    """A network of this machine and a namespace: two addresses, and the name of the namespace."""
    name, near, far = f"lud{os.getpid() % 10000}", "10.213.7.1", "10.213.7.2"
    inside = f"ip netns exec {name} ip"
    script = f"""
    ip netns add {name}
    ip link add {name}-0 type veth peer name {name}-1 netns {name}
    ip addr add {near}/24 dev {name}-0
    ip link set {name}-0 up
    {inside} addr add {far}/24 dev {name}-1
    {inside} link set {name}-1 up
    {inside} link set lo up
    """
    try:
        done = subprocess.run(["sh", "-e", "-c", script], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"this machine does not let us make a network: {done.stderr}")
        yield near, far, name
    finally:
        subprocess.run(["ip", "link", "del", f"{name}-0"], capture_output=True)
        subprocess.run(["ip", "netns", "del", name], capture_output=True)
