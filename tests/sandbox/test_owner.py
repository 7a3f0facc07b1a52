"""The marks of drivers, and what they own."""

import os
import subprocess
from pathlib import Path

from ludus.sandbox.owner import OwnedResource, is_orphan, make_owner_mark


def test_the_mark_of_a_driver():
    assert not is_orphan(make_owner_mark())
    child = subprocess.Popen(["sleep", "60"])
    host, boot, _, _ = make_owner_mark().split("_")
    started = Path(f"/proc/{child.pid}/stat").read_text().split()[21]
    mark = "_".join((host, boot, str(child.pid), started))
    assert not is_orphan(mark)
    child.kill()
    child.wait()
    assert is_orphan(mark)
    assert is_orphan("_".join((host, "otherboot", str(os.getpid()), started)))
    for foreign in ("", "x", "otherhost_b_1_2", f"{host}_b_x_2", "a_b_c_d_e"):
        assert not is_orphan(foreign)


def test_a_resource_names_its_driver_and_knows_whether_it_is_an_orphan():
    mine = OwnedResource("docker", "container", "abc", make_owner_mark())
    host, boot, _, _ = mine.owner.split("_")
    assert mine.driver == f"process {os.getpid()} of {host}"
    assert not mine.orphaned
    dead = OwnedResource("docker", "container", "abc", f"{host}_{boot}_999999_1")
    assert dead.orphaned
    assert OwnedResource("docker", "container", "abc", "").driver == "unknown"
