"""`ShellSandbox` on slots in which an agent tries to break file and process operations."""

import asyncio

import pytest

from ludus.errors import SandboxError
from ludus.sandbox import SandboxSpec
from ludus.sandbox.profiles import open_pool

SPEC = SandboxSpec(disk_mb=16)


async def test_variables_that_steer_programs_do_not_reach_file_operations(backend, in_box, tmp_path):
    async with in_box(backend) as box:
        await box.exec("export TAR_OPTIONS='--exclude=*' POSIXLY_CORRECT=1 QUOTING_STYLE=c LD_LIBRARY_PATH=/nowhere")
        await box.write("d/f", b"text")
        await box.download("d", tmp_path / "d")
        assert (tmp_path / "d" / "f").read_bytes() == b"text"
        with pytest.raises(FileNotFoundError):
            await box.read("missing")


async def test_a_device_that_never_ends_or_never_answers_is_refused(bwrap, in_box):
    async with in_box(bwrap) as box:
        for path in ("/dev/ptmx", "/dev/zero", "/dev/null"):
            with pytest.raises(OSError, match="not supported"):
                await box.read(path)


async def test_a_process_with_a_forged_exit_code_and_log(backend, in_box):
    async with in_box(backend) as box:
        process = await box.start("sleep 60")
        folder = f"$(dirname $(find /tmp ../jobs -path '*{process}/pid' 2>/dev/null | head -1))"
        await box.exec(f"cd {folder} && head -c 5000 /dev/zero | tr '\\0' 7 >exit && rm log && mkfifo log")
        assert await box.poll(process) == 137
        assert await box.log(process) == b""


async def test_an_execution_fails_if_its_slot_is_reset_or_closed_meanwhile(backend):
    async with asyncio.timeout(300), open_pool(backend) as pool:
        for end in ("reset", "close"):
            async with pool.lease(SPEC) as box:
                running = asyncio.create_task(box.exec("sleep 60", execution="one"))
                behind = asyncio.create_task(box.exec("echo behind", execution="two"))
                await asyncio.sleep(0)  # now the shell runs the first, and the second waits
                await getattr(box, end)()
                for each in (running, behind):
                    with pytest.raises(SandboxError):
                        await each


async def test_an_execution_that_waits_is_never_forgotten(bwrap, in_box):
    """Only finished executions are forgotten. A waiting one would otherwise run twice."""

    async with in_box(bwrap) as box:
        waiting = [asyncio.create_task(box.exec(f"echo {n} >>ran", execution=str(n))) for n in range(150)]
        await asyncio.sleep(0)
        again = [asyncio.create_task(box.exec(f"echo {n} >>ran", execution=str(n))) for n in range(150)]
        await asyncio.gather(*waiting, *again)
        assert len((await box.read("ran")).split()) == 150
