"""A door in a slot: who gets through it, and that nothing else does."""

import asyncio
import os
import shutil
import socket
import subprocess
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from ludus.errors import SandboxError
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.sandbox.pool import open_pool
from ludus.sandbox.port import local_port as doorway_module
from ludus.sandbox.port.local_port import open_door

SOURCE = Path(doorway_module.__file__).parents[3]


class Says(asyncio.Protocol):
    """Says the same to everybody."""

    def __init__(self, words: bytes) -> None:
        self._words = words

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(self._words)
        transport.close()


def answering(box: Sandbox, words: bytes) -> AbstractAsyncContextManager[int]:
    """A door with somebody behind it who says that; its port."""
    return open_door(box, lambda: Says(words))


def calling(port: int) -> str:
    return f"exec 3<>/dev/tcp/127.0.0.1/{port} && cat <&3"


def test_a_door_leads_to_the_driver_and_nowhere_else(bwrap):
    async def main() -> None:
        spec = SandboxSpec()
        async with open_pool(bwrap) as pool, pool.lease(spec) as box, pool.lease(spec) as other:  # noqa: SIM117
            async with answering(box, b"mine") as port, answering(other, b"theirs") as next_door:
                assert (await box.exec(calling(port))).stdout == b"mine"
                assert (await other.exec(calling(next_door))).stdout == b"theirs"
                for place, closed in ((box, next_door), (other, port)):
                    if port != next_door:
                        assert (await place.exec(calling(closed))).exit_code != 0
                with socket.create_server(("127.0.0.1", 0)) as host:
                    assert (await box.exec(calling(host.getsockname()[1]))).exit_code != 0
                with pytest.raises(ConnectionRefusedError):  # nor does the host have a way in
                    socket.create_connection(("127.0.0.1", port), timeout=5)
                devices = await box.exec("cat /proc/net/dev | tail -n +3 | cut -d: -f1")
                assert devices.stdout.split() == [b"lo"]

    asyncio.run(main())


def test_a_slot_with_a_network_has_its_door_on_the_hosts_loopback(bwrap, in_box):
    async def test(box: Sandbox) -> None:
        async with answering(box, b"shared") as port:
            assert (await box.exec(calling(port))).stdout == b"shared"
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert await reader.read() == b"shared"
            writer.close()
            await writer.wait_closed()

    in_box(bwrap, test, SandboxSpec(network=True))


def test_a_slot_with_layers_has_a_door_too(bwrap):
    async def main() -> None:
        async with open_pool(bwrap) as pool, pool.lease(SandboxSpec()) as box:
            await box.write("file", b"x")
            async with pool.lease(await pool.snapshot(box)) as layered, answering(layered, b"layered") as port:
                assert (await layered.exec(calling(port))).stdout == b"layered"

    asyncio.run(main())


def test_a_slot_elsewhere_has_none():
    class Elsewhere:
        """A slot of some other kind."""

    async def main() -> None:
        async with answering(Elsewhere(), b""):  # pyright: ignore[reportArgumentType]
            pass

    with pytest.raises(SandboxError, match="has no door") as caught:
        asyncio.run(main())
    assert not caught.value.retryable


def test_a_slot_that_is_gone_says_so(bwrap):
    async def main() -> None:
        async with open_pool(bwrap) as pool, pool.lease(SandboxSpec()) as box:
            await box.close()
            with pytest.raises(SandboxError):
                async with answering(box, b""):
                    pass

    asyncio.run(main())


def test_giving_up_on_a_door_leaves_nothing_open(bwrap, in_box):
    async def test(box: Sandbox) -> None:
        opening = asyncio.ensure_future(answering(box, b"never").__aenter__())
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        async with answering(box, b"later") as port:
            assert (await box.exec(calling(port))).stdout == b"later"

    in_box(bwrap, test)


# ---- drivers with fewer powers ------------------------------------------------------------------------------------

PROBE = """
import asyncio, sys
from ludus.sandbox import SandboxSpec
from ludus.sandbox.local.bwrap import Bwrap
from ludus.sandbox.port.local_port import open_door

async def main():
    bwrap = Bwrap()
    box = await bwrap.create(SandboxSpec())
    try:
        async with open_door(box, asyncio.Protocol) as port:
            found = await box.exec(f"exec 3<>/dev/tcp/127.0.0.1/{port}")
        print("open" if found.exit_code == 0 else found)
    finally:
        await box.close()
        bwrap.close()

asyncio.run(main())
"""


def probe(*prefix: str, python: str = sys.executable) -> str:
    packages = [path for path in sys.path if path.endswith("site-packages")]
    env = {"PATH": os.defpath, "TMPDIR": "/tmp", "PYTHONPATH": ":".join([str(SOURCE), *packages])}
    command = [*prefix, python, "-B", "-c", PROBE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)
    return done.stdout.strip() or done.stderr


needs_root = pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="the driver is not root")


@needs_root
def test_root_without_its_powers_makes_doors(bwrap):
    powers = "-sys_admin,-sys_ptrace"
    assert probe("setpriv", f"--bounding-set={powers}", f"--inh-caps={powers}") == "open"


@needs_root
def test_a_normal_user_makes_doors(bwrap):
    prefix = (
        "setpriv",
        "--reuid=54321",
        "--regid=54321",
        "--clear-groups",
        "env",
    )  # the last drops what is left of root
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for python in (sys.executable, f"/usr/bin/{version}"):
        tried = subprocess.run([*prefix, python, "-c", ""], capture_output=True)
        if tried.returncode == 0:
            break
    else:
        pytest.skip("no Python here that another user may run")
    found = probe(*prefix, python=python)
    if "No module named" in found or "Permission denied" in found:
        pytest.skip(f"another user cannot import this installation: {found[-200:]}")
    assert found == "open"
