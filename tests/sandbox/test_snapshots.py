"""Slots that start from a folder, or from the workspace of another slot."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ludus.errors import SandboxError
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.sandbox.pool import Pool, PoolSettings
from ludus.sandbox.profiles import open_pool
from ludus.sandbox.shell_sandbox import ShellSandbox


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    (folder / "src" / "deep").mkdir(parents=True)
    (folder / "gone").mkdir()
    for name in ("README", "src/a", "src/deep/b", "gone/x", "gone/y"):
        (folder / name).write_text(name)
    (folder / "run").write_text("echo ran")
    (folder / "run").chmod(0o755)
    (folder / "link").symlink_to("README")
    for path in (tmp_path, *tmp_path.parents[:3]):
        if path != Path("/tmp") and path.is_relative_to("/tmp"):
            path.chmod(path.stat().st_mode | 0o011)
    return folder


@asynccontextmanager
async def in_pool(backend: str) -> AsyncGenerator[Pool]:
    async with asyncio.timeout(300), open_pool(backend, PoolSettings(max_slots=8)) as pool:
        yield pool


async def tree(box: Sandbox) -> str:
    return (await box.exec("find . -mindepth 1 | sort; cat $(find . -type f | sort)", cwd="/workspace")).text


async def test_a_slot_starts_with_its_base_and_changes_only_its_own_view(backend, base):
    spec = SandboxSpec(disk_mb=32, base=(str(base),))

    async with in_pool(backend) as pool:
        async with pool.lease(spec) as one, pool.lease(spec) as two:
            before = await tree(two)
            assert "./src/deep/b" in before
            changed = await one.exec(
                "./run && echo more >>README && rm src/a && rm -r gone && mkdir gone && touch -d 2001-02-03 run && "
                "chmod 600 run && mv src/deep moved && ln -sf x link"
            )
            assert changed.exit_code == 0, changed.text
            assert await tree(two) == before
            await one.reset()
            assert await tree(one) == before
        assert (base / "README").read_text() == "README"
        assert (base / "src" / "a").exists()


async def test_every_slot_of_a_base_may_change_it_and_so_may_those_of_several(backend, base, tmp_path):
    other = tmp_path / "other"
    other.mkdir(mode=0o755)
    (other / "o").write_text("o")
    change = "echo x >>src/deep/b && rm README && mkdir src/deep/new"

    async with in_pool(backend) as pool:
        one, both = SandboxSpec(disk_mb=8, base=(str(base),)), SandboxSpec(disk_mb=8, base=(str(base), str(other)))
        async with pool.lease(SandboxSpec(disk_mb=8, base=(str(other),))) as box:
            assert (await box.exec("echo x >>o")).exit_code == 0
        for spec in (one, one, await _snapshot(pool, one, "echo >later")):
            async with pool.lease(spec) as box:
                assert (await box.exec(change)).text == ""
        async with pool.lease(both) as box:
            assert (await box.exec(f"{change} && echo x >>o && rm o")).text == ""


async def _snapshot(pool: Pool, spec: SandboxSpec, command: str) -> SandboxSpec:
    async with pool.lease(spec) as box:
        await box.exec(command)
        return await pool.snapshot(box)


async def test_a_snapshot_is_where_other_slots_start(backend, base):
    async with in_pool(backend) as pool:
        async with pool.lease(SandboxSpec(disk_mb=32, base=(str(base),))) as box:
            await box.exec("rm -r gone && mkdir gone && echo n >gone/new; rm src/a; echo more >>README; chmod 700 src")
            await box.exec("ln -s /etc/passwd out; touch -d 2001-02-03T00:00Z run; printf 'odd' >$'a\\nb'; mkdir empty")
            want = await tree(box)
            spec = await pool.snapshot(box)
            await box.exec("rm -rf *")
        async with pool.lease(spec) as one, pool.lease(spec) as two:
            assert await tree(one) == await tree(two) == want
            stat = await one.exec("stat -c '%a %Y' run src | head -1; stat -c %a src; readlink out")
            assert stat.stdout.split() == [b"755", b"981158400", b"700", b"/etc/passwd"]
            assert (await one.exec("rm README; echo x >>src/deep/b; rmdir empty; rm gone/new")).exit_code == 0
            second = await pool.snapshot(one)
            want_two = await tree(one)
            async with pool.lease(second) as three:
                assert await tree(three) == want_two
            assert await tree(two) == want


async def test_a_slot_that_cannot_be_copied_is_reported(backend, monkeypatch):
    monkeypatch.setattr(ShellSandbox.pack, "__kwdefaults__", {"max_bytes": 1_000_000})
    monkeypatch.setattr(ShellSandbox.pack_changes, "__kwdefaults__", {"max_bytes": 1_000_000})

    async with in_pool(backend) as pool, pool.lease(SandboxSpec(disk_mb=32)) as box:
        await box.exec("truncate -s 3M holes; touch -d @9223372036854775807 odd 2>/dev/null")
        with pytest.raises(SandboxError, match=r"no snapshot could be made: .*larger than the limit"):
            await pool.snapshot(box)
        await box.exec("rm holes")
        async with pool.lease(await pool.snapshot(box)) as fork:
            assert (await fork.exec("ls")).stdout == b"odd\n"


async def test_a_slot_without_a_base_can_be_forked_too(backend):
    async with in_pool(backend) as pool:
        async with pool.lease(SandboxSpec(disk_mb=32)) as box:
            await box.exec("mkdir -p a/b; echo set up >a/b/c")
            spec = await pool.snapshot(box)
            forks = await asyncio.gather(*(_fork(pool, spec, n) for n in range(4)))
        assert forks == [f"set up\n{n}\n".encode() for n in range(4)]


async def _fork(pool: Pool, spec: SandboxSpec, number: int) -> bytes:
    async with pool.lease(spec) as box:
        await box.exec(f"echo {number} >>a/b/c")
        return await box.read("a/b/c")


async def test_changes_have_a_size_limit_and_are_gone_with_the_slot(bwrap, base):
    async with in_pool(bwrap) as pool, pool.lease(SandboxSpec(disk_mb=8, base=(str(base),))) as box:
        full = await box.exec("head -c 20M /dev/zero >big")
        assert b"No space left" in full.stderr
        await box.reset()
        assert (await box.exec("head -c 6M /dev/zero >big")).exit_code == 0
        assert b"Read-only" in (await box.exec("touch /run/ludus/changes/x")).stderr
        privileges = await box.exec("grep CapEff /proc/self/status; id -u; unshare -U true; mount -t tmpfs x /tmp")
        assert privileges.stdout.split() == [b"CapEff:", b"0000000000000000", b"1000"]
        assert privileges.exit_code != 0


async def test_shared_caches_in_a_closed_folder_are_there_too(bwrap, tmp_path):
    """Slots of root have user ids of their own, which cannot pass through its home."""
    tools = tmp_path / "home" / "tools"
    (tools / "sub").mkdir(parents=True)
    (tools / "sub" / "run").write_text("#!/bin/sh\necho here\n")
    (tools / "sub" / "run").chmod(0o700)
    (tools / "link").symlink_to("sub/run")
    single = tmp_path / "home" / "list.txt"
    single.write_text("one\n")
    single.chmod(0o600)
    (tmp_path / "home").chmod(0o700)
    spec = SandboxSpec(disk_mb=8, caches=((str(tools), "/tools"), (str(single), "/list.txt")))
    async with in_pool(bwrap) as pool:
        for _ in range(2):
            async with pool.lease(spec) as box:
                done = await box.exec("/tools/link && cat /list.txt && touch /tools/new")
                assert b"here\none\n" in done.stdout and done.exit_code


async def test_shared_caches_are_there_and_read_only(bwrap, base):
    async with in_pool(bwrap) as pool, pool.lease(SandboxSpec(disk_mb=8, caches=((str(base), "/mirror"),))) as box:
        assert (await box.exec("cat /mirror/README")).stdout == b"README"
        assert b"Read-only" in (await box.exec("touch /mirror/x")).stderr


async def test_a_base_that_does_not_exist_is_reported(backend, tmp_path):
    async with in_pool(backend) as pool:
        with pytest.raises(SandboxError):
            async with pool.lease(SandboxSpec(disk_mb=8, base=(str(tmp_path / "missing"),))):
                pass
        async with pool.lease(SandboxSpec(disk_mb=8)) as box:
            assert (await box.exec("echo fine")).stdout == b"fine\n"
