"""What backends say about the limits of a slot."""

from pathlib import Path

import pytest

from ludus.sandbox import SandboxSpec
from ludus.sandbox.limits import explain_exit
from ludus.sandbox.local.cgroups import Cgroups, describe_limits
from ludus.sandbox.remote.remote_sandbox import SlotdInfo, describe_server_limits

GROUPS = Cgroups({"memory": Path("/g"), "pids": Path("/g")}, 2)


@pytest.mark.parametrize(
    ("limits", "strong"),
    [
        (describe_limits(GROUPS), [True, True, True, True]),
        (describe_limits(Cgroups({}, 2)), [False, False, True, True]),
        (describe_server_limits(SlotdInfo(1, "3.8", "namespaces"), container=()), [False, True, True, True]),
        (describe_server_limits(SlotdInfo(1, "3.8", "none"), container=("memory",)), [True, False, False, True]),
    ],
)
def test_every_backend_reports_the_same_four_limits(limits, strong):
    assert [status.limit for status in limits] == ["memory", "processes", "disk", "time and output"]
    assert [status.strong for status in limits] == strong
    assert all(status.by for status in limits)


def test_a_program_that_was_killed_is_said_to_have_used_too_much_memory():
    assert explain_exit(3, SandboxSpec()) == "exit code 3"
    assert "more memory than the slot has, 64 MB (sandbox.memory_mb" in explain_exit(137, SandboxSpec(memory_mb=64))
