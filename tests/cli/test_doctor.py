"""`ludus doctor`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli_kit import (
    Ludus,
)

DOCTOR = (sys.executable, "-c", "import sys; from ludus.cli import main; sys.exit(main())", "doctor", "--json")
HIDE_PROC = 'mount -t tmpfs none /proc && exec "$@"'


def test_doctor_for_people_and_machines(ludus: Ludus):
    code, out, _ = ludus("doctor")
    assert "python: 3." in out
    findings = json.loads(ludus("doctor", "--json").out)
    assert code == int(any(finding["status"] == "fail" for finding in findings))


@pytest.mark.parametrize(
    ("space", "inside"),
    [
        (("unshare", "-U"), ()),
        (("unshare", "-Ur"), ()),
        (("unshare", "-U"), ("env", "-u", "HOME", "-u", "XDG_CACHE_HOME")),
        (("unshare", "-U", "--map-user=12345"), ("env", "-u", "HOME", "-u", "XDG_CACHE_HOME")),
        (("unshare", "-Urmpf", "--mount-proc"), ()),
        (("unshare", "-Urm"), ("sh", "-c", HIDE_PROC, "sh")),
    ],
    ids=["no map", "root", "no map, no home", "unknown user without home", "own processes", "no /proc"],
)
def test_doctor_in_odd_user_namespaces(space: tuple[str, ...], inside: tuple[str, ...], tmp_path: Path):
    trial = "mount -t tmpfs none /proc" if HIDE_PROC in inside else "true"
    try:
        allowed = subprocess.run([*space, "sh", "-c", trial], capture_output=True, timeout=60, check=False)
    except FileNotFoundError:
        pytest.skip("there is no unshare")
    if allowed.returncode:
        pytest.skip(f"not allowed here: {allowed.stderr.decode()}")
    done = subprocess.run(
        [*space, *inside, *DOCTOR], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert "Traceback" not in done.stderr
    findings = json.loads(done.stdout)
    assert done.returncode == int(any(finding["status"] == "fail" for finding in findings))
    names = [finding["what"] for finding in findings]
    assert {"python", "sandbox bwrap", "sandbox docker", "embedded model", "disk"} <= set(names)
