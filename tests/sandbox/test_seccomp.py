"""The system-call filter: what it refuses, and that ordinary programs run under it."""

import platform
import re
import signal
import struct
from pathlib import Path

import pytest

from ludus.sandbox import Sandbox
from ludus.sandbox.seccomp import MACHINES, build_filter

needs_python = pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="no python3 in the slot")
needs_filter = pytest.mark.skipif(platform.machine() not in MACHINES, reason="no filter for this machine")


async def run_python(box: Sandbox, source: str) -> str:
    result = await box.exec("python3 -I -", stdin=source.encode(), timeout=120)
    assert result.exit_code == 0, result.text
    return result.stdout.decode()


CALL = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def attempt(number, *arguments):
    ctypes.set_errno(0)
    return libc.syscall(number, *arguments), ctypes.get_errno()
"""


@needs_python
@needs_filter
async def test_every_call_on_the_list_is_refused(bwrap, in_box):
    numbers = MACHINES[platform.machine()].denied

    async with in_box(bwrap) as box:
        found = await run_python(box, f"{CALL}\nprint([attempt(n, 0, 0, 0, 0, 0) for n in {list(numbers.values())}])")
        results = dict(zip(numbers, eval(found), strict=True))
        allowed = {name: r for name, r in results.items() if r[0] != -1 or r[1] not in (1, 38)}
        assert allowed == {}


@needs_python
@needs_filter
async def test_namespaces_cannot_be_made_nor_terminals_written_to(bwrap, in_box):
    machine = MACHINES[platform.machine()]

    async with in_box(bwrap) as box:
        flags = [1 << bit for bit in (7, 17, 25, 26, 27, 28, 29, 30)]
        found = await run_python(
            box,
            f"{CALL}\nprint([attempt({machine.unshare}, f) for f in {flags}]"
            f" + [attempt({machine.clone}, f | 17, 0, 0, 0, 0) for f in {flags[1:]}]"
            f" + [attempt({machine.ioctl}, 0, request, 0) for request in (0x5412, 0x541c, 0x5423)])",
        )
        assert set(eval(found)) == {(-1, 1)}
        assert eval(await run_python(box, f"{CALL}\nprint(attempt(435, 0, 0))")) == (-1, 38)


@needs_python
@pytest.mark.skipif(platform.machine() != "x86_64", reason="no second way to make calls")
@pytest.mark.parametrize(
    "call",
    [
        "ctypes.CDLL(None).syscall(0x40000000 + 39)",  # x32: getpid
        "ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()",  # 32 bits: getpid
    ],
)
async def test_a_call_by_another_convention_ends_the_program(bwrap, in_box, call):
    """Its numbers mean something else, and so would get past the list."""
    source = (
        "import ctypes, mmap\n"
        "code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)\n"
        "code.write(bytes.fromhex('b814000000cd80c3'))\n"
        f"print('before', flush=True)\n{call}\nprint('after')\n"
    )

    async with in_box(bwrap) as box:
        done = await box.exec("python3 -I -", stdin=source.encode(), timeout=60)
        assert (done.stdout, done.exit_code) == (b"before\n", 128 + signal.SIGSYS)


@needs_python
@needs_filter
async def test_no_socket_of_a_family_that_a_network_namespace_does_not_hold(bwrap, in_box):
    """vsock speaks to the hypervisor from any network namespace; others are code that no task needs."""

    async with in_box(bwrap) as box:
        source = (
            "import errno, socket\n"
            "def attempt(family, kind):\n"
            "    found = set()\n"
            "    for make in (socket.socket, socket.socketpair):\n"
            "        try: make(family, kind); found.add('made')\n"
            "        except OSError as error: found.add(errno.errorcode[error.errno])\n"
            "    return found\n"
            "others = [f for f in range(48) if f not in (1, 2, 10, 16)]\n"
            "print({f: set.union(*(attempt(f, k) for k in (1, 2, 3, 5))) for f in others})\n"
            "print(attempt(1, 1), 'made' in attempt(2, 1), 'made' in attempt(16, 3))\n"
        )
        others, usual = (await run_python(box, source)).splitlines()
        assert {family: found for family, found in eval(others).items() if found != {"EAFNOSUPPORT"}} == {}
        assert usual == "{'made'} True True"


@needs_python
@needs_filter
async def test_the_kernels_key_rings_are_out_of_reach(bwrap, in_box):
    key, request, control = (MACHINES[platform.machine()].denied[n] for n in ("add_key", "request_key", "keyctl"))

    async with in_box(bwrap) as box:
        found = await run_python(
            box,
            f"{CALL}\nprint(attempt({key}, b'user', b'x', b'y', 1, -3), attempt({request}, b'user', b'x', 0, -3), "
            f"*(attempt({control}, 0, ring, 1) for ring in (-1, -2, -3, -4, -5)))",
        )
        assert found.count("(-1, 1)") == 7
        keys = await box.exec("cat /proc/keys 2>/dev/null | wc -l")
        assert int(keys.stdout) <= 2  # nothing of the host's


@pytest.mark.parametrize("machine", MACHINES)
def test_the_filter_is_well_formed(machine):
    code = build_filter(machine)
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
    assert build_filter("m68k") == b""


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
async def test_ordinary_programs_run_under_the_filter(bwrap, in_box, needs, command):
    if not Path("/usr/bin", needs).exists():
        pytest.skip(f"no {needs}")

    async with in_box(bwrap) as box:
        result = await box.exec(command)
        assert result.exit_code == 0, result.text
