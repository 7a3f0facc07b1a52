"""`ToolContext` and `exec_tool` in a real slot: the dicts that reward functions read."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ludus.compat.atropos_env.server_view import FileServers
from ludus.compat.hermes_env.task_slots import TaskSlots
from ludus.errors import ConfigError
from ludus.sandbox import SandboxSpec
from ludus.sandbox.profiles import open_pool
from ludus.tools.toolsets import BUILTIN

pytest.importorskip("pydantic")

from ludus.compat.atropos_env.base_env import SERVICES, FileServices
from ludus.compat.hermes_env.context import HermesToolContext, make_hermes_exec

pytestmark = pytest.mark.usefixtures("bwrap")


def drop(_: Any) -> None: ...


async def judge(work: Callable[[HermesToolContext], Any]) -> Any:
    """Call a function with the context of a task, in a thread, as rewards are computed."""

    loop = asyncio.get_running_loop()
    async with open_pool("bwrap") as pool:
        slots = TaskSlots(pool, SandboxSpec(), BUILTIN, {}, loop)
        SERVICES.set(FileServices(FileServers([]), loop, Path(), drop, drop, slots=slots))
        return await asyncio.to_thread(lambda: work(HermesToolContext("task")))


async def test_commands_have_a_code_and_an_output():
    def work(ctx: HermesToolContext) -> None:
        assert ctx.terminal("echo out; echo err >&2; exit 3") == {"exit_code": 3, "output": "out\nerr\n"}
        assert ctx.terminal("pwd")["output"].strip() == "/workspace"
        late = ctx.terminal("sleep 60", timeout=0.2)
        assert late["exit_code"] != 0 and late["error"]

    await judge(work)


async def test_files_are_written_and_read_in_the_slot():
    def work(ctx: HermesToolContext) -> None:
        assert ctx.write_file("a/b.txt", "größe\n") == {"success": True, "path": "a/b.txt", "bytes_written": 8}
        assert ctx.read_file("a/b.txt")["content"] == "größe\n"
        assert set(ctx.read_file("absent.txt")) == {"error"}
        assert "b.txt" in json.dumps(ctx.search("größe"))

    await judge(work)


async def test_files_and_folders_go_up_and_down(tmp_path: Path):
    (tmp_path / "up" / "deep").mkdir(parents=True)
    (tmp_path / "up" / "one.bin").write_bytes(b"\x00\xff")
    (tmp_path / "up" / "deep" / "two.txt").write_text("2")

    def work(ctx: HermesToolContext) -> None:
        assert [each["path"] for each in ctx.upload_dir(tmp_path / "up", "data")] == ["deep/two.txt", "one.bin"]
        assert ctx.terminal("cat data/deep/two.txt")["output"] == "2"
        assert ctx.upload_file(str(tmp_path / "up" / "one.bin"), "x.bin")["exit_code"] == 0
        assert ctx.upload_file(tmp_path / "absent", "y")["exit_code"] == -1
        down = ctx.download_dir("data", str(tmp_path / "down"))
        assert all(each["success"] for each in down) and (tmp_path / "down" / "one.bin").read_bytes() == b"\x00\xff"
        assert ctx.download_file("x.bin", tmp_path / "back" / "x.bin") == {"success": True, "bytes": 2}
        assert ctx.download_file("absent", tmp_path / "z")["success"] is False
        assert ctx.download_dir("absent", tmp_path / "none")[0]["success"] is False

    await judge(work)


async def test_any_tool_can_be_called_and_answers_with_json():
    def work(ctx: HermesToolContext) -> None:
        assert "42" in json.loads(ctx.call_tool("terminal", {"command": "echo $((6 * 7))"}))["output"]
        assert "no_such_tool" in json.loads(ctx.call_tool("no_such_tool", {}))["error"]

    await judge(work)


async def test_a_slot_that_was_given_back_is_a_fresh_one():
    def work(ctx: HermesToolContext) -> None:
        ctx.write_file("x.txt", "1")
        ctx.cleanup()
        assert ctx.terminal("ls")["output"] == ""
        assert HermesToolContext("another").terminal("ls")["exit_code"] == 0

    await judge(work)


async def test_exec_tool_answers_with_success_output_error_and_metadata():
    async with open_pool("bwrap") as pool:
        slots = TaskSlots(pool, SandboxSpec(), BUILTIN, {}, asyncio.get_running_loop())
        run = make_hermes_exec(slots, "task")
        good = await run("bash", {"command": "echo hi"}, timeout=20)
        assert good.success and good.output == "hi\n"
        assert good.metadata == {"returncode": 0, "exit_code": 0, "timeout": False}
        bad = await run(SimpleNamespace(name="bash", arguments={"command": "echo no >&2; exit 5"}))
        assert not bad.success and bad.metadata["returncode"] == bad.metadata["exit_code"] == 5
        assert (await run("write_file", {"path": "x", "content": "1"})).success
        assert (await run("read_file", {"path": "x"})).output == "1"
        late = await run("bash", {"command": "sleep 60"}, timeout=0.2)
        assert not late.success and late.metadata["timeout"] is True


def test_there_is_no_context_outside_of_a_run():
    SERVICES.set(None)
    with pytest.raises(ConfigError, match="work inside a run"):
        HermesToolContext("task")
