"""A rollout's slot for code in the driver: `ToolContext`, `execute`, `execute_batch` and two functions for hooks.

    context = ToolContext(box)
    done = await context.terminal("pytest -q", timeout=60)
    if done.exit_code == 0: ...

All calls act in the slot of one rollout, and none blocks the event loop. Every command has a shell of its own, which
starts in the workspace: a `cd` or a variable lasts neither for the next call nor for the agent. The errors of commands
and file operations are in the result (`error`, `exit_code`). A broken slot raises `SandboxError`, so that a verifier
fails and does not return 0. `make_exec_tool` gives structured results, for set-up and verify; `make_tool_handler` gives
the text that a model sees, for the loop.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import Struct

from ludus.errors import LudusError, SandboxError
from ludus.sandbox import WORKSPACE, Sandbox
from ludus.tools import BadArguments, Tool
from ludus.tools.toolsets import make_tools
from ludus.types import Call, JsonObject

LONGEST_SECONDS = 600.0
SHELLS = ("bash", "terminal", "exec")
"""Names of the tool that runs a command."""


class ToolOutcome(Struct, frozen=True, omit_defaults=True):
    """The result of one tool in a slot."""

    success: bool
    output: str = ""
    error: str = ""
    """Why it failed; empty if it did not."""
    exit_code: int = 0
    timed_out: bool = False
    truncated: bool = False
    seconds: float = 0.0
    execution: str = ""


@dataclass(frozen=True)
class ToolCall:
    """One call of a tool in one slot."""

    box: Sandbox
    tool: str
    args: JsonObject
    timeout: float | None = None
    execution: str | None = None
    """A command with the same id as an earlier one is not run again."""
    folder: str = WORKSPACE
    """Where a command starts."""


async def execute(call: ToolCall) -> ToolOutcome:
    """Run a command (`bash`), `read_file` or `write_file` in a slot. The state of a command's shell does not last.

    Raises:
        SandboxError: the slot is gone.
        ValueError: slots have no such tool, or it does not take these arguments.
    """
    if call.tool in SHELLS:
        return await _run_command(call)
    path = call.args.get("path")
    if call.tool not in ("read_file", "write_file"):
        raise ValueError(f"slots have no tool '{call.tool}': they have bash, read_file and write_file")
    if not isinstance(path, str):
        raise ValueError(f"{call.tool} needs a 'path'")
    try:
        if call.tool == "read_file":
            return ToolOutcome(True, (await call.box.read(path)).decode(errors="replace"))
        await call.box.write(path, str(call.args.get("content", "")).encode())
        return ToolOutcome(True)
    except (OSError, ValueError) as error:
        return ToolOutcome(False, error=str(error), exit_code=1)


async def _run_command(call: ToolCall) -> ToolOutcome:
    command = call.args.get("command")
    if not isinstance(command, str):
        raise ValueError(f"{call.tool} needs a 'command'")
    seconds = min(LONGEST_SECONDS, max(1.0, call.timeout or call.box.spec.command_seconds))
    done = await call.box.exec(command, timeout=seconds, cwd=call.folder, execution=call.execution)
    error = f"not ended within {seconds:g} s" if done.timed_out else ""
    return ToolOutcome(
        success=done.exit_code == 0,
        output=done.text,
        error=error or (f"exit code {done.exit_code}" if done.exit_code else ""),
        exit_code=done.exit_code,
        timed_out=done.timed_out,
        truncated=done.truncated,
        seconds=done.seconds,
        execution=done.id,
    )


async def execute_batch(calls: Sequence[ToolCall]) -> list[ToolOutcome | SandboxError]:
    """Run calls at the same time, those of one slot in their order. A call that fails does not affect the others."""
    results: dict[int, ToolOutcome | SandboxError] = {}
    by_slot: dict[int, list[int]] = {}
    for number, call in enumerate(calls):
        by_slot.setdefault(id(call.box), []).append(number)

    async def run_in_slot(numbers: Sequence[int]) -> None:
        for number in numbers:
            results[number] = await _try_call(calls[number])

    async with asyncio.TaskGroup() as group:
        for numbers in by_slot.values():
            group.create_task(run_in_slot(numbers))
    return [results[number] for number in range(len(calls))]


async def _try_call(call: ToolCall) -> ToolOutcome | SandboxError:
    try:
        return await execute(call)
    except SandboxError as error:
        return error
    except ValueError as error:
        return ToolOutcome(False, error=str(error), exit_code=1)


ExecTool = Callable[..., Awaitable[ToolOutcome]]


def make_exec_tool(box: Sandbox) -> ExecTool:
    """A function for set-up and verify: `await exec_tool("bash", {"command": …}, timeout=300)`."""

    async def run(tool: str, args: JsonObject, timeout: float = 300.0) -> ToolOutcome:
        return await execute(ToolCall(box, tool, args, timeout))

    return run


def make_tool_handler(tools: Iterable[Tool]) -> Callable[[Call, JsonObject], Awaitable[str]]:
    """A handler for the loop that returns JSON for every call: `{"output": …}` or `{"error": …}`."""
    by_name = {tool.name: tool for tool in tools}

    async def handle(call: Call, args: JsonObject) -> str:
        return await call_as_json(by_name, call.name, args)

    return handle


async def call_as_json(tools: dict[str, Tool], name: str, args: JsonObject) -> str:
    tool = tools.get(name)
    if tool is None:
        return _encode_json({"error": f"there is no tool '{name}'; there are: {', '.join(sorted(tools)) or 'none'}"})
    try:
        return _encode_json({"output": await tool.run(args)})
    except LudusError:
        raise
    except BadArguments as error:
        return _encode_json({"error": str(error)})
    except Exception as error:  # a tool is foreign code: its caller sees what it raises
        return _encode_json({"error": f"{type(error).__name__}: {error}"})


def _encode_json(value: JsonObject) -> str:
    return msgspec.json.encode(value).decode()


class ToolContext:
    """One rollout's slot and tools, for a verifier or a reward function."""

    def __init__(self, box: Sandbox, tools: Iterable[Tool] | None = None) -> None:
        self._box = box
        self._tools = {tool.name: tool for tool in (make_tools(("terminal", "file"), box) if tools is None else tools)}

    async def terminal(self, command: str, timeout: float = 180.0) -> ToolOutcome:
        return await execute(ToolCall(self._box, "bash", {"command": command}, timeout))

    async def read_file(self, path: str) -> ToolOutcome:
        return await execute(ToolCall(self._box, "read_file", {"path": path}))

    async def write_file(self, path: str, content: str) -> ToolOutcome:
        return await execute(ToolCall(self._box, "write_file", {"path": path, "content": content}))

    async def upload_file(self, local: Path, remote: str) -> None:
        """Upload a file of any bytes, up to the transfer limit. Raises OSError."""
        await self._box.upload(local, remote)

    async def upload_dir(self, local: Path, remote: str) -> None:
        await self._box.upload(local, remote)

    async def download_file(self, remote: str, local: Path) -> None:
        await self._box.download(remote, local)

    async def download_dir(self, remote: str, local: Path) -> None:
        await self._box.download(remote, local)

    async def search(self, query: str, path: str = ".") -> str:
        """Lines that match a regular expression, as the search tool shows them to the model."""
        return await self.call_tool("search_files", {"pattern": query, "path": path})

    async def call_tool(self, name: str, args: JsonObject) -> str:
        """Call any tool of the rollout. The result is JSON: `{"output": …}` or `{"error": …}`."""
        return await call_as_json(self._tools, name, args)

    async def cleanup(self) -> None:
        """End every process of the rollout. The slot is released by the code that leased it."""
        await self._box.settle()
