"""Worked examples in a skill document: a question and the right answer.

An example is a block of Markdown. It can be anywhere in the document, so that one edit can add or replace it:

    ## Example

    Input:

    ```text
    Please send 83 blue lamps to the store.
    ```

    Output:

    ```text
    lamps|blue|83
    ```

A fence is longer than any row of backticks inside it, so `render_example` and `parse_examples` keep every text
unchanged. A block that does not have exactly this form is ordinary text, and `remove_examples` keeps it. A block inside
another fence is not an example. Everything here is pure.
"""

import re
from collections.abc import Sequence

from msgspec import Struct


class Example(Struct, frozen=True):
    """One worked example."""

    input: str
    output: str


def _make_pattern(name: str) -> str:
    """The pattern of one label and its fenced text."""
    label, fence = name.capitalize(), f"{name}_fence"
    return rf"{label}:[ \t]*\n+(?P<{fence}>`{{3,}})[^`\n]*\n(?P<{name}>(?:.*\n)*?)(?P={fence})[ \t]*"


_BLOCKS = re.compile(
    rf"^## Example[ \t]*\n+{_make_pattern('input')}\n+{_make_pattern('output')}$"
    r"|^(?P<other>`{3,}|~{3,})[^\n]*\n(?:.*\n)*?(?:(?P=other)[`~]*[ \t]*$|.*\Z)",
    re.MULTILINE,
)


def render_example(example: Example) -> str:
    """The example as a block of a document."""
    return f"## Example\n\nInput:\n\n{_fence_text(example.input)}\n\nOutput:\n\n{_fence_text(example.output)}"


def _fence_text(text: str) -> str:
    longest = max((len(row) for row in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def parse_examples(text: str) -> tuple[Example, ...]:
    """The worked examples of a document, in order."""
    return tuple(Example(found["input"][:-1], found["output"][:-1]) for found in _find_blocks(text))


def remove_examples(text: str) -> str:
    """The document without its worked examples. A document without any is returned unchanged."""
    blocks = _find_blocks(text)
    if not blocks:
        return text
    ends = [0, *(block.end() for block in blocks)]
    starts = [*(block.start() for block in blocks), len(text)]
    pieces = (text[end:start].strip("\n") for end, start in zip(ends, starts, strict=True))
    rest = "\n\n".join(piece for piece in pieces if piece.strip())
    return f"{rest}\n" if rest else ""


def _find_blocks(text: str) -> Sequence[re.Match[str]]:
    return [block for block in _BLOCKS.finditer(text) if block["other"] is None]
