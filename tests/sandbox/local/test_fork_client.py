"""The driver's side of the fork server."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, nullcontext

import pytest

from ludus.errors import SandboxError
from ludus.sandbox.local.fork_client import ForkServer, ForkStarter, SlotProgram
from ludus.sandbox.processes import is_dead
from ludus.sandbox.shell_starter import ShellEnds


def make_program(script: str, **variables: str) -> SlotProgram:
    environment = {"PATH": os.defpath, **variables}
    return SlotProgram(program=("/bin/sh", "-c", script, "sh"), home="/", environment=environment, limits={})


@asynccontextmanager
async def launch_server() -> AsyncGenerator[ForkServer]:
    server = ForkServer.launch()
    try:
        async with asyncio.timeout(120):
            yield server
    finally:
        server.close()
        await asyncio.to_thread(server.wait)
        server.close()


class Pipes:
    """Four pipes, of which a test reads two."""

    def __init__(self) -> None:
        self._fds = [os.pipe2(os.O_CLOEXEC) for _ in range(4)]
        (command, _), (self.status, status), (self.stdout, stdout), (_, stderr) = self._fds
        self.ends = ShellEnds(command, status, stdout, stderr)

    def close(self) -> None:
        for fd in {fd for pair in self._fds for fd in pair}:
            os.close(fd)


@pytest.fixture
def pipes():
    made = Pipes()
    yield made
    made.close()


async def test_a_shell_gets_its_descriptors_variables_and_folder_and_nothing_else(pipes):
    async with launch_server() as server:
        script = 'echo "$LONG" | wc -c >&5; echo "$1 $2" >&5; ls /proc/self/fd >&5; exit 3'
        program = make_program(script, LONG="x" * 100_000)
        shell = await server.start_shell(0, program, b"/a b", pipes.ends, ())
        assert await shell.exited == 3
        words = os.read(pipes.stdout, 10_000).decode().split()
        assert words == [
            "100001",
            "/a",
            "b",
            "/",
            "0",
            "1",
            "2",
            "3",
            "4",
            "5",
            "6",
            "7",
        ]  # 7: the folder that ls reads


async def test_a_shell_that_is_killed_has_the_code_of_a_shell(pipes):
    async with launch_server() as server:
        shell = await server.start_shell(0, make_program("sleep 621.5"), b"/", pipes.ends, ())
        os.kill(shell.pid, signal.SIGTERM)
        assert await shell.exited == 143


async def test_a_program_that_cannot_be_run_says_why(pipes):
    async with launch_server() as server:
        program = SlotProgram(program=("/no/such/shell",), home="/", environment={}, limits={})
        shell = await server.start_shell(0, program, b"/", pipes.ends, ())
        assert await shell.exited == 125


async def test_a_keeper_that_is_gone_is_an_error(pipes):
    async with launch_server() as server:
        program = SlotProgram(program=("/bin/sh",), home="/", environment={}, limits={}, keeper=2**22 + 1)
        with pytest.raises(SandboxError, match="cannot be entered"):
            await server.start_shell(server.make_slot(), program, b"/", pipes.ends, ())


async def test_every_descendant_of_a_copy_is_ended(pipes):
    """Also those that have left the tree and cleared their environment."""

    async with launch_server() as server:
        own, other = await server.copy(), await server.copy()
        starter = ForkStarter(
            own, 0, make_program("(env -i setsid sleep 622.5 & echo $! >&4); exit 0"), lambda: nullcontext(())
        )
        shell = await starter.start_shell(pipes.ends, b"/")
        assert await shell.exited == 0
        orphan = int(os.read(pipes.status, 100))
        await other.end_processes(0)
        assert not is_dead(orphan)
        await starter.end_processes()
        assert is_dead(orphan)
        assert await own.find_pid() != await other.find_pid()
        own.close()
        other.close()


async def test_a_driver_that_closes_the_connection_leaves_no_process(pipes):
    async with launch_server() as server:
        shell = await server.start_shell(
            0, make_program("setsid sleep 623.5 & echo $! >&4; wait"), b"/", pipes.ends, ()
        )
        pid = await asyncio.to_thread(lambda: int(os.read(pipes.status, 100)))
        server.close()
        await asyncio.to_thread(server.wait)
        assert is_dead(pid)
        assert is_dead(shell.pid)


async def test_the_end_of_the_server_reaches_everyone_who_waits(pipes):
    async with launch_server() as server:
        errors: list[SandboxError] = []
        forget = server.on_end(lambda error: errors.append(error))
        server.on_end(errors.append)
        forget()
        shell = await server.start_shell(0, make_program("sleep 624.5"), b"/", pipes.ends, ())
        os.kill(await server.find_pid(), signal.SIGKILL)
        assert await shell.exited == 137
        assert not server.alive
        assert [error.evidence.outside for error in errors] == [
            "the program that starts the slots' processes has ended"
        ]
        with pytest.raises(SandboxError, match="has ended"):
            await server.start_shell(0, make_program(""), b"/", pipes.ends, ())
        with pytest.raises(SandboxError, match="has ended"):
            await server.end_processes(0)
        os.kill(shell.pid, signal.SIGKILL)  # without namespaces, nothing else ends it
