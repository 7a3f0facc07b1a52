"""The contract of `Sandbox`, the same on every backend."""

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from itertools import count
from pathlib import Path

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.sandbox_kit import OURS

from ludus.errors import SandboxError
from ludus.sandbox import ExecResult, Sandbox, SandboxSpec
from ludus.sandbox.archive import ArchiveTooLarge
from ludus.sandbox.pool import Pool
from ludus.sandbox.port.local_port import open_port
from ludus.sandbox.processes import find_children, find_descendants

TURNS = count(1)


@pytest.fixture
def in_box(pools: dict[str, Pool]) -> Callable[..., AbstractAsyncContextManager[Sandbox]]:
    """Opens a fresh slot of the module's pools."""

    @asynccontextmanager
    async def open_slot(backend: str, spec: SandboxSpec = SandboxSpec(disk_mb=64)) -> AsyncGenerator[Sandbox]:
        async with asyncio.timeout(600), pools[backend].lease(spec) as box:
            yield box

    return open_slot


def out(result: ExecResult) -> bytes:
    assert result.exit_code == 0, result
    return result.stdout


def find_processes(word: str) -> list[int]:
    """Find the host's processes with `word` in their command line."""
    found: list[int] = []
    for process in Path("/proc").glob("[1-9]*"):
        try:
            if word.encode() in (process / "cmdline").read_bytes() and int(process.name) != os.getpid():
                found.append(int(process.name))
        except OSError:
            continue
    return found


async def are_gone(word: str) -> bool:
    """Whether such processes end within a minute: a killed process is listed until it is reaped."""
    limit = time.monotonic() + 60
    while find_processes(word):
        if time.monotonic() > limit:
            return False
        await asyncio.sleep(0.01)
    return True


async def wait_running(word: str) -> None:
    limit = time.monotonic() + 60
    while not find_processes(word):
        assert time.monotonic() < limit, f"no process with {word}"
        await asyncio.sleep(0.01)


# ---- one command --------------------------------------------------------------------------------------------------


async def test_streams_and_exit_code_are_apart(backend, in_box):
    async with in_box(backend) as box:
        result = await box.exec("echo out; echo err >&2; (exit 7)")
        assert (result.stdout, result.stderr, result.exit_code) == (b"out\n", b"err\n", 7)
        assert not result.timed_out
        assert not result.truncated


async def test_folder_variables_and_functions_last(backend, in_box):
    async with in_box(backend) as box:
        await box.exec("mkdir -p sub; cd sub; export A=1; b=2; f() { echo f; }")
        assert out(await box.exec("basename $PWD; echo $A $b; f")) == b"sub\n1 2\nf\n"


async def test_env_and_cwd_do_not_last(backend, in_box):
    async with in_box(backend) as box:
        await box.exec("mkdir -p /tmp/here sub; X=old")
        result = await box.exec('echo "$X"; echo "$Y"; X=new; pwd', env={"X": "it's", "Y": "a\nb"}, cwd="sub")
        assert out(result).startswith(b"it's\na\nb\n")
        assert result.stdout.endswith(b"/sub\n")
        assert out(await box.exec("echo $X$Y")) == b"old\n"
        assert (await box.exec("true", cwd="nowhere")).exit_code == 126
        with pytest.raises(ValueError, match="variable"):
            await box.exec("true", env={"A;B": "1"})


async def test_stdin_is_given_whole_and_is_empty_otherwise(backend, in_box):
    async with in_box(backend) as box:
        data = bytes(range(256)) * 300
        assert out(await box.exec("cat", stdin=data)) == data
        assert out(await box.exec("cat; echo end")) == b"end\n"
        assert out(await box.exec("read -r x; echo [$x]", stdin=b"one\ntwo\n")) == b"[one]\n"
        assert out(await box.exec("true", stdin=data)) == b""


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("cat <<'END'\na 'b' \"c\" $d\nEND", b"a 'b' \"c\" $d\n"),
        ("for i in 1 2; do\n  echo $i\ndone", b"1\n2\n"),
        ("echo 'grüße 世界 🦊'", "grüße 世界 🦊\n".encode()),
        ("echo a # comment", b"a\n"),
        ("echo a@", b"a@\n"),
        ("@", None),
        ("echo 'open", None),
        ('echo "$(open', None),
        ("if true; then", None),
        ("cat <<END\nno end", b"no end\n"),
        ("", b""),
        (":" + " " * 100_000 + "; echo long", b"long\n"),
    ],
)
async def test_any_text_is_a_command(backend, in_box, command, expected):
    async with in_box(backend) as box:
        result = await box.exec(command, timeout=60)
        if expected is None:
            assert result.exit_code != 0
            assert result.stderr
        else:
            assert result.stdout == expected
        assert out(await box.exec("echo on")) == b"on\n"


async def test_a_nul_character_is_refused(backend, in_box):
    async with in_box(backend) as box:
        for bad in (box.exec("echo \0"), box.read("a\0b"), box.write("a\0b", b""), box.exec("true", cwd="\0")):
            with pytest.raises(ValueError):
                await bad


async def test_concurrent_commands_take_turns(backend, in_box):
    async with in_box(backend) as box:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(box.exec(f"n={i}; sleep 0.01; echo $n")) for i in range(10)]
        assert [t.result().stdout for t in tasks] == [b"%d\n" % i for i in range(10)]


# ---- output -------------------------------------------------------------------------------------------------------


async def test_binary_output(backend, in_box):
    async with in_box(backend) as box:
        everything = bytes(range(256)) * 40
        await box.write("data", everything)
        assert out(await box.exec("cat data")) == everything
        assert "\ufffd" in (await box.exec("cat data")).text


async def test_50_mb_of_output_keep_both_ends(backend, in_box):
    async with in_box(backend) as box:
        result = await box.exec("echo first; head -c 50000000 /dev/zero; echo last")
        assert result.exit_code == 0
        assert result.truncated
        assert result.stdout.startswith(b"first\n")
        assert result.stdout.endswith(b"last\n")
        assert len(result.stdout) < 1_000_100
        assert b"bytes left out" in result.stdout


async def test_a_flood_is_stopped(backend, in_box):
    async with in_box(backend) as box:
        result = await box.exec("yes", timeout=60)
        assert (result.exit_code, result.truncated, result.timed_out) == (137, True, False)
        assert b"killed" in result.stderr
        result = await box.exec("x=$(printf %090000d 0); while :; do echo $x; done", timeout=60)
        assert result.exit_code == 137
        assert out(await box.exec("echo on")) == b"on\n"


async def test_a_background_child_neither_blocks_nor_leaks_into_the_next_command(backend, in_box):
    async with in_box(backend) as box:
        result = await box.exec("(sleep 0.2; echo late) & echo now", timeout=10)
        assert out(result) == b"now\n"
        await asyncio.sleep(0.5)
        assert out(await box.exec("echo next")) == b"next\n"


async def test_a_command_that_closes_its_output(backend, in_box):
    async with in_box(backend) as box:
        assert (await box.exec("exec >&- 2>&-; echo lost")).stdout == b""
        assert out(await box.exec("exec 3>&- 4>&- 5>&- 6>&-; echo a")) == b"a\n"
        await box.exec("exec >/dev/null")
        assert out(await box.exec("echo b")) == b"b\n"


async def test_all_output_of_many_short_commands_arrives(backend, in_box):
    async with in_box(backend) as box:
        for i in range(300):
            assert out(await box.exec(f"echo {i}; echo {i} | cat")) == b"%d\n%d\n" % (i, i)


async def test_further_folders_are_the_slots_own(backend, in_box):
    if backend == "local":
        return
    spec = SandboxSpec(folders=("/data",))
    async with in_box(backend, spec) as box:
        made = "mkdir -p /data/cache/a && echo x > /data/cache/a/f && cat /data/cache/a/f"
        assert out(await box.exec(made)) == b"x\n"
        await box.reset()
        assert out(await box.exec("ls /data")) == b""
    async with in_box(backend, spec) as box:
        assert out(await box.exec("ls /data")) == b""


# ---- time, cancellation, and what a command does to its shell --------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        "sleep 100.125",
        "trap '' TERM INT; sleep 100.125",
        "bash -c 'trap \"\" TERM; while :; do sleep 100.125; done'",
        "sleep 100.125 | sleep 100.125",
        "while :; do :; done",
        "while :; do sleep 100.125; done",
        "exec sleep 100.125",
        "(sleep 100.125 & sleep 100.125)",
        "eval() { :; }; builtin() { :; }; read x",
        "kill -STOP $BASHPID",
        "set -n",
    ],
)
async def test_past_its_time_a_command_is_killed_with_its_children(backend, in_box, command, monkeypatch):
    monkeypatch.setattr("ludus.sandbox.shell._KILL_PAUSES", (0.02, 0.05, 0.1))  # then the shell itself is killed
    async with in_box(backend) as box:
        await box.exec("mkdir -p d; cd d")
        for seconds in (0.2, 2, 20):
            line = f"echo started; {command.replace('100.125', f'100.125{OURS}')}"
            result = await box.exec(line, timeout=seconds)
            if result.stdout:  # empty if the machine was too slow to start it
                break
        if "eval()" not in command:
            assert (result.exit_code, result.timed_out, result.stdout) == (124, True, b"started\n")
        assert await are_gone(f"100.125{OURS}")
        assert out(await box.exec("basename $PWD")) == b"d\n"


@pytest.mark.parametrize(
    "line", ["sleep 60; touch f", "sleep 60 || touch f", "sleep 60\ntouch f", "( sleep 60 ); touch f"]
)
async def test_past_its_time_the_rest_of_a_line_is_not_started(backend, in_box, line):
    async with in_box(backend) as box:
        assert (await box.exec(line, timeout=0.3)).timed_out
        assert (await box.exec("test -e f")).exit_code == 1
        assert (await box.exec(line, timeout=0.3, env={"X": "1"})).timed_out  # in a subshell
        assert (await box.exec("test -e f")).exit_code == 1


async def test_a_time_out_spares_what_earlier_commands_left_running(backend, in_box):
    async with in_box(backend) as box:
        await box.exec(f"X=kept; sleep 100.5{OURS} >/dev/null 2>&1 &")
        await wait_running(f"100.5{OURS}")
        await asyncio.sleep(0.05)  # the kernel counts the age of a process in ticks of 10 ms
        assert (await box.exec(f"sleep 100.75{OURS}", timeout=0.2)).timed_out
        assert await are_gone(f"100.75{OURS}")
        assert find_processes(f"100.5{OURS}")
        assert out(await box.exec("echo $X")) == b"kept\n"


async def test_cancelling_kills_the_command_and_keeps_the_slot(backend, in_box):
    async with in_box(backend) as box:
        await box.exec("X=kept")
        task = asyncio.create_task(box.exec(f"sleep 100.25{OURS}"))
        waiting = asyncio.create_task(box.exec("echo never"))
        await wait_running(f"100.25{OURS}")
        waiting.cancel()
        task.cancel()
        for cancelled in (task, waiting):
            with pytest.raises(asyncio.CancelledError):
                await cancelled
        assert await are_gone(f"100.25{OURS}")
        assert out(await box.exec("echo $X")) == b"kept\n"


async def test_an_outer_time_limit_is_a_cancellation(backend, in_box):
    async with in_box(backend) as box:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await box.exec(f"sleep 100.375{OURS}")
        assert await are_gone(f"100.375{OURS}")
        assert out(await box.exec("echo on")) == b"on\n"


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("exit 3", 3),
        ("exec false", 1),
        ("set -e; false; echo no", 1),
        ("kill -9 $BASHPID", 137),
        ("kill $$; sleep 5", 143),
        ("exec 10>&- 11>&- 12>&- 13>&- 14>&-; exec 3>&- 4>&-", None),
        ("builtin() { command builtin exit 9; }", None),
    ],
)
async def test_a_command_that_ends_its_shell_gets_a_new_one(backend, in_box, command, code):
    async with in_box(backend) as box:
        await box.exec("mkdir -p d; cd d; X=lost")
        result = await box.exec(command, timeout=60)
        if code is not None:
            assert result.exit_code == code
        await box.exec("true")
        assert out(await box.exec("basename $PWD")) == b"d\n"


async def test_a_shell_killed_between_commands_is_replaced(backend, in_box):
    async with in_box(backend) as box:
        word = f"100.9{OURS}{next(TURNS)}"  # this test's slot of another backend may be about to end
        await box.exec(f"s=$BASHPID; (sleep 0.05; kill -9 $s; exec sleep {word}) >/dev/null 2>&1 &")
        await wait_running(word)
        await box.exec("true")  # it may be sent before the host notices the death
        assert out(await box.exec("echo on")) == b"on\n"


async def test_false_status_records_cost_only_the_shell(backend, in_box):
    """The agent's shell code runs in the shell that reports, so it can write records. The host must not trust them."""

    async with in_box(backend) as box:
        for lie in (r"x 0\0", r"d 9999 0 /\0", r"\0junk\0", r"r nan\0", r"d 1\0", r"\0d 1 x /\0", "%0100000d"):
            await box.exec(f"for fd in {{10..20}}; do printf '{lie}' >&$fd; done 2>/dev/null", timeout=20)
            results = [await box.exec("echo on", timeout=20) for _ in range(3)]
            assert out(results[-1]) == b"on\n"


async def test_a_stray_process_that_floods_or_drains_the_shells_pipes_is_killed(backend, in_box):
    flood = "(while :; do for fd in {10..14}; do printf '\\0x\\0' >&$fd; done; done 2>/dev/null) & sleep 0.2"
    drain = "(while :; do for fd in {10..14}; do read -r -t 0.001 -N 1 -u $fd; done; done 2>/dev/null) & sleep 0.2"

    async with in_box(backend) as box:
        for stray in (flood, drain):
            await box.exec(stray, timeout=10)
            await box.exec("true", timeout=1)
            await box.settle()
            assert out(await box.exec("echo on", timeout=60)) == b"on\n"


# ---- files --------------------------------------------------------------------------------------------------------


async def test_files_are_written_with_their_folders_and_read_back(backend, in_box):
    async with in_box(backend) as box:
        await box.write("a/b/c.txt", b"relative")
        await box.write("/workspace/a/d.txt", b"absolute")
        await box.write("a/b/c.txt", b"again")
        assert await box.read("/workspace/a/b/c.txt") == b"again"
        assert await box.read("a/d.txt") == b"absolute"
        assert out(await box.exec("cat a/b/c.txt a/d.txt; ls a a/b")) == b"againabsolutea:\nb\nd.txt\n\na/b:\nc.txt\n"


async def test_tmp_is_the_slots_own(backend, in_box):
    name = f"/tmp/ludus-test-{os.getpid()}/f"

    async with in_box(backend) as box:
        await box.write(name, b"x")
        assert await box.read(name) == b"x"
        assert not Path(name).exists()
        assert out(await box.exec(f"cat ${{TMPDIR:-/tmp}}/{name.removeprefix('/tmp/')}")) == b"x"


async def test_a_file_of_10_mb(backend, in_box):
    async with in_box(backend) as box:
        data = os.urandom(10_000_000)
        await box.write("big", data)
        assert await box.read("big") == data
        with pytest.raises(ValueError, match="larger than"):
            await box.read("big", max_bytes=9_999_999)


async def test_a_replaced_file_keeps_its_mode_and_a_link_stays_a_link(backend, in_box):
    async with in_box(backend) as box:
        await box.exec("mkdir d; echo old >d/script; chmod 750 d/script; ln -s d/script link")
        await box.write("link", b"#!/bin/sh\necho new\n")
        assert out(await box.exec("stat -c %a d/script; ./link; readlink link; ls -A . d")) == (
            b"750\nnew\nd/script\n.:\nd\nlink\n\nd:\nscript\n"
        )


async def test_what_goes_wrong_with_a_file_is_the_matching_exception(backend, in_box):
    async with in_box(backend) as box:
        await box.exec("mkdir folder; mkfifo pipe; echo x >file; ln -s loop loop; echo x >locked; chmod 0 locked")
        with pytest.raises(FileNotFoundError):
            await box.read("missing")
        with pytest.raises(IsADirectoryError):
            await box.read("folder")
        with pytest.raises(OSError):
            await box.read("pipe")
        with pytest.raises(IsADirectoryError):
            await box.write("folder", b"")
        with pytest.raises(NotADirectoryError):
            await box.write("file/below", b"")
        with pytest.raises(OSError):
            await box.write("loop", b"")
        with pytest.raises(OSError):
            await box.write("/proc/ludus", b"")
        with pytest.raises(ValueError):
            await box.read("")
        if backend == "bwrap":  # a local slot may run as root, which may read everything
            with pytest.raises(PermissionError):
                await box.read("locked")
            with pytest.raises(PermissionError):
                await box.write("locked", b"")
        assert out(await box.exec("ls -A")).split() == [b"file", b"folder", b"locked", b"loop", b"pipe"]


async def test_python_is_offered_by_both_names(backend, in_box):
    async with in_box(backend) as box:
        code = "import sys; print(sys.version_info[0], sys.argv[1])"
        assert (await box.exec(f"python -c {code!r} 'a b'")).text == "3 a b\n"
        assert (
            await box.exec("mkdir bin; ln -s /bin/true bin/python; PATH=$PWD/bin:$PATH; python -c 1/0")
        ).exit_code == 0


async def test_file_operations_do_not_depend_on_the_agents_shell(backend, in_box):
    async with in_box(backend) as box:
        await box.exec("mkdir -p here; cd here; set -eufC; IFS=/; PATH=/nowhere; head() { echo lie; }; export -f head")
        await box.write("f", b"truth")
        assert await box.read("f") == b"truth"


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.lists(st.binary(max_size=5000), min_size=1, max_size=5), name=st.text(min_size=1, max_size=40))
async def test_any_bytes_in_any_file_come_back(one_box, data, name):
    name = name.replace("/", "_").replace("\0", "_")
    if name in (".", "..") or len(name.encode(errors="replace")) > 200:
        name = "plain"
    try:
        name.encode()
    except UnicodeEncodeError:
        name = "plain"

    for content in data:
        await one_box.write(f"any/{name}", content)
        assert await one_box.read(f"any/{name}") == content


NASTY = st.text(alphabet="'\"\\$`!(){}[]<>|&;#*?~ \t\n\r\x01\x7fab0é世-=%@:", max_size=200)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=NASTY)
async def test_any_text_survives_quoting(one_box, text):
    from shlex import quote

    assert out(await one_box.exec(f"printf %s {quote(text)}")) == text.encode()
    assert out(await one_box.exec('printf %s "$V"', env={"V": text})) == text.encode()
    assert out(await one_box.exec("cat", stdin=text.encode())) == text.encode()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=NASTY)
async def test_any_text_as_a_command_leaves_the_slot_usable(one_box, text):
    result = await one_box.exec(text, timeout=2)
    assert 0 <= result.exit_code <= 255
    assert out(await one_box.exec("cd /; echo on")) == b"on\n"


@pytest_asyncio.fixture(loop_scope="module")
async def one_box(pool):
    """A slot that stays for all examples of a test."""
    async with pool.lease(SandboxSpec(disk_mb=64)) as box:
        yield box


# ---- background processes -----------------------------------------------------------------------------------------


async def wait_exit(box: Sandbox, process: str) -> int:
    limit = time.monotonic() + 60
    while (code := await box.poll(process)) is None:
        assert time.monotonic() < limit, "still running"
        await asyncio.sleep(0.01)
    return code


async def test_a_background_process_is_polled_read_fed_and_ends(backend, in_box):
    async with in_box(backend) as box:
        await box.exec("export V=value; mkdir -p d; cd d")
        process = await box.start('echo "$V $(basename $PWD)"; read -r line; echo "got $line" >&2; exit 4')
        assert process == "bg-1"
        assert await box.poll(process) is None
        await box.send(process, b"some input\n")
        assert await wait_exit(box, process) == 4
        assert await box.log(process) == b"value d\ngot some input\n"
        assert await box.log(process, max_bytes=6) == b"input\n"
        with pytest.raises(ProcessLookupError):
            await box.send(process, b"more")
        await box.kill(process)


async def test_several_background_processes_and_their_end(backend, in_box):
    async with in_box(backend) as box:
        await box.exec("mkdir -p sub")
        stubborn = await box.start(f"trap '' TERM; while :; do sleep 100.625{OURS}; done")
        quick = await box.start("pwd", cwd="sub")
        assert (stubborn, quick) == ("bg-1", "bg-2")
        assert await wait_exit(box, quick) == 0
        assert (await box.log(quick)).endswith(b"/sub\n")
        await wait_running(f"sleep\x00100.625{OURS}")
        await box.kill(stubborn)
        assert await wait_exit(box, stubborn) == 137
        assert await are_gone(f"100.625{OURS}")
        for unknown in (box.poll("bg-9"), box.log("bg-9"), box.send("bg-9", b""), box.kill("bg-9")):
            with pytest.raises(KeyError):
                await unknown
        with pytest.raises(OSError):
            await box.start("true", cwd="nowhere")


async def test_a_process_that_does_not_read_its_input(backend, in_box):
    async with in_box(backend) as box:
        process = await box.start("sleep 100.875")
        with pytest.raises(BlockingIOError):
            await box.send(process, b"x" * 1_000_000)
        assert out(await box.exec("echo on")) == b"on\n"


async def test_settle_kills_daemons_and_keeps_files(backend, in_box):
    async with in_box(backend) as box:
        await box.write("kept", b"file")
        process = await box.start(f"sleep 200.125{OURS}")
        await box.exec(
            f"mkdir d; cd d; X=gone; sleep 200.25{OURS} & (setsid sleep 200.375{OURS} >/dev/null 2>&1 &); "
            f"(trap '' TERM HUP; exec -a nohup sleep 200.5{OURS}) & disown -a",
            timeout=60,
        )
        for n in (125, 25, 375, 5):
            await wait_running(f"200.{n}{OURS}")
        await box.settle()
        assert not find_processes(OURS)
        assert await box.read("kept") == b"file"
        assert out(await box.exec("echo [$X]; ls -d kept")) == b"[]\nkept\n"
        assert await box.poll(process) == 137
        await box.settle()


# ---- the slot -----------------------------------------------------------------------------------------------------


async def test_close_ends_everything_and_may_be_repeated(backend, in_box):
    async with in_box(backend) as box:
        running = asyncio.create_task(box.exec(f"sleep 300.125{OURS}"))
        await wait_running(f"300.125{OURS}")
        await box.close()
        await box.close()
        assert not find_processes(OURS)
        with pytest.raises(SandboxError):
            await running
        for after in (box.exec("true"), box.read("f"), box.settle()):
            with pytest.raises(SandboxError):
                await after


async def test_close_from_a_cancelled_task(backend, in_box):
    async with in_box(backend) as box:
        await box.exec(f"sleep 300.25{OURS} >/dev/null 2>&1 &")

        async def close_late() -> None:
            try:
                await asyncio.sleep(60)
            finally:
                await box.close()

        task = asyncio.create_task(close_late())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not find_processes(OURS)


async def test_a_ctrl_c_for_the_driver_does_not_reach_the_slot(backend, in_box):
    async with in_box(backend) as box:
        await box.exec("sleep 300.375 >/dev/null 2>&1 &")
        ours = os.getpgid(0)
        groups: set[int] = set()
        for pid in find_descendants(find_children(os.getpid())):
            with suppress(ProcessLookupError):  # the slot is ending
                groups.add(os.getpgid(pid))
        assert groups
        assert ours not in groups


async def test_spec_variables_are_set_and_the_hosts_are_not(backend, in_box, monkeypatch):
    monkeypatch.setenv("LUDUS_TEST_SECRET", "hunter2")

    async with in_box(backend, SandboxSpec(disk_mb=64, env=(("GIVEN", "a b"),))) as box:
        assert out(await box.exec("echo $GIVEN")) == b"a b\n"
        await box.settle()
        everything = out(await box.exec("env; echo $GIVEN"))
        assert b"a b\n" in everything
        assert b"hunter2" not in everything


async def test_seconds_are_measured(backend, in_box):
    async with in_box(backend) as box:
        before = time.monotonic()
        result = await box.exec("sleep 0.1")
        assert 0.1 <= result.seconds <= time.monotonic() - before


# ---- folders, executions, reset -----------------------------------------------------------------------------------


async def test_files_and_folders_go_in_and_out(backend, in_box, tmp_path):
    source, target = tmp_path / "in", tmp_path / "out"
    (source / "a" / "empty").mkdir(parents=True)
    (source / "a" / "run.sh").write_text("echo ran")
    (source / "a" / "run.sh").chmod(0o755)
    (source / "bytes").write_bytes(bytes(range(256)) * 5000)
    (source / "link").symlink_to("a/run.sh")
    (source / "-odd\n'name").write_text("odd")

    async with in_box(backend) as box:
        await box.upload(source, "folder")
        assert (await box.exec("folder/a/run.sh; sh folder/link; cat <folder/-odd*")).stdout == b"ran\nran\nodd"
        await box.upload(source / "bytes", "/tmp/x/y")
        assert await box.read("/tmp/x/y") == (source / "bytes").read_bytes()
        await box.upload(source / "a", "folder")  # existing files stay
        await box.download("folder", target)
        assert (target / "bytes").read_bytes() == (source / "bytes").read_bytes()
        assert (target / "a" / "empty").is_dir()
        assert (target / "a" / "run.sh").stat().st_mode & 0o777 == 0o755
        assert (target / "link").readlink() == Path("a/run.sh")
        assert (target / "run.sh").read_text() == "echo ran"
        assert (target / "-odd\n'name").read_text() == "odd"
        await box.download("folder/link", tmp_path / "one")
        assert (tmp_path / "one").read_text() == "echo ran"


async def test_what_goes_wrong_with_a_transfer_is_the_matching_exception(backend, in_box, tmp_path):
    async with in_box(backend) as box:
        with pytest.raises(FileNotFoundError):
            await box.upload(tmp_path / "missing", "x")
        with pytest.raises(FileNotFoundError):
            await box.download("missing", tmp_path / "x")
        with pytest.raises(FileNotFoundError):
            await box.pack("missing")
        await box.exec("head -c 3000000 /dev/zero >big; mkfifo pipe; mkdir out; ln -s / out/root; ln -s big l")
        with pytest.raises(ArchiveTooLarge):
            await box.download("big", tmp_path / "x", max_bytes=1_000_000)
        with pytest.raises(OSError, match="neither"):
            await box.download("pipe", tmp_path / "x")
        (tmp_path / "f").write_text("f")
        with pytest.raises(NotADirectoryError):
            await box.upload(tmp_path / "f", "big/f")
        await box.download("out", tmp_path / "out")
        assert list((tmp_path / "out").iterdir()) == []


async def test_an_archive_of_more_than_one_part_is_whole(backend, in_box):
    async with in_box(backend, SandboxSpec(disk_mb=100)) as box:
        await box.exec("head -c 40000000 /dev/urandom >big; sha256sum <big >sum")
        packed = await box.pack(".")
        await box.unpack(packed, "/tmp/again")
        same = await box.exec("sha256sum <${TMPDIR:-/tmp}/again/big; cat sum")
        assert len(set(same.stdout.splitlines())) == 1


async def test_unpacking_can_replace_what_is_there(backend, in_box):
    async with in_box(backend) as box:
        await box.exec("mkdir -p new old/locked; echo n >new/n; touch old/locked/x .hidden; chmod 000 old/locked")
        await box.unpack(await box.pack("new"), "old", replace=True)
        assert (await box.exec("ls -A old")).stdout == b"n\n"


async def test_an_execution_with_an_id_runs_once(backend, in_box):
    async with in_box(backend) as box:
        first = await box.exec("echo x >>count; echo $RANDOM$RANDOM", execution="one")
        assert first.id == "one"
        assert await box.exec("echo x >>count; echo $RANDOM$RANDOM", execution="one") == first
        both = await asyncio.gather(*(box.exec("sleep 0.1; echo x >>count", execution="two") for _ in range(3)))
        assert len(set(both)) == 1
        assert await box.read("count") == b"x\nx\n"
        plain = [await box.exec("true") for _ in range(2)]
        assert plain[0].id != plain[1].id
        slow = asyncio.create_task(box.exec("sleep 30", execution="cut"))
        await asyncio.sleep(0.05)
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
        assert (await box.exec("echo again", execution="cut")).stdout == b"again\n"


async def test_reset_leaves_nothing(backend, in_box):
    async with in_box(backend) as box:
        await box.start(f"sleep 543.{OURS}")
        await box.exec(
            f"echo x >x; mkdir ~/h; touch ${{TMPDIR:-/tmp}}/t ~/h/y; export KEPT=1; cd /; (setsid sleep 543.{OURS} &)"
        )
        await box.reset()
        left = await box.exec(
            f'ls -A . "${{TMPDIR:-/tmp}}" ~ | grep -v :; echo "[$KEPT]"; pgrep -fx "sleep 543.{OURS}"'
        )
        assert left.stdout.split() == [b"[]"]
        assert await box.poll(await box.start("exit 3")) in (None, 3)
        with pytest.raises(KeyError):
            await box.poll("bg-2")
        await box.close()
        with pytest.raises(SandboxError):
            await box.reset()


# ---- ports --------------------------------------------------------------------------------------------------------

Handle = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serve(box: Sandbox, handle: Handle) -> AsyncGenerator[int, None]:
    """Open a port of the slot, and handle each of its connections."""
    async with open_port(box, lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader(), handle)) as port:
        yield port


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"hello\n")
    writer.close()
    await writer.wait_closed()


def connect_to(port: int) -> str:
    return f"exec 3<>/dev/tcp/127.0.0.1/{port} && cat <&3"


async def test_a_slot_reaches_the_driver_through_its_port_while_it_is_open(backend, in_box):
    async with in_box(backend) as box:
        for _ in range(2):
            async with serve(box, greet) as port:
                for _ in range(2):
                    assert out(await box.exec(connect_to(port))) == b"hello\n"
            assert (await box.exec(connect_to(port))).exit_code != 0


CLIENTS = """
import socket, sys
port, many = map(int, sys.argv[1:])
data = [bytes(range(256)) * 1200 + b"%d" % number for number in range(many)]
clients = [socket.create_connection(("127.0.0.1", port)) for _ in data]
for each, own in zip(clients, data):
    each.sendall(own)
    each.shutdown(socket.SHUT_WR)
for each, own in zip(clients, data):
    assert each.makefile("rb").read() == own[::-1]
print("all")
"""


async def test_many_connections_at_once_lose_no_byte(backend, in_box):
    many = 20

    async with in_box(backend) as box:
        received = asyncio.Semaphore(0)
        all_received = asyncio.Event()

        async def reverse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            data = await reader.read()  # until the slot has sent everything; it still reads
            received.release()
            await all_received.wait()
            writer.write(data[::-1])
            writer.close()
            await writer.wait_closed()

        await box.write("clients.py", CLIENTS.encode())
        async with serve(box, reverse) as port:
            running = asyncio.create_task(box.exec(f"python3 clients.py {port} {many}"))
            for _ in range(many):
                await received.acquire()
            all_received.set()
            assert out(await running) == b"all\n"


LISTENER = """
import socket, sys
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
assert connection.makefile("rb").read() == b"that is all"
connection.sendall(b"one more thing")
"""


async def test_a_connection_stays_open_one_way_when_the_driver_has_sent_all(backend, in_box):
    async with in_box(backend) as box:
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def end_first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"that is all")
            writer.write_eof()
            answer.set_result(await reader.read())
            writer.close()
            await writer.wait_closed()

        await box.write("listener.py", LISTENER.encode())
        async with serve(box, end_first) as port:
            out(await box.exec(f"python3 listener.py {port}"))
            assert await answer == b"one more thing"


async def test_a_reset_closes_the_port_and_the_slot_can_have_a_new_one(backend, in_box):
    async with in_box(backend) as box:
        connected, ended = asyncio.Event(), asyncio.Event()

        async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connected.set()
            with suppress(OSError):
                await reader.read()
            ended.set()
            writer.close()

        async with serve(box, wait) as port:
            await box.start(f"exec 3<>/dev/tcp/127.0.0.1/{port}; sleep 600")
            await connected.wait()
            await box.reset()
            await ended.wait()
        async with serve(box, greet) as port:
            assert out(await box.exec(connect_to(port))) == b"hello\n"
