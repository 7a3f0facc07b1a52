"""Attacks on the connection between a slot's shell and the driver, with a driver that is root and one that is not.

Queued orders and pipes that are non-blocking, shrunk, flooded or emptied broke slots before shells had pipes of their
own. The other attacks were held off before too: see `docs/log.md`.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.sandbox import hostile_driver

import ludus

SOURCE = Path(ludus.__file__).parents[1]
ORDINARY = ("setpriv", "--reuid=54321", "--regid=54321", "--clear-groups", "env")
"""The last drops the remaining capabilities."""
CHECKS = ("a slot after all of them", "nothing is left")


@cache
def find_ordinary_python() -> str:
    """Find a Python that another user may run with this installation's packages; "" if there is none."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for python in (sys.executable, f"/usr/bin/{version}"):
        tried = subprocess.run([*ORDINARY, python, "-B", "-c", "import ludus.sandbox"], capture_output=True, env=_env())
        if tried.returncode == 0:
            return python
    return ""


def _env() -> dict[str, str]:
    packages = [path for path in sys.path if path.endswith("site-packages")]
    return {"PATH": os.defpath, "TMPDIR": "/tmp", "PYTHONPATH": ":".join([str(SOURCE), *packages])}


@cache
def run_attacks(backend: str, user: str) -> Mapping[str, Any]:
    """Run all attacks in one driver."""
    python, prefix = (sys.executable, ()) if user == "driver" else (find_ordinary_python(), ORDINARY)
    done = subprocess.run(
        [*prefix, python, "-B", "-", backend],
        input=Path(hostile_driver.__file__).read_text(),  # another user may not be able to read the file itself
        capture_output=True,
        text=True,
        timeout=900,
        env=_env(),
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(params=["driver", "ordinary"])
def user(request, bwrap):
    if request.param == "ordinary":
        if os.geteuid() != 0 or not shutil.which("setpriv"):
            pytest.skip("the driver is not root: `driver` is an ordinary user")
        if not find_ordinary_python():
            pytest.skip("no Python here that another user may run")
    return request.param


@pytest.mark.parametrize("name", [*hostile_driver.PIPE_ATTACKS, *hostile_driver.SHELL_ATTACKS, *CHECKS])
def test_the_slot_goes_on_and_tells_the_truth_after_it_has_settled(bwrap, user, name):
    found = run_attacks(bwrap, user)[name]
    assert "error" not in found, found  # an agent that can end its slot can dodge its score
    assert found["left"] == 0
    assert all(found["answers"]), found["words"]
    if name in hostile_driver.PIPE_ATTACKS:
        assert found["armed"] == "3", "the attack did not reach the pipes of the shell"
