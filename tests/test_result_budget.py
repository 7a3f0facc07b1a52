"""Which tool results are too long to show, and what is shown in their place. How the loop does it: `test_agent.py`."""

from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from ludus.policy import Limits
from ludus.result_budget import RESULTS, apply_size_budget, choose_long, cut_ends, make_spill
from ludus.sandbox import Sandbox
from ludus.tools import Tool
from ludus.types import Call, ToolResult, ToolSpec


@given(st.text(alphabet="ab\n", max_size=80), st.integers(5, 40))
def test_the_ends_shown_of_a_long_result_are_its_own(text: str, limit: int):
    head, tail = cut_ends(text, limit)
    if len(text) > limit:
        assert text.startswith(head)
        assert text.endswith(tail)
        assert len(head) + len(tail) <= limit


def test_results_over_their_own_allowance_are_chosen_and_then_the_largest():
    texts = ["x" * size for size in (400, 900, 500)]
    assert choose_long(texts, [1000] * 3, 2000) == []
    assert choose_long(texts, [1000] * 3, 1000) == [1]
    assert choose_long(texts, [100, 1000, 1000], 2000) == [0]
    assert choose_long(texts, [100, 1000, 1000], 500) == [0, 1]
    assert choose_long(texts, [1000] * 3, 0) == [0, 1, 2]


@given(st.lists(st.integers(0, 50), max_size=8), st.integers(0, 50), st.integers(0, 120))
def test_what_is_not_chosen_fits(sizes: list[int], allowance: int, total: int):
    texts = ["x" * size for size in sizes]
    chosen = choose_long(texts, [allowance] * len(sizes), total)
    kept = [size for index, size in enumerate(sizes) if index not in chosen]
    assert sum(kept) <= total and all(size <= allowance for size in kept)


class Disk:
    """A slot that keeps what is written, until it is full."""

    def __init__(self, *, full: bool = False) -> None:
        self.files: dict[str, bytes] = {}
        self._full = full

    async def write(self, path: str, data: bytes) -> None:
        if self._full:
            raise OSError(28, "No space left on device")
        self.files[path] = data

    def resolve(self, path: str) -> str:
        return f"/real{path}"


def make_result(name: str, text: str, error: str = "") -> ToolResult:
    return ToolResult(Call("c", name, "{}"), text, error)


def make_tool(name: str, result_chars: int | None) -> Tool:
    async def run(arguments: Any) -> str:
        return ""

    return Tool(ToolSpec(name, "", {"type": "object"}), run, result_chars=result_chars)


async def shorten(disk: Disk, *results: ToolResult, **tools: Tool) -> list[ToolResult]:
    limits = Limits(result_chars=100, preview_chars=20)
    return await apply_size_budget(results, tools, limits, make_spill(cast("Sandbox", disk)), 3)


async def test_a_long_result_is_in_the_slot_whole_at_the_path_that_commands_find():
    disk = Disk()
    short, long = await shorten(disk, make_result("look", "ok"), make_result("look", "y" * 500, "z" * 500))
    assert (short.content, short.spilled) == ("ok", "")
    assert disk.files == {f"{RESULTS}/turn3-2.txt": b"y" * 500}
    assert long.spilled == f"/real{RESULTS}/turn3-2.txt" and long.spilled in long.content
    assert len(long.error) == 20


async def test_a_slot_whose_disk_is_full_costs_the_rest_of_the_result_only():
    (long,) = await shorten(Disk(full=True), make_result("look", "y" * 500))
    assert long.spilled == "" and "480 of 500 characters are not shown: they were dropped" in long.content


async def test_a_tool_may_have_an_allowance_of_its_own():
    tools = {"wide": make_tool("wide", 1000), "narrow": make_tool("narrow", 5)}
    wide, narrow = await shorten(Disk(), make_result("wide", "y" * 500), make_result("narrow", "y" * 50), **tools)
    assert (wide.spilled, bool(narrow.spilled)) == ("", True)
