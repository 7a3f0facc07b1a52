import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.sandbox import ExecResult, SandboxSpec
from ludus.tools import BadArguments, Tool
from ludus.tools.terminal import choose_seconds, clean_output, format_result
from ludus.tools.toolsets import make_tools

InBox = Callable[..., Any]
Call = Callable[..., Awaitable[str]]


def calling(tools: list[Tool]) -> Call:
    by_name = {tool.name: tool for tool in tools}

    async def call(name: str, **arguments: object) -> str:
        return await by_name[name].run(arguments)

    return call


async def test_output_exit_code_and_a_shell_that_lasts(in_each_box: InBox):
    async with in_each_box() as box:
        call = calling(make_tools(["terminal"], box))
        assert await call("terminal", command="echo out; echo err >&2") == "out\nerr"
        assert await call("terminal", command="printf out; echo err >&2; exit_code() { return 3; }; exit_code") == (
            "out\nerr\n[exit code 3]"
        )
        assert await call("terminal", command="true") == "(no output)"
        assert await call("terminal", command="false") == "[exit code 1]"
        assert await call("terminal", command="mkdir -p d && cd d && export WHO=me") == "(no output)"
        assert (await call("terminal", command="echo $WHO; basename $PWD")) == "me\nd"
        assert await call("terminal", command="cat") == "(no output)"
        assert (await call("terminal", command="basename $PWD; cd ..", workdir="d")) == "d"
        assert await call("terminal", command="basename $PWD") == "d"
        assert "[exit code 126]" in await call("terminal", command="pwd", workdir="not there")


async def test_quotes_newlines_and_unicode_arrive_as_written(in_box: InBox):
    async with in_box() as box:
        call = calling(make_tools(["terminal"], box))
        command = "cat <<'END'\n'single' \"double\" $HOME `x` \\n ünï 😀\nEND\necho 'a\nb'"
        assert await call("terminal", command=command) == "'single' \"double\" $HOME `x` \\n ünï 😀\na\nb"
        assert "unexpected EOF" in await call("terminal", command="echo 'open")


async def test_a_command_that_takes_too_long_is_killed_and_the_shell_goes_on(in_box: InBox):
    async with in_box() as box:
        call = calling(make_tools(["terminal"], box))
        for seconds in (1, 10):
            text = await call("terminal", command="echo started; sleep 300", timeout=seconds)
            if text.startswith("started"):  # else the machine was too slow to begin
                break
        assert text.startswith("started\n")
        assert f"[timed out: killed after {seconds} s" in text
        assert await call("terminal", command="echo still here") == "still here"


async def test_escapes_and_binary_do_not_reach_the_model(in_box: InBox):
    async with in_box() as box:
        call = calling(make_tools(["terminal"], box))
        coloured = r"printf '\033[1;31mred\033[0m \033]0;title\007end\033[2K\r\n'"
        assert await call("terminal", command=coloured) == "red end"
        assert await call("terminal", command=r"printf 'a\0b\377c'") == "a\ufffdb\ufffdc"


async def test_of_a_flood_the_beginning_and_the_end_are_kept(in_box: InBox):
    async with in_box() as box:
        call = calling(make_tools(["terminal"], box))
        huge = await call("terminal", command="yes | head -c 30000000; echo last; exit_with() { return 2; }; exit_with")
        assert "its middle is missing" in huge
        assert "last\n" in huge
        assert huge.endswith("[exit code 2]")


async def test_a_nul_in_a_command_is_the_models_mistake(in_box: InBox):
    async with in_box() as box:
        with pytest.raises(ValueError, match="NUL"):
            await calling(make_tools(["terminal"], box))("terminal", command="echo a\0b")


async def test_the_life_of_a_background_process(in_each_box: InBox):
    async with in_each_box() as box:
        call = calling(make_tools(["terminal"], box))
        assert await call("process", action="list") == "No background processes."
        command = "echo ready; while read line; do echo got $line; [ $line = quit ] && exit 5; done"
        assert (await call("terminal", command=command, background=True)).startswith("Started bg-1.")
        assert await call("process", action="poll", id="bg-1") == f"bg-1: running: {command}"
        assert await call("process", action="write", id="bg-1", data="hello\n") == "Wrote 6 bytes to bg-1."
        assert await call("process", action="write", id="bg-1", data="quit\n") == "Wrote 5 bytes to bg-1."
        ended = f"bg-1: exited with code 5: {command}"
        assert await call("process", action="wait", id="bg-1") == f"{ended}\nready\ngot hello\ngot quit\n"
        assert await call("process", action="poll", id="bg-1") == ended
        assert await call("process", action="log", id="bg-1") == "ready\ngot hello\ngot quit\n"

        assert (await call("terminal", command="sleep 300", background="true", workdir="/tmp")).startswith(
            "Started bg-2."
        )
        assert await call("process", action="log", id="bg-2") == "(no output so far)"
        waited = await call("process", action="wait", id="bg-2", timeout=1)
        assert waited.startswith("bg-2: running: sleep 300")
        assert await call("process", action="list") == f"{ended}\nbg-2: running: sleep 300"
        assert await call("process", action="kill", id="bg-2") == "Killed bg-2."
        assert re.match("bg-2: exited with code 1(37|43)", await call("process", action="wait", id="bg-2"))


async def test_mistakes_with_processes_are_reported(in_box: InBox):
    async with in_box() as box:
        call = calling(make_tools(["terminal"], box))
        with pytest.raises(LookupError, match="no process with id 'bg-7'; known: none was started"):
            await call("process", action="poll", id="bg-7")
        with pytest.raises(LookupError, match="no process with id None"):
            await call("process", action="log")
        with pytest.raises(BadArguments, match="Invalid enum value 'stop' - at `action`"):
            await call("process", action="stop")
        await call("terminal", command="sleep 300", background=True)
        with pytest.raises(ValueError, match="write needs `data`"):
            await call("process", action="write", id="bg-1")
        await call("process", action="kill", id="bg-1")
        with pytest.raises(ProcessLookupError, match="the process has ended"):
            await call("process", action="write", id="bg-1", data="x")


async def test_waiting_can_be_cancelled(in_box: InBox):
    async with in_box() as box:
        call = calling(make_tools(["terminal"], box))
        await call("terminal", command="sleep 300", background=True)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await call("process", action="wait", id="bg-1")
        assert await call("terminal", command="echo on") == "on"


@pytest.mark.parametrize(
    ("wanted", "slot", "used"),
    [(None, 120, 120), (None, 9999, 600), (5, 120, 5), (0, 120, 1), (-3, 120, 1), (1e9, 120, 600), (2.5, 120, 2.5)],
)
def test_time_limits_are_clamped(wanted: float | None, slot: float, used: float):
    class Box:
        spec = SandboxSpec(command_seconds=slot)

    assert choose_seconds(wanted, Box()) == used  # pyright: ignore[reportArgumentType]


@given(st.binary())
def test_clean_text_has_no_control_characters_but_breaks_and_tabs(data: bytes):
    assert not {c for c in clean_output(data) if ord(c) < 32 or ord(c) == 127} - {"\n", "\t", "\r"}


def test_notes_follow_the_output():
    assert format_result(ExecResult(b"out", b"", 124, timed_out=True, truncated=True), 3).split("\n")[0] == "out"
    assert format_result(ExecResult(b"", b"", 0), 3) == "(no output)"
    assert format_result(ExecResult(b"a\n\n", b"b\n", 0), 3) == "a\n\nb"
