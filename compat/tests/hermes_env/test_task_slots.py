"""Slots by task id: leased at first use, given back, with an image or a folder of their own."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from ludus.compat.atropos_env.call_journal import SCOPE, CallScope
from ludus.compat.hermes_env.task_slots import TaskSlots
from ludus.errors import ConfigError, SandboxError
from ludus.sandbox import SandboxSpec
from ludus.sandbox.profiles import open_pool
from ludus.tools.toolsets import BUILTIN

pytestmark = pytest.mark.usefixtures("bwrap")


@asynccontextmanager
async def open_slots(**images: str) -> AsyncGenerator[TaskSlots]:
    async with open_pool("bwrap") as pool:
        yield TaskSlots(pool, SandboxSpec(), BUILTIN, images, asyncio.get_running_loop(), 2)


async def test_a_task_keeps_its_slot_until_it_is_given_back():
    async with open_slots() as slots:
        first = await slots.get("a")
        assert await slots.get("a") is first and await slots.get("b") is not first
        await first.write("x.txt", b"1")
        await slots.release("a")
        again = await slots.get("a")
        assert again is not first
        with pytest.raises(FileNotFoundError):
            await again.read("x.txt")
        await slots.release("never leased")


async def test_plain_functions_wait_for_their_slot_in_another_thread():
    async with open_slots() as slots:

        def use() -> bytes:
            box = slots.wait(slots.get("a"))
            slots.wait(box.write("x.txt", b"1"))
            return slots.wait(box.read("x.txt"))

        assert await asyncio.to_thread(use) == b"1"


async def test_the_folder_of_a_task_is_forgotten_with_it():
    async with open_slots() as slots:
        assert slots.get_folder("a") == "/workspace"
        slots.change("a", {"cwd": "/app"})
        assert slots.get_folder("a") == "/app" and slots.get_folder("b") == "/workspace"
        slots.forget_change("a")
        slots.change("b", {"cwd": "/app"})
        await slots.release("b")
        assert slots.get_folder("a") == slots.get_folder("b") == "/workspace"


async def test_an_image_needs_a_profile():
    async with open_slots(**{"known:1": "mine"}) as slots:
        with pytest.raises(ConfigError, match=r"image 'unknown:1'.*--sandbox\.profiles"):
            slots.change("a", {"docker_image": "unknown:1"})
        slots.change("b", {"modal_image": "known:1"})


async def test_the_length_of_a_tools_results_can_be_set():
    async with open_slots() as slots:
        tools = {tool.name: tool for tool in await slots.make_tools("a", ["terminal", "file"], {"terminal": 17})}
        assert tools["terminal"].result_chars == 17 and tools["read_file"].result_chars != 17
        shown = await slots.run_tool(tools["terminal"], {"command": "echo $((6 * 7))"})
        assert "42" in str(shown)
        path = await slots.spill("a", "long.txt", b"all of it")
        assert await (await slots.get("a")).read(path) == b"all of it"


async def test_a_slot_that_fails_is_on_the_record_of_the_group():
    async def fail() -> None:
        raise SandboxError("gone")

    async with open_slots() as slots:
        scope = CallScope("group/1")
        SCOPE.set(scope)
        with pytest.raises(SandboxError):
            await slots.call(fail())
        assert [str(each) for each in scope.failures] == ["gone"]
