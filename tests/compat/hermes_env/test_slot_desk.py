"""Slots by task id: leased at first use, given back, with an image or a folder of their own."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ludus.compat.atropos_env.call_journal import SCOPE, CallScope
from ludus.compat.hermes_env.slot_desk import SlotDesk
from ludus.errors import ConfigError, SandboxError
from ludus.sandbox import SandboxSpec
from ludus.sandbox.profiles import open_pool
from ludus.tools.toolsets import BUILTIN

pytestmark = pytest.mark.usefixtures("bwrap")


@asynccontextmanager
async def open_desk(**images: str) -> AsyncGenerator[SlotDesk]:
    async with open_pool("bwrap") as pool:
        yield SlotDesk(pool, SandboxSpec(), BUILTIN, images, asyncio.get_running_loop(), 2)


def run(work: Callable[[SlotDesk], Coroutine[Any, Any, Any]], **images: str) -> Any:
    async def call() -> Any:
        async with open_desk(**images) as desk:
            return await work(desk)

    return asyncio.run(call())


def test_a_task_keeps_its_slot_until_it_is_given_back():
    async def work(desk: SlotDesk) -> None:
        first = await desk.get("a")
        assert await desk.get("a") is first and await desk.get("b") is not first
        await first.write("x.txt", b"1")
        await desk.release("a")
        again = await desk.get("a")
        assert again is not first
        with pytest.raises(FileNotFoundError):
            await again.read("x.txt")
        await desk.release("never leased")

    run(work)


def test_plain_functions_wait_for_their_slot_in_another_thread():
    async def work(desk: SlotDesk) -> bytes:
        def use() -> bytes:
            box = desk.wait(desk.get("a"))
            desk.wait(box.write("x.txt", b"1"))
            return desk.wait(box.read("x.txt"))

        return await asyncio.to_thread(use)

    assert run(work) == b"1"


def test_the_folder_of_a_task_is_forgotten_with_it():
    async def work(desk: SlotDesk) -> None:
        assert desk.get_folder("a") == "/workspace"
        desk.change("a", {"cwd": "/app"})
        assert desk.get_folder("a") == "/app" and desk.get_folder("b") == "/workspace"
        desk.forget_change("a")
        desk.change("b", {"cwd": "/app"})
        await desk.release("b")
        assert desk.get_folder("a") == desk.get_folder("b") == "/workspace"

    run(work)


def test_an_image_needs_a_profile():
    async def work(desk: SlotDesk) -> None:
        with pytest.raises(ConfigError, match=r"image 'unknown:1'.*--sandbox\.profiles"):
            desk.change("a", {"docker_image": "unknown:1"})
        desk.change("b", {"modal_image": "known:1"})

    run(work, **{"known:1": "mine"})


def test_the_length_of_a_tools_results_can_be_set():
    async def work(desk: SlotDesk) -> None:
        tools = {tool.name: tool for tool in await desk.make_tools("a", ["terminal", "file"], {"terminal": 17})}
        assert tools["terminal"].result_chars == 17 and tools["read_file"].result_chars != 17
        shown = await desk.run_tool(tools["terminal"], {"command": "echo $((6 * 7))"})
        assert "42" in str(shown)
        path = await desk.spill("a", "long.txt", b"all of it")
        assert await (await desk.get("a")).read(path) == b"all of it"

    run(work)


def test_a_slot_that_fails_is_on_the_record_of_the_group():
    async def fail() -> None:
        raise SandboxError("gone")

    async def work(desk: SlotDesk) -> list[BaseException]:
        scope = CallScope("group/1")
        SCOPE.set(scope)
        with pytest.raises(SandboxError):
            await desk.call(fail())
        return scope.failures

    assert [str(each) for each in run(work)] == ["gone"]
