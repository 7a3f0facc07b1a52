"""The code blocks of a page as one shell script, so that a test can run them in order, as a reader types them.

Blocks are fences of `bash` and `python`. A `python` block is saved if its first line or the paragraph before it names a
file (`# hello.py`, `hello.py`); otherwise it is run. A comment before a fence leaves its block out and says why:

    <!-- not run: needs a GPU -->
"""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

_FENCE = re.compile(r"^```(bash|python)\n(.*?)^```$", re.S | re.M)
_NOT_RUN = re.compile(r"<!-- not run: (.+?) -->\s*\Z")
_FIRST_LINE = re.compile(r"# ([\w/-]+\.py)$", re.M)
_FILE = re.compile(r"`([\w/-]+\.py)`")


class Block(NamedTuple):
    """A code block of a page."""

    language: str
    code: str
    line: int
    """The line of the page on which its code begins."""
    not_run: str = ""
    """Why it is not run; empty: it is."""
    file: str = ""
    """Where a reader saves it; empty: nowhere."""


def read_blocks(page: str) -> list[Block]:
    """Find the code blocks of a page, in order."""
    found: list[Block] = []
    end = 0
    for match in _FENCE.finditer(page):
        before, end = page[end : match.start()], match.end()
        mark = _NOT_RUN.search(before)
        file = _find_file(match[2], _NOT_RUN.sub("", before)) if match[1] == "python" else ""
        line = page.count("\n", 0, match.start()) + 2
        found.append(Block(match[1], match[2], line, mark[1] if mark else "", file))
    return found


def _find_file(code: str, before: str) -> str:
    paragraph = before.rstrip().rpartition("\n\n")[2]
    named = _FIRST_LINE.match(code) or _FILE.search(paragraph)
    return named[1] if named else ""


def write_script(blocks: list[Block], folder: Path) -> str:
    """Blocks as a script for bash, which ends at the first command that fails. Python code goes into the folder."""
    parts: list[str] = []
    for block in blocks:
        if block.not_run:
            continue
        parts.append(f"echo '--- line {block.line}'")
        if block.language == "bash":
            parts.append(block.code)
            continue
        saved = folder / f"block_{block.line}.py"
        saved.write_text(block.code)
        where = shlex.quote(str(saved))
        parts.append(f"cp {where} {shlex.quote(block.file)}" if block.file else f"python {where}")
    return "\n".join(parts)
