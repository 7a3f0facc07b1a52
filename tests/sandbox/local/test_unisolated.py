"""`local` slots: a folder and a bash, without isolation."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ludus.errors import SandboxError
from ludus.sandbox import SandboxSpec
from ludus.sandbox.local.unisolated import Local
from ludus.sandbox.processes import is_dead


@asynccontextmanager
async def open_local() -> AsyncGenerator[Local]:
    local = Local()
    try:
        yield local
    finally:
        await local.close()


async def test_workspace_and_tmp_are_folders_of_the_slot():
    async with open_local() as local:
        box = await local.create(SandboxSpec())
        workspace, tmp = box.resolve("/workspace"), box.resolve("/tmp/x")
        assert (await box.exec("pwd; echo $HOME; echo $TMPDIR/x")).stdout.decode().split() == [
            workspace,
            workspace,
            tmp,
        ]
        assert box.resolve("/etc/passwd") == "/etc/passwd"
        await box.close()
        assert not Path(workspace).exists()


async def test_processes_that_left_the_shells_tree_are_found_by_their_mark():
    async with open_local() as local:
        one, two = await local.create(SandboxSpec()), await local.create(SandboxSpec())
        command = "(setsid sleep 617.5 >/dev/null 2>&1 & echo $!)"
        mine, theirs = [int((await box.exec(command)).stdout) for box in (one, two)]
        await one.settle()
        assert (is_dead(mine), is_dead(theirs)) == (True, False)
        await two.close()
        assert is_dead(theirs)
        await one.close()


async def test_a_base_is_copied_for_each_slot(tmp_path):
    (tmp_path / "file").write_text("text")

    async with open_local() as local:
        box = await local.create(SandboxSpec(base=(str(tmp_path),)))
        await box.write("file", b"changed")
        spec = await local.snapshot(box)
        fork = await local.create(spec)
        assert await fork.read("file") == b"changed"
        assert (tmp_path / "file").read_text() == "text"
        await box.close()
        await fork.close()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (SandboxSpec(caches=(("/usr", "/opt/cache"),)), "sandbox.caches needs mounts"),
        (SandboxSpec(base=("/no/such/folder",)), "sandbox.base '/no/such/folder' cannot be used"),
    ],
)
async def test_what_a_local_slot_cannot_have_is_refused(spec, message):
    async with open_local() as local:
        with pytest.raises(SandboxError, match=message) as refused:
            await local.create(spec)
        assert not refused.value.retryable
