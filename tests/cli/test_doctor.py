"""`ludus doctor`."""

import json

from tests.cli_kit import (
    Ludus,
)


def test_doctor_for_people_and_machines(ludus: Ludus):
    code, out, _ = ludus("doctor")
    assert "python: 3." in out
    findings = json.loads(ludus("doctor", "--json").out)
    assert code == int(any(finding["status"] == "fail" for finding in findings))
