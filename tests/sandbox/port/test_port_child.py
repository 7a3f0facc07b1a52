"""The child process that makes a listening socket in a slot's network."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ludus.sandbox.port import port_child

SOURCE = Path(port_child.__file__).parents[3]
CHILD = [sys.executable, "-I", "-S", str(port_child.__file__)]


def test_the_socket_listens_in_the_network_of_the_process():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        subprocess.run([*CHILD, str(os.getpid()), str(theirs.fileno())], pass_fds=(theirs.fileno(),), check=True)
        _, (fd,), _, _ = socket.recv_fds(ours, 1, 1)
    with socket.socket(fileno=fd) as listening:
        host, _ = listening.getsockname()
        assert host == "127.0.0.1"
        with socket.create_connection(listening.getsockname()) as client, listening.accept()[0] as server:
            client.sendall(b"x")
            assert server.recv(1) == b"x"


def test_a_process_that_is_gone_is_an_error_on_stderr():
    ended = subprocess.Popen(["true"])
    ended.wait()
    done = subprocess.run([*CHILD, str(ended.pid), "0"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("FileNotFoundError")


# ---- drivers with fewer rights ------------------------------------------------------------------------------------

PROBE = """
import asyncio, sys
from ludus.sandbox import SandboxSpec
from ludus.sandbox.local.bwrap import Bwrap
from ludus.sandbox.port.local_port import open_port

async def main():
    bwrap = Bwrap()
    box = await bwrap.create(SandboxSpec())
    try:
        async with open_port(box, asyncio.Protocol) as port:
            found = await box.exec(f"exec 3<>/dev/tcp/127.0.0.1/{port}")
        print("open" if found.exit_code == 0 else found)
    finally:
        await box.close()
        await bwrap.close()

asyncio.run(main())
"""


def probe(*prefix: str, python: str = sys.executable) -> str:
    """Open a port in a driver that runs behind `prefix`. Returns "open", or what went wrong."""
    packages = [path for path in sys.path if path.endswith("site-packages")]
    env = {"PATH": os.defpath, "TMPDIR": "/tmp", "PYTHONPATH": ":".join([str(SOURCE), *packages])}
    command = [*prefix, python, "-B", "-c", PROBE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)
    return done.stdout.strip() or done.stderr


needs_root = pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="the driver is not root")


@needs_root
def test_root_without_capabilities_opens_ports(bwrap):
    capabilities = "-sys_admin,-sys_ptrace"
    assert probe("setpriv", f"--bounding-set={capabilities}", f"--inh-caps={capabilities}") == "open"


@needs_root
def test_a_normal_user_opens_ports(bwrap):
    prefix = (
        "setpriv",
        "--reuid=54321",
        "--regid=54321",
        "--clear-groups",
        "env",
    )  # the last drops the remaining capabilities
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
