"""Which tool results are too long to show, and what is shown in their place.

Decisions are pure (`choose_long`, `cut_ends`); `apply_size_budget` writes the whole results to the slot.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from ludus.policy import Limits
from ludus.sandbox import Sandbox
from ludus.tools import Tool
from ludus.types import ToolResult

Spill = Callable[[str, bytes], Awaitable[str]]
"""Stores a result that is too long to show. Takes a file name and the whole text, and returns the path in the slot."""

RESULTS = "/tmp/ludus-results"
"""The folder in a slot for tool results that are too long to show."""


def make_spill(box: Sandbox) -> Spill:
    """Stores long results in a slot."""

    async def spill(name: str, data: bytes) -> str:
        path = f"{RESULTS}/{name}"
        try:
            await box.write(path, data)
        except OSError:  # the agent filled the slot's disk: it gets the preview alone
            return ""
        return box.resolve(path)  # the agent's commands must find the file

    return spill


async def apply_size_budget(
    results: Sequence[ToolResult], tools: Mapping[str, Tool], limits: Limits, spill: Spill | None, turn: int
) -> list[ToolResult]:
    """Replace results that are too long, alone or together, by a preview."""
    shown = list(results)
    allowances = [_get_allowance(result, tools, limits) for result in results]
    for index in choose_long([result.content for result in results], allowances, limits.turn_chars):
        shown[index] = await _shorten(shown[index], limits.preview_chars, spill, f"turn{turn}-{index + 1}.txt")
    return shown


def _get_allowance(result: ToolResult, tools: Mapping[str, Tool], limits: Limits) -> int:
    own = tools[result.call.name].result_chars if result.call.name in tools else None
    return limits.result_chars if own is None else own


def choose_long(contents: Sequence[str], allowances: Sequence[int], total: int) -> list[int]:
    """Choose the results to shorten: those over their own allowance, then the largest until the rest fits `total`."""
    chosen = [i for i, text in enumerate(contents) if len(text) > allowances[i]]
    rest = sorted((i for i in range(len(contents)) if i not in chosen), key=lambda i: -len(contents[i]))
    size = sum(len(contents[i]) for i in rest)
    for i in rest:
        if size <= total:
            break
        chosen.append(i)
        size -= len(contents[i])
    return sorted(chosen)


async def _shorten(result: ToolResult, preview_chars: int, spill: Spill | None, name: str) -> ToolResult:
    text = result.content
    path = await spill(name, text.encode(errors="replace")) if spill else ""
    where = f"the whole result is in {path}; read it in parts" if path else "they were dropped"
    head, tail = cut_ends(text, preview_chars)
    left_out = len(text) - len(head) - len(tail)
    content = f"{head}\n[{left_out} of {len(text)} characters are not shown: {where}]\n{tail}"
    return msgspec.structs.replace(result, content=content, spilled=path, error=result.error[:preview_chars])


def cut_ends(text: str, limit: int) -> tuple[str, str]:
    """The beginning and the end of a text: 40 % and 60 % of `limit`, because errors are often at the end. Where lines
    are short, they are whole lines."""
    head, tail = text[: limit * 2 // 5], text[len(text) - (limit - limit * 2 // 5) :]
    end, start = head.rfind("\n") + 1, tail.find("\n") + 1
    return head[: end if end > len(head) // 2 else None], tail[start if 0 < start < len(tail) // 2 else 0 :]
