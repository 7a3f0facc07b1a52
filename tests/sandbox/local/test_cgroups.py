"""Finding and making control groups, and describing which limits hold."""

import os
import shutil
from pathlib import Path

import pytest

from ludus.sandbox import SandboxSpec
from ludus.sandbox.local import cgroups as cgroups_module
from ludus.sandbox.local.cgroups import Cgroups, describe_limits, find_cgroups, make_rlimits

SPEC = SandboxSpec(memory_mb=100, disk_mb=10, processes=50)
TOTAL = (100 + 3 * 10 + cgroups_module.SHM_MB) * 2**20


@pytest.fixture
def control_groups(monkeypatch):
    """Make folders behave like control groups of both versions: `Path.mkdir` puts the kernel's files into them."""
    real_mkdir, files = Path.mkdir, ("cgroup.procs", "tasks", "cgroup.subtree_control")
    limits = ("memory.max", "memory.swap.max", "pids.max", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes")

    def mkdir(self, *args, **kwargs):
        real_mkdir(self, *args, **kwargs)
        for name in (*files, *limits):
            (self / name).touch()

    monkeypatch.setattr(Path, "mkdir", mkdir)
    monkeypatch.setattr(Path, "rmdir", shutil.rmtree)


def fake_proc(folder: Path, mounts: str, own: str) -> Path:
    (folder / "mountinfo").write_text(mounts)
    (folder / "cgroup").write_text(own)
    return folder


def test_version_1_uses_the_own_group_of_each_controller(tmp_path, control_groups):
    mounts = (
        f"30 25 0:26 / {tmp_path}/memory rw - cgroup cgroup rw,memory\n"
        f"31 25 0:27 /box {tmp_path}/pids rw - cgroup cgroup rw,pids\n"
    )
    proc = fake_proc(tmp_path, mounts, "4:memory:/a/b\n3:pids:/box/c\n0::/\n")
    for folder in ("memory/a/b", "pids/c"):
        os.makedirs(tmp_path / folder)  # noqa: PTH103
    groups = find_cgroups("pool", proc=proc)
    assert groups == Cgroups({"memory": tmp_path / "memory/a/b/pool", "pids": tmp_path / "pids/c/pool"}, 1)
    slot = groups.make("slot", SPEC)
    assert (tmp_path / "memory/a/b/pool/slot/memory.limit_in_bytes").read_text() == str(TOTAL)
    assert (tmp_path / "pids/c/pool/slot/pids.max").read_text() == "50"
    with slot.open_procs_files() as fds:
        for fd in fds:
            os.write(fd, b"0")
    assert (tmp_path / "pids/c/pool/slot/tasks").read_text() == "0"
    slot.remove()
    groups.remove()
    assert not list((tmp_path / "pids/c").iterdir())


def test_version_2_uses_the_nearest_group_that_may_have_children(tmp_path, control_groups):
    proc = fake_proc(tmp_path, f"30 25 0:26 / {tmp_path} rw - cgroup2 cgroup rw\n", "0::/app.slice/term.scope\n")
    os.makedirs(tmp_path / "app.slice/term.scope")  # noqa: PTH103
    (tmp_path / "app.slice/cgroup.subtree_control").write_text("cpu memory pids")
    (tmp_path / "app.slice/cgroup.procs").touch()
    groups = find_cgroups("pool", proc=proc)
    assert groups.folders == (tmp_path / "app.slice/pool",)
    assert groups.version == 2
    assert (tmp_path / "app.slice/pool/cgroup.subtree_control").read_text() == "+memory +pids"
    groups.make("slot", SPEC)
    slot = tmp_path / "app.slice/pool/slot"
    assert {f: (slot / f).read_text() for f in ("memory.max", "memory.swap.max", "pids.max")} == {
        "memory.max": str(TOTAL),
        "memory.swap.max": "0",
        "pids.max": "50",
    }


def test_where_no_group_may_be_made_resource_limits_take_over(tmp_path):
    groups = find_cgroups("pool", proc=fake_proc(tmp_path, "", "0::/\n"))
    assert groups.parents == {}
    assert make_rlimits(SPEC, groups.parents)["RLIMIT_NPROC"] == 50
    assert make_rlimits(SPEC, groups.parents)["RLIMIT_AS"] == 100 * 2**20
    assert [held.strong for held in describe_limits(groups)] == [False, False, True, True]
    assert find_cgroups("pool", proc=tmp_path / "missing").parents == {}


def test_groups_spare_the_weaker_limits():
    groups = Cgroups({"memory": Path("/m"), "pids": Path("/p")}, 1)
    assert "RLIMIT_NPROC" not in make_rlimits(SPEC, groups.parents)
    assert "RLIMIT_AS" not in make_rlimits(SPEC, groups.parents)
    assert all(held.strong for held in describe_limits(groups))
