"""Worked examples in a skill document: what was asked, and the answer that is wanted.

An example is a block of Markdown that stands on its own, anywhere in the document, so that one edit can add or replace
one of them:

    ## Example

    Input:

    ```text
    Please send 83 blue lamps to the store.
    ```

    Output:

    ```text
    lamps|blue|83
    ```

A fence is longer than any row of backticks in what it holds, so every text survives `render` and `parse` unchanged.
What is not exactly of this form is text like any other: nothing is guessed, and `without_examples` leaves it alone.
A block within another fence shows the form and is no example. Everything here is pure.
"""

import re
from collections.abc import Sequence

from msgspec import Struct


class Example(Struct, frozen=True):
    """One worked example."""

    input: str
    output: str


def _part(name: str) -> str:
    """The pattern of one fenced text under its label."""
    label, fence = name.capitalize(), f"{name}_fence"
    return rf"{label}:[ \t]*\n+(?P<{fence}>`{{3,}})[^`\n]*\n(?P<{name}>(?:.*\n)*?)(?P={fence})[ \t]*"


_BLOCKS = re.compile(
    rf"^## Example[ \t]*\n+{_part('input')}\n+{_part('output')}$"
    r"|^(?P<other>`{3,}|~{3,})[^\n]*\n(?:.*\n)*?(?:(?P=other)[`~]*[ \t]*$|.*\Z)",
    re.MULTILINE,
)


def render(example: Example) -> str:
    """The example as a block of a document."""
    return f"## Example\n\nInput:\n\n{_fenced(example.input)}\n\nOutput:\n\n{_fenced(example.output)}"


def _fenced(text: str) -> str:
    longest = max((len(row) for row in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def parse(text: str) -> tuple[Example, ...]:
    """The worked examples of a document, in order."""
    return tuple(Example(found["input"][:-1], found["output"][:-1]) for found in _found(text))


def without_examples(text: str) -> str:
    """The document without its worked examples; one that has none comes back as it is."""
    blocks = _found(text)
    if not blocks:
        return text
    ends = [0, *(block.end() for block in blocks)]
    starts = [*(block.start() for block in blocks), len(text)]
    pieces = (text[end:start].strip("\n") for end, start in zip(ends, starts, strict=True))
    rest = "\n\n".join(piece for piece in pieces if piece.strip())
    return f"{rest}\n" if rest else ""


def _found(text: str) -> Sequence[re.Match[str]]:
    return [block for block in _BLOCKS.finditer(text) if block["other"] is None]
