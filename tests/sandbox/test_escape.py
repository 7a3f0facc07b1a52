"""Attempts to break out of a bubblewrap slot. `test_bwrap` tests files, limits and privileges.

All targets are made by the tests: listeners on the host's loopback, files, processes and other slots.
"""

import io
import os
import socket
import subprocess
import sys
import tarfile
import time
from contextlib import suppress
from pathlib import Path

import pytest

from ludus.errors import SandboxError
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.sandbox.archive import ArchiveTooLarge
from ludus.sandbox.profiles import open_pool

SMALL = SandboxSpec(memory_mb=64, disk_mb=16, processes=64)

needs_python = pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="no python3 in the slot")


async def run_python(box: Sandbox, source: str) -> str:
    result = await box.exec("python3 -I -", stdin=source.encode(), timeout=120)
    assert result.exit_code == 0, result.text
    return result.stdout.decode()


# ---- other processes ----------------------------------------------------------------------------------------------


@needs_python
async def test_ptrace_and_the_memory_of_others_are_out_of_reach(bwrap, in_box):
    async with in_box(bwrap) as box:
        found = await run_python(
            box,
            "import ctypes, subprocess\n"
            "p = subprocess.Popen(['sleep', '20'])\n"
            "libc = ctypes.CDLL(None, use_errno=True)\n"
            "print([libc.ptrace(r, t, 0, 0) for r in (16, 0x4206) for t in (1, p.pid)])\n"
            "for pid in (1, p.pid):\n"
            "    try: open(f'/proc/{pid}/mem', 'rb').read(1); print('read', pid)\n"
            "    except OSError: print('no')\n"
            "p.kill(); p.wait()\n",
        )
        assert found.splitlines()[0] == "[-1, -1, -1, -1]"
        assert "read 1" not in found


async def test_another_slots_processes_and_files_are_out_of_sight(bwrap):
    async with open_pool(bwrap) as pool, pool.lease(SMALL) as one, pool.lease(SMALL) as two:
        await one.exec("echo s3cret-word >/workspace/s; cp s /tmp; cp s /dev/shm; cp s ~; sleep 4321 & true")
        seen = await two.exec(
            "grep -rs s3cret-word /workspace /tmp /dev/shm ~ /run; cat /proc/[0-9]*/cmdline | tr '\\0' ' '; "
            "ls /proc | grep -c '^[0-9]'; ipcs 2>/dev/null | grep -c 0x"
        )
        assert b"s3cret-word" not in seen.stdout
        assert b"4321" not in seen.stdout


# ---- privileges and devices ---------------------------------------------------------------------------------------


async def test_set_user_id_programs_give_nothing(bwrap, in_box):
    async with in_box(bwrap) as box:
        await box.exec("cp /usr/bin/id /workspace/id; chmod u+s,g+s /workspace/id")
        assert (await box.exec("/workspace/id -u; /workspace/id -g")).stdout == b"1000\n1000\n"
        flags = await box.exec(
            "grep -E '^(NoNewPrivs|CapEff|CapBnd|CapPrm)' /proc/self/status | awk '{print $2}' | sort -u"
        )
        assert flags.stdout.split() == [b"0000000000000000", b"1"]
        suid = await box.exec("find /usr/bin -perm -4000 -name su | head -1")
        if suid.stdout:
            assert (await box.exec("su root -c id </dev/null", timeout=10)).exit_code != 0
        mounts = await box.exec("awk '{print $2, $4}' /proc/mounts | grep -E '^/(workspace|tmp|home|dev/shm)'")
        assert all(b"nosuid" in line and b"nodev" in line for line in mounts.stdout.splitlines() if line)


async def test_devices_are_harmless_and_none_can_be_made(bwrap, in_box):
    async with in_box(bwrap) as box:
        devices = await box.exec("find /dev -type c -o -type b | sort")
        harmless = {b"null", b"zero", b"full", b"random", b"urandom", b"tty", b"ptmx", b"console"}
        assert {d.rpartition(b"/")[2] for d in devices.stdout.split()} <= harmless
        for kind in ("c 1 1", "b 8 0"):
            assert (await box.exec(f"mknod /workspace/d {kind}")).exit_code != 0
        for path in ("/dev/mem", "/dev/kmsg", "/dev/sda", "/dev/vda", "/dev/fuse", "/dev/kvm", "/dev/net/tun"):
            assert (await box.exec(f"head -c 1 {path}")).exit_code != 0


# ---- network ------------------------------------------------------------------------------------------------------


@needs_python
async def test_the_hosts_sockets_of_every_kind_are_out_of_reach(bwrap, in_box, tmp_path):
    tcp, udp = socket.socket(), socket.socket(type=socket.SOCK_DGRAM)
    named, abstract = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    name = f"ludus-test-{os.getpid()}"
    tmp_path.chmod(0o755)
    with tcp, udp, named, abstract:
        for listener, address in (
            (tcp, ("127.0.0.1", 0)),
            (udp, ("127.0.0.1", 0)),
            (named, str(tmp_path / "s")),
            (abstract, f"\0{name}"),
        ):
            listener.bind(address)
            listener.setblocking(False)
        for listener in (tcp, named, abstract):
            listener.listen()

        async with in_box(bwrap) as box:
            found = await run_python(
                box,
                "import socket\n"
                "def reach(family, kind, address):\n"
                "    s = socket.socket(family, kind); s.settimeout(3)\n"
                "    try: s.connect(address); s.send(b'x'); return True\n"
                "    except OSError: return False\n"
                f"print(reach(2, 1, ('127.0.0.1', {tcp.getsockname()[1]})), "
                f"reach(1, 1, {str(tmp_path / 's')!r}), reach(1, 1, {chr(0) + name!r}))\n"
                f"reach(2, 2, ('127.0.0.1', {udp.getsockname()[1]}))\n"
                "print(sorted(n for _, n in socket.if_nameindex()))\n",
            )
            assert found.splitlines() == ["False False False", "['lo']"]
        for listener in (tcp, named, abstract):
            with pytest.raises(BlockingIOError):
                listener.accept()
        with pytest.raises(BlockingIOError):
            udp.recv(1)


# ---- floods -------------------------------------------------------------------------------------------------------


@needs_python
async def test_a_flood_of_descriptors_stays_in_its_process(bwrap, in_box):
    async with in_box(bwrap, SMALL) as box:
        found = await run_python(
            box,
            "import os\nfds = []\n"
            "try:\n    while True: fds.append(os.open('/dev/null', 0))\n"
            "except OSError as e: print(e.errno, len(fds) < 5000)\n",
        )
        assert found == "24 True\n"
        assert (await box.exec("echo fine")).stdout == b"fine\n"


async def test_a_million_files_meet_the_memory_limit_and_the_pool_goes_on(bwrap):
    """The slot's file systems do not limit the number of files, but files count as memory. At most the slot is lost."""

    async with open_pool(bwrap) as pool, pool.lease(SMALL) as neighbour:
        with suppress(SandboxError):
            async with pool.lease(SMALL) as box:
                flood = "mkdir f; cd f; i=0; while ((i++ < 300000)); do : >$i || break; done"
                await box.exec(flood, timeout=3)
                names = await box.exec("ls -f /workspace/f | wc -l", cwd="/tmp")
                assert int(names.stdout or 0) < 300000  # empty if no memory was left for counting
        assert (await neighbour.exec("echo fine")).stdout == b"fine\n"
        async with pool.lease(SMALL) as fresh:
            assert (await fresh.exec("ls; echo fine")).stdout == b"fine\n"


@needs_python
async def test_an_uploaded_bomb_fills_no_more_than_the_slots_own_disk(bwrap, in_box, tmp_path):
    bomb = tmp_path / "bomb.tar.gz"
    with tarfile.open(bomb, "w:gz", compresslevel=9) as tar:
        for name in "abcd":
            info = tarfile.TarInfo(name)
            info.size = 12 * 2**20
            tar.addfile(info, io.BytesIO(bytes(info.size)))
    assert bomb.stat().st_size < 2**20

    async with in_box(bwrap, SMALL) as box:
        await box.upload(bomb, "bomb.tar.gz")
        result = await box.exec("tar xzf bomb.tar.gz")
        assert result.exit_code != 0
        assert b"No space left" in result.stderr
        assert (await box.exec("rm -f a b c d && echo fine")).stdout == b"fine\n"
        (tmp_path / "large").write_bytes(bytes(20 * 2**20))
        with pytest.raises(OSError, match="No space left"):
            await box.upload(tmp_path / "large", "large")
        with pytest.raises(ArchiveTooLarge):
            await box.upload(tmp_path / "large", "/tmp/large", max_bytes=2**20)


def test_a_killed_driver_with_64_slots_leaves_nothing(bwrap, open_folder):
    seconds = f"86399.{os.getpid()}"  # unique to this test
    script = (
        "import asyncio, sys\nfrom ludus.sandbox import SandboxSpec\n"
        "from ludus.sandbox.pool import PoolSettings\n"
        "from ludus.sandbox.profiles import open_pool\n"
        "async def main():\n"
        "    async with open_pool('bwrap', PoolSettings(max_slots=64)) as pool:\n"
        "        async def hold():\n"
        "            async with pool.lease(SandboxSpec(disk_mb=8)) as box:\n"
        f"                await box.exec('setsid sleep {seconds} & sleep {seconds} &')\n"
        "                up.append(1)\n"
        "                if len(up) == 64: print('up', flush=True)\n"
        "                await asyncio.sleep(600)\n"
        "        up = []\n"
        "        async with asyncio.TaskGroup() as group:\n"
        "            for _ in range(64): group.create_task(hold())\n"
        "asyncio.run(main())\n"
    )
    env = {**os.environ, "TMPDIR": str(open_folder)}
    driver = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=env)
    with driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == b"up\n"
        driver.kill()

    deadline = time.monotonic() + 120
    while list(open_folder.glob("ludus-*")) or _count_sleepers(seconds):
        assert time.monotonic() < deadline, "something is left two minutes later"
        time.sleep(0.1)


def _count_sleepers(seconds: str) -> int:
    found = 0
    for process in Path("/proc").glob("[1-9]*/cmdline"):
        try:
            found += process.read_bytes() == f"sleep\0{seconds}\0".encode()
        except OSError:
            continue
    return found
