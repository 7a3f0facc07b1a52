"""A tool that runs Python in the slot: the script is sent through stdin, its output and exit code are returned.

Each call starts a new interpreter in the shell's current folder. Modules in that folder can be imported. The script is
not written to the slot's disk, and only the files that it makes remain.
"""

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from ludus.sandbox import Sandbox
from ludus.tools import Tool, tool
from ludus.tools.terminal import LONGEST, Seconds, choose_seconds, format_result


def python_tools(box: Sandbox | None) -> Sequence[Tool]:
    assert box is not None, "Python needs a slot"
    return [run_python.bind(box)]


@tool(bound=True, seconds=LONGEST + 60)
async def run_python(
    box: Sandbox,
    code: Annotated[str, Meta(description="A whole script. Print what you want to see.")],
    timeout: Seconds = None,
) -> str:
    """Run a Python 3 script in the sandbox and return what it prints. Variables do not last from call to call."""
    limit = choose_seconds(timeout, box)
    return format_result(await box.exec("python3 -", stdin=code.encode(), timeout=limit), limit)
