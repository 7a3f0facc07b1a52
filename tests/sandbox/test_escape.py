"""Ways out of a bubblewrap slot, tried from inside; `test_bwrap` has the claims about files, limits and privileges.

Targets are things that the test itself has put there: its own listeners on the host's loopback, its own files and
processes, another slot of its own.
"""

import asyncio
import io
import os
import platform
import re
import signal
import socket
import struct
import subprocess
import sys
import tarfile
import time
from contextlib import suppress
from pathlib import Path

import pytest

from ludus.errors import SandboxError
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.sandbox.archive import TooLarge, entries, extract
from ludus.sandbox.pool import open_pool
from ludus.sandbox.seccomp import MACHINES, program

SMALL = SandboxSpec(memory_mb=64, disk_mb=16, processes=64)

needs_python = pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="no python3 in the slot")
needs_filter = pytest.mark.skipif(platform.machine() not in MACHINES, reason="no filter for this machine")


async def python(box: Sandbox, source: str) -> str:
    result = await box.exec("python3 -I -", stdin=source.encode(), timeout=120)
    assert result.exit_code == 0, result.text
    return result.stdout.decode()


# ---- the system-call filter ---------------------------------------------------------------------------------------

CALL = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def attempt(number, *arguments):
    ctypes.set_errno(0)
    return libc.syscall(number, *arguments), ctypes.get_errno()
"""


@needs_python
@needs_filter
def test_every_call_on_the_list_is_refused(bwrap, in_box):
    numbers = MACHINES[platform.machine()].denied

    async def test(box: Sandbox) -> None:
        told = await python(box, f"{CALL}\nprint([attempt(n, 0, 0, 0, 0, 0) for n in {list(numbers.values())}])")
        results = dict(zip(numbers, eval(told), strict=True))
        allowed = {name: r for name, r in results.items() if r[0] != -1 or r[1] not in (1, 38)}
        assert allowed == {}

    in_box(bwrap, test)


@needs_python
@needs_filter
def test_namespaces_cannot_be_made_nor_terminals_written_to(bwrap, in_box):
    machine = MACHINES[platform.machine()]

    async def test(box: Sandbox) -> None:
        flags = [1 << bit for bit in (7, 17, 25, 26, 27, 28, 29, 30)]
        told = await python(
            box,
            f"{CALL}\nprint([attempt({machine.unshare}, f) for f in {flags}]"
            f" + [attempt({machine.clone}, f | 17, 0, 0, 0, 0) for f in {flags[1:]}]"
            f" + [attempt({machine.ioctl}, 0, request, 0) for request in (0x5412, 0x541c, 0x5423)])",
        )
        assert set(eval(told)) == {(-1, 1)}
        assert eval(await python(box, f"{CALL}\nprint(attempt(435, 0, 0))")) == (-1, 38)

    in_box(bwrap, test)


@needs_python
@pytest.mark.skipif(platform.machine() != "x86_64", reason="no second way to make calls")
@pytest.mark.parametrize(
    "call",
    [
        "ctypes.CDLL(None).syscall(0x40000000 + 39)",  # x32: getpid
        "ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()",  # 32 bits: getpid
    ],
)
def test_a_call_by_another_convention_ends_the_program(bwrap, in_box, call):
    """Its numbers mean something else, and so would get past the list."""
    source = (
        "import ctypes, mmap\n"
        "code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)\n"
        "code.write(bytes.fromhex('b814000000cd80c3'))\n"
        f"print('before', flush=True)\n{call}\nprint('after')\n"
    )

    async def test(box: Sandbox) -> None:
        done = await box.exec("python3 -I -", stdin=source.encode(), timeout=60)
        assert (done.stdout, done.exit_code) == (b"before\n", 128 + signal.SIGSYS)

    in_box(bwrap, test)


@needs_python
@needs_filter
def test_no_socket_of_a_family_that_a_network_namespace_does_not_hold(bwrap, in_box):
    """vsock speaks to the hypervisor from any network namespace; others are code that no task needs."""

    async def test(box: Sandbox) -> None:
        source = (
            "import errno, socket\n"
            "def attempt(family, kind):\n"
            "    told = set()\n"
            "    for make in (socket.socket, socket.socketpair):\n"
            "        try: make(family, kind); told.add('made')\n"
            "        except OSError as error: told.add(errno.errorcode[error.errno])\n"
            "    return told\n"
            "others = [f for f in range(48) if f not in (1, 2, 10, 16)]\n"
            "print({f: set.union(*(attempt(f, k) for k in (1, 2, 3, 5))) for f in others})\n"
            "print(attempt(1, 1), 'made' in attempt(2, 1), 'made' in attempt(16, 3))\n"
        )
        others, usual = (await python(box, source)).splitlines()
        assert {family: told for family, told in eval(others).items() if told != {"EAFNOSUPPORT"}} == {}
        assert usual == "{'made'} True True"

    in_box(bwrap, test)


@pytest.mark.parametrize("machine", MACHINES)
def test_the_filter_is_well_formed(machine):
    code = program(machine)
    steps = [struct.unpack("=HBBI", code[i : i + 8]) for i in range(0, len(code), 8)]
    assert 4 < len(steps) < 4096
    for here, (operation, if_true, if_false, _) in enumerate(steps):
        if operation & 7 == 5:
            assert here + 1 + max(if_true, if_false) < len(steps)
    assert steps[-1][3] == 0x7FFF_0000


@pytest.mark.skipif(not Path("/usr/include/asm-generic/unistd.h").exists(), reason="no kernel headers")
def test_call_numbers_are_those_of_the_kernels_headers():
    def numbers(path: str) -> dict[str, int]:
        text = Path(path).read_text() if Path(path).exists() else ""
        return {m[1]: int(m[2]) for m in re.finditer(r"#define\s+__NR(?:3264)?_(\w+)\s+(\d+)", text)}

    for machine, path in (
        ("aarch64", "/usr/include/asm-generic/unistd.h"),
        ("x86_64", "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    ):
        known = numbers(path)
        ours = MACHINES[machine]
        numbered = {**ours.denied, "clone": ours.clone, "unshare": ours.unshare, "ioctl": ours.ioctl}
        numbered |= {"socket": ours.socket, "socketpair": ours.socketpair}
        wrong = {n: v for n, v in numbered.items() if n in known and known[n] != v}
        assert wrong == {}


def test_no_filter_where_none_is_known():
    assert program("m68k") == b""


@pytest.mark.parametrize(
    ("needs", "command"),
    [
        (
            "git",
            "git init -q r && cd r && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x && git log",
        ),
        ("gcc", "printf 'int main(void){return 0;}' >a.c && gcc a.c -o a && ./a"),
        ("python3", "python3 -c 'import multiprocessing as m; assert m.Pool(2).map(abs, [-1]) == [1]'"),
        ("python3", "python3 -c 'import asyncio; asyncio.run(asyncio.create_subprocess_exec(\"true\"))'"),
        ("python3", 'python3 -c \'import sqlite3; sqlite3.connect("x.db").execute("create table t(a)")\''),
        ("python3", "python3 -c 'import socket; a, b = socket.socketpair(); a.send(b\"x\"); assert b.recv(1)'"),
        ("perl", "perl -e 'fork() or exit 0; wait; exit $?'"),
        ("tar", "tar cf - /usr/bin/env | tar tf - && find /usr/lib -maxdepth 1 | sort | head -5 | xargs ls -d"),
        ("make", "printf 'all:\\n\\techo hi\\n' >Makefile && make -j2"),
        ("timeout", "timeout 5 bash -c 'ulimit -a; nice -n 5 true; date; id; hostname; df .; free'"),
    ],
)
def test_ordinary_programs_run_under_the_filter(bwrap, in_box, needs, command):
    if not Path("/usr/bin", needs).exists():
        pytest.skip(f"no {needs}")

    async def test(box: Sandbox) -> None:
        result = await box.exec(command)
        assert result.exit_code == 0, result.text

    in_box(bwrap, test)


# ---- other processes ----------------------------------------------------------------------------------------------


@needs_python
def test_ptrace_and_the_memory_of_others_are_out_of_reach(bwrap, in_box):
    async def test(box: Sandbox) -> None:
        told = await python(
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
        assert told.splitlines()[0] == "[-1, -1, -1, -1]"
        assert "read 1" not in told

    in_box(bwrap, test)


def test_another_slots_processes_and_files_are_out_of_sight(bwrap):
    async def main() -> None:
        async with open_pool(bwrap) as pool, pool.lease(SMALL) as one, pool.lease(SMALL) as two:
            await one.exec("echo s3cret-word >/workspace/s; cp s /tmp; cp s /dev/shm; cp s ~; sleep 4321 & true")
            seen = await two.exec(
                "grep -rs s3cret-word /workspace /tmp /dev/shm ~ /run; cat /proc/[0-9]*/cmdline | tr '\\0' ' '; "
                "ls /proc | grep -c '^[0-9]'; ipcs 2>/dev/null | grep -c 0x"
            )
            assert b"s3cret-word" not in seen.stdout
            assert b"4321" not in seen.stdout

    asyncio.run(main())


@needs_python
@needs_filter
def test_the_kernels_key_rings_are_out_of_reach(bwrap, in_box):
    key, request, control = (MACHINES[platform.machine()].denied[n] for n in ("add_key", "request_key", "keyctl"))

    async def test(box: Sandbox) -> None:
        told = await python(
            box,
            f"{CALL}\nprint(attempt({key}, b'user', b'x', b'y', 1, -3), attempt({request}, b'user', b'x', 0, -3), "
            f"*(attempt({control}, 0, ring, 1) for ring in (-1, -2, -3, -4, -5)))",
        )
        assert told.count("(-1, 1)") == 7
        keys = await box.exec("cat /proc/keys 2>/dev/null | wc -l")
        assert int(keys.stdout) <= 2  # nothing of the host's

    in_box(bwrap, test)


# ---- privileges and devices ---------------------------------------------------------------------------------------


def test_set_user_id_programs_give_nothing(bwrap, in_box):
    async def test(box: Sandbox) -> None:
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

    in_box(bwrap, test)


def test_devices_are_harmless_and_none_can_be_made(bwrap, in_box):
    async def test(box: Sandbox) -> None:
        devices = await box.exec("find /dev -type c -o -type b | sort")
        harmless = {b"null", b"zero", b"full", b"random", b"urandom", b"tty", b"ptmx", b"console"}
        assert {d.rpartition(b"/")[2] for d in devices.stdout.split()} <= harmless
        for kind in ("c 1 1", "b 8 0"):
            assert (await box.exec(f"mknod /workspace/d {kind}")).exit_code != 0
        for path in ("/dev/mem", "/dev/kmsg", "/dev/sda", "/dev/vda", "/dev/fuse", "/dev/kvm", "/dev/net/tun"):
            assert (await box.exec(f"head -c 1 {path}")).exit_code != 0

    in_box(bwrap, test)


# ---- network ------------------------------------------------------------------------------------------------------


@needs_python
def test_the_hosts_sockets_of_every_kind_are_out_of_reach(bwrap, in_box, tmp_path):
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

        async def test(box: Sandbox) -> None:
            told = await python(
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
            assert told.splitlines() == ["False False False", "['lo']"]

        in_box(bwrap, test)
        for listener in (tcp, named, abstract):
            with pytest.raises(BlockingIOError):
                listener.accept()
        with pytest.raises(BlockingIOError):
            udp.recv(1)


# ---- floods -------------------------------------------------------------------------------------------------------


@needs_python
def test_a_flood_of_descriptors_stays_in_its_process(bwrap, in_box):
    async def test(box: Sandbox) -> None:
        told = await python(
            box,
            "import os\nfds = []\n"
            "try:\n    while True: fds.append(os.open('/dev/null', 0))\n"
            "except OSError as e: print(e.errno, len(fds) < 5000)\n",
        )
        assert told == "24 True\n"
        assert (await box.exec("echo fine")).stdout == b"fine\n"

    in_box(bwrap, test, SMALL)


def test_a_million_files_meet_the_memory_limit_and_the_pool_goes_on(bwrap):
    """A file system has no limit on names of its own: they count as memory. That may cost the slot, never more."""

    async def main() -> None:
        async with open_pool(bwrap) as pool, pool.lease(SMALL) as neighbour:
            with suppress(SandboxError):
                async with pool.lease(SMALL) as box:
                    flood = "mkdir f; cd f; i=0; while ((i++ < 300000)); do : >$i || break; done"
                    await box.exec(flood, timeout=3)
                    names = await box.exec("ls -f /workspace/f | wc -l", cwd="/tmp")
                    assert int(names.stdout or 0) < 300000  # nothing if there was no memory left to count
            assert (await neighbour.exec("echo fine")).stdout == b"fine\n"
            async with pool.lease(SMALL) as fresh:
                assert (await fresh.exec("ls; echo fine")).stdout == b"fine\n"

    asyncio.run(main())


@needs_python
def test_an_uploaded_bomb_fills_no_more_than_the_slots_own_disk(bwrap, in_box, tmp_path):
    bomb = tmp_path / "bomb.tar.gz"
    with tarfile.open(bomb, "w:gz", compresslevel=9) as tar:
        for name in "abcd":
            info = tarfile.TarInfo(name)
            info.size = 12 * 2**20
            tar.addfile(info, io.BytesIO(bytes(info.size)))
    assert bomb.stat().st_size < 2**20

    async def test(box: Sandbox) -> None:
        await box.upload(bomb, "bomb.tar.gz")
        result = await box.exec("tar xzf bomb.tar.gz")
        assert result.exit_code != 0
        assert b"No space left" in result.stderr
        assert (await box.exec("rm -f a b c d && echo fine")).stdout == b"fine\n"
        (tmp_path / "large").write_bytes(bytes(20 * 2**20))
        with pytest.raises(OSError, match="No space left"):
            await box.upload(tmp_path / "large", "large")
        with pytest.raises(TooLarge):
            await box.upload(tmp_path / "large", "/tmp/large", max_bytes=2**20)

    in_box(bwrap, test, SMALL)


# ---- archives from a slot -----------------------------------------------------------------------------------------


def hostile(*members: tuple[str, bytes, str | bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, kind, content in members:
            info = tarfile.TarInfo(name)
            info.type, info.mode = kind, 0o6777
            if isinstance(content, bytes):
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
            else:
                info.linkname = content
                tar.addfile(info)
    return buffer.getvalue()


REG, SYM, LNK, DIR, FIFO, CHR = (
    tarfile.REGTYPE,
    tarfile.SYMTYPE,
    tarfile.LNKTYPE,
    b"5",
    tarfile.FIFOTYPE,
    tarfile.CHRTYPE,
)


@pytest.mark.parametrize(
    "archive",
    [
        hostile(("../out", REG, b"x")),
        hostile(("a/../../out", REG, b"x")),
        hostile(("/tmp/ludus-out", REG, b"x"), ("//out", REG, b"x")),
        hostile(("link", SYM, ".."), ("link/out", REG, b"x")),
        hostile(("link", SYM, "/"), ("link", DIR, ""), ("link/out", REG, b"x")),
        hostile(("d", DIR, ""), ("d/link", SYM, "../.."), ("d/link/out", REG, b"x")),
        hostile(("hard", LNK, "../secret"), ("hard", REG, b"x")),
        hostile(("hard", LNK, "/etc/passwd")),
        hostile(("pipe", FIFO, ""), ("device", CHR, "")),
        hostile(("here", SYM, "../secret"), ("here", REG, b"x")),
        hostile(("secret", SYM, "../secret"), ("copy", LNK, "secret")),
        hostile(("a", DIR, ""), ("a/b", DIR, ""), ("a/b/up", SYM, "../.."), ("out", SYM, "a/b/up/../secret")),
        hostile(("a", DIR, ""), ("a/b", SYM, "."), ("a/c", SYM, "b/../../secret"), ("a/d", SYM, "./b/.././../secret")),
    ],
)
def test_nothing_lands_outside_the_folder_of_a_download(archive, tmp_path):
    (tmp_path / "secret").write_text("mine")
    target = tmp_path / "target"
    with suppress(OSError):
        extract(entries(archive), target)
    assert sorted(p.name for p in tmp_path.iterdir()) in (["secret"], ["secret", "target"])
    assert (tmp_path / "secret").read_text() == "mine"
    for path in target.rglob("*"):
        assert path.is_dir() or path.is_file() or path.is_symlink()
        assert path.resolve().is_relative_to(tmp_path / "target")
        assert path.is_symlink() or not path.stat().st_mode & 0o6000
    assert not Path("/tmp/ludus-out").exists()


def test_links_that_stay_inside_survive_and_limits_count_what_hard_links_add(tmp_path):
    good = hostile(("d", DIR, ""), ("d/f", REG, b"text"), ("d/l", SYM, "f"), ("d/up", SYM, "../d/f"), ("h", LNK, "d/f"))
    extract(entries(good), tmp_path / "t")
    assert [(tmp_path / "t" / name).read_bytes() for name in ("d/f", "d/l", "d/up", "h")] == [b"text"] * 4
    many = hostile(("f", REG, bytes(1000)), *((f"h{i}", LNK, "f") for i in range(100)))
    with pytest.raises(TooLarge):
        list(entries(many, max_bytes=50_000))
    with pytest.raises(ValueError, match="not a whole archive"):
        list(entries(b"no archive at all" * 100))


def test_no_link_leads_out_once_a_later_download_has_brought_another(tmp_path):
    (tmp_path / "secret").write_text("mine")
    target = tmp_path / "target"
    for archive in (
        hostile(("a", DIR, ""), ("a/b", DIR, ""), ("out", SYM, "a/b/up/../secret")),
        hostile(("a", DIR, ""), ("a/b", DIR, ""), ("a/b/up", SYM, "../..")),
    ):
        extract(entries(archive), target)
    assert (target / "a/b/up").is_symlink()
    assert all(path.resolve().is_relative_to(target) for path in target.rglob("*"))


def renumbered(archive: bytes, field: slice, value: bytes, *, block: int = 0) -> bytes:
    """An archive with another value in one field of a header, and the check sum that goes with it."""
    header = bytearray(archive[block * 512 : block * 512 + 512])
    header[field] = value
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return archive[: block * 512] + bytes(header) + archive[block * 512 + 512 :]


SIZE, TIME = slice(124, 136), slice(136, 148)


@pytest.mark.parametrize("size", [b"\xff" * 10 + b"\xfc\x00", b"\xff" * 11 + b"\x00", b"\x80" + b"\x7f" * 11])
@pytest.mark.parametrize("kind", [REG, b"x", b"L", b"S", b"7"])
def test_an_archive_that_lies_about_sizes_is_refused_and_read_only_once(kind, size):
    """With a size below zero, the library's reader goes back, and round and round."""
    first = renumbered(hostile(("a", REG, b""), ("b", REG, b"x")), slice(156, 157), kind)
    lying = renumbered(first, SIZE, size)
    linked = hostile(("a", REG, b""), ("h", LNK, "a"))[:1024] + lying
    for archive in (lying, linked):
        with suppress(ValueError, TooLarge):
            assert len(list(entries(archive))) <= 4


def test_times_that_no_clock_has_are_cut_off(tmp_path):
    whole = hostile(("a", REG, b"x"), ("b", REG, b"x"))
    for time_ in (b"\x80" + b"\x7f" * 11, b"\xff" + b"\x80" + b"\x00" * 10):
        extract(entries(renumbered(whole, TIME, time_)), tmp_path / "t")
        assert (tmp_path / "t" / "a").read_bytes() == b"x"


def test_an_existing_link_on_the_host_is_not_written_through(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "d").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        extract(entries(hostile(("d/f", REG, b"x"))), tmp_path / "target")
    (tmp_path / "target" / "f").symlink_to(tmp_path / "elsewhere" / "f")
    with pytest.raises(OSError):
        extract(entries(hostile(("f", REG, b"x"))), tmp_path / "target")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_killed_driver_with_64_slots_leaves_nothing(bwrap, open_folder):
    seconds = f"86399.{os.getpid()}"  # nobody else's
    script = (
        "import asyncio, sys\nfrom ludus.sandbox import SandboxSpec\nfrom ludus.sandbox.pool import open_pool\n"
        "async def main():\n"
        "    async with open_pool('bwrap', max_slots=64) as pool:\n"
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
    while list(open_folder.glob("ludus-*")) or _sleepers(seconds):
        assert time.monotonic() < deadline, "something is left two minutes later"
        time.sleep(0.1)


def _sleepers(seconds: str) -> int:
    found = 0
    for process in Path("/proc").glob("[1-9]*/cmdline"):
        try:
            found += process.read_bytes() == f"sleep\0{seconds}\0".encode()
        except OSError:
            continue
    return found
