import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ludus.compat.hermes_env.slot_tools import (
    ToolCall,
    ToolContext,
    ToolOutcome,
    execute_batch,
    make_exec_tool,
    make_tool_handler,
)
from ludus.errors import SandboxError
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.sandbox.pool import Pool
from ludus.sandbox.profiles import open_pool
from ludus.tools import tool
from ludus.types import Call


@asynccontextmanager
async def in_slot() -> AsyncGenerator[tuple[Sandbox, Pool]]:
    async with asyncio.timeout(300), open_pool("local") as pool, pool.lease(SandboxSpec()) as box:
        yield box, pool


async def test_a_context_acts_in_its_own_slot(tmp_path: Path):
    async with in_slot() as (box, _):
        context = ToolContext(box)
        done = await context.terminal("echo hi; exit 3")
        assert (done.success, done.output, done.exit_code, done.error) == (False, "hi\n", 3, "exit code 3")
        assert (await context.write_file("a/b", "needle\n")).success
        assert (await context.read_file("a/b")).output == "needle\n"
        assert "No such file" in (await context.read_file("missing")).error
        (tmp_path / "in").write_bytes(bytes(range(256)) * 1000)
        await context.upload_file(tmp_path / "in", "it's/in")
        await context.download_file("it's/in", tmp_path / "out")
        assert (tmp_path / "out").read_bytes() == (tmp_path / "in").read_bytes()
        await context.upload_dir(tmp_path, "dir")
        await context.download_dir("dir", tmp_path / "again")
        assert (tmp_path / "again" / "in").exists()
        assert "needle" in json.loads(await context.search("need.e"))["output"]
        assert "there is no tool 'web_search'" in json.loads(await context.call_tool("web_search", {}))["error"]
        assert "command" in json.loads(await context.call_tool("terminal", {"nonsense": 1}))["error"]
        process = await box.start("sleep 60")
        await context.cleanup()
        assert await box.poll(process) is not None


async def test_a_batch_runs_side_by_side_and_keeps_each_failure_to_itself():
    async with in_slot() as (box, pool):
        async with pool.lease(SandboxSpec()) as other, pool.lease(SandboxSpec()) as dead:
            await dead.close()
            results = await execute_batch(
                [
                    ToolCall(box, "bash", {"command": "echo 1 >>log; echo one"}, execution="x"),
                    ToolCall(box, "bash", {"command": "echo 1 >>log; echo two"}, execution="x"),
                    ToolCall(dead, "bash", {"command": "echo dead"}),
                    ToolCall(other, "bash", {"command": "sleep 30"}, timeout=1),
                    ToolCall(other, "write_file", {"path": "f", "content": "text"}),
                    ToolCall(other, "read_file", {"path": "f"}),
                ]
            )
        first, again, broken, late, wrote, read = results
        assert isinstance(first, ToolOutcome)
        assert first == again
        assert isinstance(broken, SandboxError)
        assert isinstance(late, ToolOutcome)
        assert late.timed_out
        assert isinstance(wrote, ToolOutcome)
        assert isinstance(read, ToolOutcome)
        assert (wrote.success, read.output) == (True, "text")
        assert await box.read("log") == b"1\n"


async def test_a_call_that_makes_no_sense_spoils_no_other():
    async with in_slot() as (box, _):
        calls = [("bash", {"command": "echo a\0b"}), ("bash", {"command": "echo \ud800"}), ("fly", {}), ("bash", {})]
        calls += [("read_file", {"path": ""}), ("write_file", {"path": "a\0b"}), ("bash", {"command": "echo fine"})]
        *refused, fine = await execute_batch([ToolCall(box, tool, dict(args)) for tool, args in calls])
        assert all(isinstance(each, ToolOutcome) and not each.success and each.error for each in refused), refused
        assert isinstance(fine, ToolOutcome)
        assert fine.output == "fine\n"


async def test_calls_of_one_slot_run_in_their_order_however_long_one_takes_to_prepare():
    async with in_slot() as (box, _):
        large = "x" * 3_000_000  # prepared in a thread
        calls = [("write_file", {"path": "f", "content": large}), ("bash", {"command": "wc -c <f"})]
        wrote, counted = await execute_batch([ToolCall(box, tool, dict(args)) for tool, args in calls])
        assert isinstance(wrote, ToolOutcome)
        assert isinstance(counted, ToolOutcome)
        assert counted.output.strip() == "3000000"


async def test_the_hooks():
    async with in_slot() as (box, _):
        run = make_exec_tool(box)
        assert (await run("bash", {"command": "pwd | grep -c ."})).output == "1\n"
        with pytest.raises(ValueError, match="no tool 'browser'"):
            await run("browser", {})
        with pytest.raises(ValueError, match="needs a 'command'"):
            await run("bash", {})

        @tool
        async def breaks(kind: str) -> str:
            raise SandboxError("gone") if kind == "world" else RuntimeError("odd")

        handle = make_tool_handler([breaks])
        call = Call("1", "breaks", "{}")
        assert json.loads(await handle(call, {"kind": "tool"})) == {"error": "RuntimeError: odd"}
        with pytest.raises(SandboxError):
            await handle(call, {"kind": "world"})


async def test_a_command_leaves_no_state_in_the_shell_of_the_agent():
    async with in_slot() as (box, _):
        start = (await box.exec("pwd")).stdout
        run = make_exec_tool(box)
        done = await run("bash", {"command": "mkdir deep; cd deep; X=set; export Y=set; set -u\necho 'it''s' # there"})
        assert (done.success, done.output) == (True, "its\n")
        again = await run("bash", {"command": "pwd; echo ${X-unset} ${Y-unset}"})
        assert again.output == start.decode() + "unset unset\n"
        assert (await ToolContext(box).terminal("cd deep && pwd")).output == start.decode().strip() + "/deep\n"
        assert (await box.exec("pwd; echo ${X-unset}")).stdout == start + b"unset\n"
        await box.exec("cd deep")
        assert (await run("bash", {"command": "pwd"})).output == start.decode(), "the agent does not move our calls"
