"""The program that runs slots elsewhere, here as a child process."""

import ast
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import zipfile
from io import BytesIO
from pathlib import Path

import pytest

from ludus.errors import SandboxError
from ludus.http_client import Client
from ludus.sandbox import SandboxSpec
from ludus.sandbox.processes import find_children
from ludus.sandbox.remote.bundle import build_bundle, build_file_command, build_receive_command
from ludus.sandbox.remote.link import HttpLink, StdioLink
from ludus.sandbox.remote.program import run_program
from ludus.sandbox.remote.remote_sandbox import SlotServer
from ludus.sandbox.slotd import frames as wire

machinery = sys.modules["ludus_tests_machinery"]
PYTHON = "/usr/bin/python3"
SPEC = {"network": False, "disk_mb": 32, "processes": 200, "memory_mb": 0, "env": {}, "mounts": []}

pytestmark = pytest.mark.skipif(not Path(PYTHON).exists(), reason="no Python of the system")


def run(slot: str, execution: str, command: bytes, stdin: bytes | None = None, **more: object) -> tuple[dict, bytes]:
    head = {"op": "run", "slot": slot, "execution": execution, "command": len(command), "seconds": 20, "keep": 100_000}
    return {**head, "stdin": stdin is not None, **more}, command + (stdin or b"")


async def call(link, head, body=b""):
    return await link.call(head, body, seconds=30)


# ---- the bundle -----------------------------------------------------------------------------------------------------


def test_the_bundle_needs_only_the_standard_library_and_older_grammar():
    archive = zipfile.ZipFile(BytesIO(build_bundle()))
    known = {name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in archive.namelist()}
    for name in archive.namelist():
        if not name.endswith(".py"):
            continue
        tree = ast.parse(archive.read(name), name, feature_version=(3, 8))
        for node in ast.walk(tree):
            modules = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            for module in modules:
                top = module.split(".")[0]
                assert top in sys.stdlib_module_names or module in known, f"{name} imports {module}"


def test_the_commands_that_start_it_hold_no_secret_and_no_line_break():
    for command in (build_receive_command("python3"), build_file_command("python3", "/p", "/c", "80")):
        assert all("\n" not in part for part in command)
    assert build_bundle() == build_bundle()


# ---- requests -------------------------------------------------------------------------------------------------------


def test_an_execution_that_is_asked_for_twice_runs_once(slotd):
    async def main() -> None:
        async with slotd() as (link, _):
            await call(link, {"op": "open", "slot": "a", "spec": SPEC})
            await call(link, {"op": "open", "slot": "a", "spec": SPEC})  # the same slot
            request = run("a", "e1", b"echo x >>log; sleep 0.3; cat log; echo $RANDOM")
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(call(link, *request)) for _ in range(3)]
            later = await call(link, *request)
            again = await call(link, {"op": "run", "slot": "a", "execution": "e1", "again": True})
            assert {task.result().body for task in tasks} == {later.body} == {again.body}
            assert later.body.startswith(b"x\n")
            assert later.body.count(b"x") == 1
            with pytest.raises(SandboxError, match="not known"):
                await call(link, {"op": "run", "slot": "a", "execution": "never", "again": True})

    asyncio.run(main())


def test_results_are_remembered_within_bounds(slotd):
    async def main() -> None:
        async with slotd() as (link, _):
            await call(link, {"op": "open", "slot": "a", "spec": SPEC})
            for number in range(40):
                await call(link, *run("a", f"e{number}", b"echo $RANDOM"))
            with pytest.raises(SandboxError, match="not known"):
                await call(link, {"op": "run", "slot": "a", "execution": "e0", "again": True})
            await call(link, {"op": "run", "slot": "a", "execution": "e39", "again": True})

    asyncio.run(main())


def test_long_input_comes_in_parts(slotd):
    async def main() -> None:
        async with slotd() as (link, _):
            await call(link, {"op": "open", "slot": "a", "spec": SPEC})
            for offset in (0, 3, 0):  # the first part twice, as after a lost answer
                part = b"onetwo"[offset : offset + 3]
                await call(link, {"op": "input", "slot": "a", "execution": "e", "offset": offset}, part)
            result = await call(link, *run("a", "e", b"cat", b"three"))
            assert result.body == b"onetwothree"
            for bad in ("../x", "a/b", ""):
                with pytest.raises(SandboxError, match="no name"):
                    await call(link, {"op": "input", "slot": "a", "execution": bad, "offset": 0}, b"x")

    asyncio.run(main())


def test_bad_requests_are_refused_and_harm_nobody(slotd):
    async def main() -> None:
        async with slotd() as (link, _):
            await call(link, {"op": "open", "slot": "a", "spec": SPEC})
            for head in (
                {"op": "fly"},
                {"op": "run", "slot": "a"},
                {"op": "run", "slot": "nobody", "execution": "e"},
                {"op": "open", "slot": "../b", "spec": SPEC},
                {"op": "open", "slot": "b", "spec": {}},
                {"op": "restart"},
            ):
                with pytest.raises(SandboxError):
                    await call(link, head)
            await call(link, {"op": "close", "slot": "nobody"})
            assert (await call(link, *run("a", "e", b"echo on"))).body == b"on\n"

    asyncio.run(main())


@pytest.mark.parametrize("settings", [{}, {"as_root": True}], ids=["namespaces", "none"])
def test_a_reset_slot_is_as_new(slotd, settings):
    async def main() -> None:
        async with slotd(**settings) as (link, about):
            assert about.isolation == ("none" if settings else "namespaces")
            server = SlotServer(link, about, capacity=1, end=nothing)
            box = await server.open(SandboxSpec(disk_mb=32), nothing)
            await box.exec("echo dirt >file; export X=1; cd /tmp; echo dirt >dirt; sleep 610.5 & setsid sleep 610.25 &")
            await box.start("sleep 610.75")
            await box.reset()
            left = await box.exec(
                "ls -A; ls -A ${TMPDIR:-/tmp}; ls -A ~; echo [$X]; pgrep -af 'sleep 610' || echo none"
            )
            assert left.stdout == b"[]\nnone\n"
            with pytest.raises(KeyError):
                await box.poll("bg-1")
            await box.close()
            with pytest.raises(SandboxError):
                await box.reset()

    asyncio.run(main())


async def nothing() -> None:
    pass


# ---- slots of one slotd ---------------------------------------------------------------------------------------------


LISTENER = b"""
import socket
server = socket.socket()
server.bind(("127.0.0.1", 5599))
server.listen()
while True:
    server.accept()
"""


def test_slots_do_not_see_each_other(slotd):
    async def main() -> None:
        async with slotd() as (link, about):
            server = SlotServer(link, about, capacity=2, end=nothing)
            one, two = [await server.open(SandboxSpec(disk_mb=32), nothing) for _ in range(2)]
            await one.exec("echo secret >f; echo secret >/tmp/f; echo secret >/dev/shm/f; sleep 611.5 &")
            await one.write("listen.py", LISTENER)
            await one.exec("python3 listen.py &")
            seen = await two.exec(
                "ls -A /workspace /tmp /dev/shm ~; ls /proc | grep -c '^[0-9]'; pgrep -f 611.5; ls /run/ludus/io; "
                "cat /proc/1/environ /proc/1/mem; ls /proc/1/fd; echo >/dev/tcp/127.0.0.1/5599"
            )
            assert b"secret" not in seen.stdout + seen.stderr
            assert b"611.5" not in seen.stdout
            assert b"refused" in seen.stderr
            await one.exec("kill -9 -1; kill -9 1")
            assert (await two.exec("echo on")).stdout == b"on\n"
            assert (await one.exec("echo on")).stdout == b"on\n"

    asyncio.run(main())


def test_a_slot_holds_no_right_and_can_gain_none(slotd):
    async def main() -> None:
        async with slotd() as (link, about):
            server = SlotServer(link, about, capacity=1, end=nothing)
            box = await server.open(SandboxSpec(disk_mb=32), nothing)
            status = (
                await box.exec("grep -E '^(Cap(Prm|Eff|Bnd)|NoNewPrivs|Seccomp):' /proc/self/status")
            ).stdout.decode()
            assert re.findall(r"Cap\w+:\s+(\w+)", status) == ["0" * 16] * 3
            assert "NoNewPrivs:\t1" in status
            assert "Seccomp:\t2" in status
            for attempt in (
                "unshare -U true",
                "mount -t tmpfs none /tmp",
                "chroot / true",
                "touch /usr/x",
                "touch /etc/x",
            ):
                assert (await box.exec(attempt)).exit_code != 0, attempt
            # Nothing of the host but its programs.
            seen = (await box.exec("ls -A /; ls -A /home /root /var/lib /srv 2>&1")).stdout.decode()
            assert "agent" in seen
            assert "root" not in seen.split("\n")[:20]
            assert (await box.exec("id -un; whoami; hostname")).stdout == b"agent\nagent\nludus\n"

    asyncio.run(main())


def test_a_bomb_of_processes_or_files_stays_in_its_slot(slotd):
    async def main() -> None:
        async with slotd() as (link, about):
            server = SlotServer(link, about, capacity=2, end=nothing)
            spec = SandboxSpec(disk_mb=8, processes=60)
            one, two = [await server.open(spec, nothing) for _ in range(2)]
            await one.exec("bomb() { bomb | bomb & }; bomb", timeout=3)
            assert (await two.exec("head -c 20000000 /dev/zero >big")).exit_code != 0
            assert (await two.exec("for i in {1..9000}; do : >$i || exit 9; done")).exit_code == 9
            await one.settle()
            for box in (one, two):
                assert (await box.exec("echo on")).stdout == b"on\n"

    asyncio.run(main())


# ---- the owner ------------------------------------------------------------------------------------------------------


async def gone(pid: int) -> None:
    async with asyncio.timeout(120):
        while Path(f"/proc/{pid}").exists():  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("settings", [{}, {"as_root": True}], ids=["namespaces", "none"])
def test_when_the_owner_falls_silent_all_slots_end(slotd, settings):
    async def main() -> None:
        async with slotd(lapse=2.0, **settings) as (link, about):
            slotd_pid = link._channel.pid
            server = SlotServer(link, about, capacity=1, end=nothing)
            box = await server.open(SandboxSpec(disk_mb=32), nothing)
            await box.exec("sleep 612.5 & setsid sleep 612.25 &")
            (first,) = find_children(slotd_pid)
            sleeping = asyncio.create_task(box.exec("sleep 612.75"))
            await asyncio.sleep(2.2)  # the heart beats: nothing happens
            assert not sleeping.done()
            await link._beats.stop()
            with pytest.raises(SandboxError, match=r"connection ended|slot (is closed|ended)"):
                await sleeping
            await gone(first)
            assert not marked("612.")
            with pytest.raises(SandboxError):
                await box.exec("true")

    asyncio.run(main())


def marked(word: str) -> list[str]:
    """Processes `sleep WORD…`: other programs on the machine may have the word in their arguments."""
    line = f"^sleep {re.escape(word)}"
    found = subprocess.run(["pgrep", "-f", line], capture_output=True, text=True, check=False).stdout
    return found.split()


def test_a_slotd_that_falls_silent_is_noticed(slotd):
    async def main() -> None:
        async with slotd(lapse=2.0) as (link, about):
            server = SlotServer(link, about, capacity=1, end=nothing)
            box = await server.open(SandboxSpec(disk_mb=32), nothing)
            os.kill(link._channel.pid, signal.SIGSTOP)
            try:
                with pytest.raises(SandboxError, match="no answer to 'beat'"):
                    await box.exec("sleep 20")
                assert not box.alive
            finally:
                os.kill(link._channel.pid, signal.SIGCONT)

    asyncio.run(main())


def test_a_killed_slotd_takes_its_slots_along_and_the_next_removes_its_folder(slotd):
    async def main() -> None:
        before = set(Path("/var/lib").glob("ludus-*"))  # noqa: ASYNC240
        async with slotd() as (link, about):
            server = SlotServer(link, about, capacity=1, end=nothing)
            box = await server.open(SandboxSpec(disk_mb=32), nothing)
            (first,) = find_children(link._channel.pid)
            os.kill(link._channel.pid, signal.SIGKILL)
            with pytest.raises(SandboxError):
                await box.exec("true")
            await gone(first)
        async with slotd():
            pass
        assert set(Path("/var/lib").glob("ludus-*")) <= before  # noqa: ASYNC240

    asyncio.run(main())


# ---- what is not slotd ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["/bin/sh", "-c", "echo Welcome to this host, mind the gap; cat >/dev/null"], "not from slotd: Welcome"),
        (["/bin/sh", "-c", "echo no such luck >&2; exit 3"], "no such luck"),
        (["/bin/sh", "-c", "exec sleep 60"], "no answer to 'hello' within 1 s"),
        ([PYTHON, "-c", "import os; os.close(0); os.close(1)"], "connection ended"),
    ],
)
def test_something_else_at_the_other_end_is_told(command, words):
    async def main() -> None:
        link = StdioLink(await run_program(command))
        try:
            with pytest.raises(SandboxError, match=words):
                await link.start({}, seconds=1 if "within 1 s" in words else 60, lapse=120)
        finally:
            await link.close()

    asyncio.run(main())


def test_a_driver_of_another_version_is_refused(monkeypatch, slotd):
    async def main() -> None:
        build_bundle()  # as it is
        monkeypatch.setattr(wire, "VERSION", 99)
        with pytest.raises(SandboxError, match="speaks version 99"):
            async with slotd():
                pass

    asyncio.run(main())


# ---- HTTP -----------------------------------------------------------------------------------------------------------


class Web:
    """A slotd that listens on loopback."""

    def __init__(self, folder: Path, **settings: object) -> None:
        import base64

        (folder / "slotd").write_bytes(base64.b64encode(build_bundle()))
        self.token = "0123456789abcdef"
        config = {"token": self.token, "host": "127.0.0.1", "view": "system", **settings}
        (folder / "slotd.json").write_text(json.dumps(config))
        self.port = machinery.free_port()
        command = build_file_command(PYTHON, str(folder / "slotd"), str(folder / "slotd.json"), str(self.port))
        self.daemon = machinery.Daemon(command, folder / "log")
        self.daemon.wait_until(lambda: machinery.listens(self.port))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@pytest.fixture
def web(tmp_path, request):
    found = Web(tmp_path, **getattr(request, "param", {}))
    yield found
    found.daemon.stop()


def test_http_needs_the_token(web):
    async def main() -> None:
        async with Client() as client:
            assert (await client.request("GET", f"{web.url}/health")).body == b"ok"
            for headers in ((), (("Authorization", "Bearer "),), (("Authorization", f"Bearer {web.token}x"),)):
                assert (await client.request("POST", f"{web.url}/call", headers, b"")).status == 401
            assert (await client.request("GET", f"{web.url}/call")).status == 404
            good = (("Authorization", f"Bearer {web.token}"),)
            assert (await client.request("POST", f"{web.url}/call", good, b"nonsense")).status == 400
            bad = HttpLink(client, web.url, "wrong")
            with pytest.raises(SandboxError, match="401") as refused:
                await bad.call({"op": "hello"}, seconds=5)
            assert not refused.value.retryable
        process = Path(f"/proc/{web.daemon.pid}")
        assert web.token.encode() not in (process / "cmdline").read_bytes() + (process / "environ").read_bytes()

    asyncio.run(main())


@pytest.mark.parametrize("web", [{"lapse": 2.0}], indirect=True)
def test_http_without_a_heartbeat_ends(web, monkeypatch):
    monkeypatch.setattr("ludus.sandbox.remote.link._RETRY_PAUSES", (0.1, 0.1))

    async def main() -> None:
        async with Client() as client:
            link = HttpLink(client, web.url, web.token)
            await link.start(seconds=60, lapse=2.0)
            await call(link, {"op": "open", "slot": "a", "spec": SPEC})
            await asyncio.sleep(2.2)
            await call(link, *run("a", "e", b"sleep 613.5 & echo on"))
            await link._beats.stop()
            await gone_daemon(web.daemon)
            assert not marked("613.5")
            with pytest.raises(SandboxError):
                await call(link, *run("a", "f", b"echo on"))
            assert not link.alive
            await link.close()

    asyncio.run(main())


async def gone_daemon(daemon) -> None:
    async with asyncio.timeout(120):
        while daemon._process.poll() is None:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def test_an_answer_that_is_lost_is_asked_for_again_and_nothing_runs_twice(web):
    """Between driver and slotd stands somebody who hangs up on every second answer."""

    async def main() -> None:
        lost = 0

        def loses() -> bool:
            nonlocal lost
            lost += 1
            return lost % 2 == 1

        server = await asyncio.start_server(machinery.hanging_up(web.port, loses), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, Client() as client:
            link = HttpLink(client, f"http://127.0.0.1:{port}", web.token)
            await call(link, {"op": "open", "slot": "a", "spec": SPEC})
            for number in range(5):
                reply = await call(link, *run("a", f"e{number}", b"echo x >>log; wc -l <log"))
                assert reply.body == b"%d\n" % (number + 1)
            assert lost > 5
            await link.close()
        assert link is not None

    asyncio.run(main())


def test_a_command_longer_than_one_request_is_waited_for(web, monkeypatch):
    monkeypatch.setattr("ludus.sandbox.remote.link._WAIT_SECONDS", 0.2)

    async def main() -> None:
        async with Client() as client:
            link = HttpLink(client, web.url, web.token)
            await call(link, {"op": "open", "slot": "a", "spec": SPEC})
            reply = await call(link, *run("a", "e", b"sleep 1; echo done"))
            assert reply.body == b"done\n"
            await link.close()

    asyncio.run(main())
