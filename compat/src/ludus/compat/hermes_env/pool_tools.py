"""The tools of files written for `AgentEnv`: their calls and results, and the toolsets by their names there.

Commands and files act in the slot of the rollout. Every command has a shell of its own. Toolsets that act outside of it
(web, vision …) are those of Ludus, and need `tool_server_url: inprocess`. A file can register tools of its own; they
run in its process.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from ludus.chat_form import write_tool
from ludus.compat.hermes_env.agent_env_config import IN_PROCESS
from ludus.compat.hermes_env.context import run_in_slot
from ludus.compat.hermes_env.task_slots import TaskSlots
from ludus.compat.hermes_env.tools import ALL, list_usable, map_toolset
from ludus.errors import ConfigError, LudusError
from ludus.parsers import Parser
from ludus.tools import BadArguments
from ludus.tools.toolsets import Registry
from ludus.types import Observation, ToolSpec

IN_SLOT = ("terminal", "file", "code")
"""Toolsets of Ludus that act in the slot alone."""
COMMANDS = ("terminal", "bash")


@dataclass
class PoolToolSchema:
    """`atropos.tools.ToolSchema`. `parameters` are the properties of the JSON schema."""

    name: str
    description: str
    parameters: dict[str, Any] = field(default_factory=dict[str, Any])
    required: list[str] = field(default_factory=list[str])
    external: bool = False

    def make_spec(self) -> ToolSpec:
        shape = {"type": "object", "properties": self.parameters, "required": list(self.required)}
        return ToolSpec(self.name, self.description, shape)

    def to_dict(self) -> dict[str, Any]:
        return write_tool(self.make_spec())


@dataclass
class PoolToolCall:
    """`atropos.tools.ToolCall`."""

    name: str
    arguments: dict[str, Any]
    raw_text: str = ""
    uniq_id: str = field(default_factory=lambda: str(uuid4()))

    @classmethod
    def parse_from_text(cls, text: str) -> "list[PoolToolCall]":
        """The calls in a text with `<tool_call>` tags. Arguments that are no JSON object are left out."""
        found: list[PoolToolCall] = []
        for call in Parser("hermes").parse(text).calls:
            try:
                given = json.loads(call.arguments or "{}")
            except ValueError:
                continue
            if isinstance(given, dict):
                found.append(cls(call.name, given, call.arguments, call.id or str(uuid4())))  # pyright: ignore[reportUnknownArgumentType]
        return found

    @classmethod
    def has_tool_call(cls, text: str) -> bool:
        return "<tool_call>" in text


@dataclass
class PoolToolResult:
    """`atropos.tools.ToolResult`."""

    success: bool
    output: str = ""
    error: str = ""
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    """Of a command: `returncode` and `exit_code`, which are the same, and `timeout`."""
    uniq_id: str | None = None

    def show(self) -> str:
        """What the model sees."""
        shown = {"success": self.success, "output": self.output, **({"error": self.error} if self.error else {})}
        return json.dumps(shown, ensure_ascii=False)

    def to_xml(self) -> str:
        return f"<tool_response>{self.show()}</tool_response>"

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


class PoolTool:
    """`atropos.tools.Tool`: the base class of a file's own tools."""

    @property
    def schema(self) -> PoolToolSchema:
        raise NotImplementedError(f"{type(self).__name__} does not define schema")

    @property
    def name(self) -> str:
        return self.schema.name

    def is_available(self) -> tuple[bool, str | None]:
        return True, None

    async def execute(self, **arguments: Any) -> PoolToolResult:
        raise NotImplementedError(f"{type(self).__name__} does not define execute()")


class KnownTool(PoolTool):
    """A tool that runs in or for the slot of a rollout."""

    def __init__(self, schema: PoolToolSchema, toolset: str = "") -> None:
        self._schema = schema
        self.toolset = toolset
        """The toolset of Ludus that makes it; empty: a command or a file of the slot."""

    @property
    def schema(self) -> PoolToolSchema:
        return self._schema

    async def execute(self, **arguments: Any) -> PoolToolResult:
        return PoolToolResult(False, error=f"{self.name} works in the slot of a rollout: call it with exec_tool")


class PoolToolRegistry:
    """`atropos.tools.ToolRegistry`."""

    def __init__(self) -> None:
        self._tools: dict[str, PoolTool] = {}

    def register(self, tool: PoolTool) -> None:
        self._tools[tool.name] = tool

    def get(self, name: str) -> PoolTool | None:
        return self._tools.get(name)

    def list_tools(self) -> list[PoolTool]:
        return list(self._tools.values())

    def get_schemas(self) -> list[PoolToolSchema]:
        return [tool.schema for tool in self._tools.values()]

    async def execute(self, call: PoolToolCall) -> PoolToolResult:
        """Run a tool of the file's own. What it raises is in the result."""
        tool = self.get(call.name)
        if tool is None:
            return PoolToolResult(False, error=f"Unknown tool: {call.name}", uniq_id=call.uniq_id)
        try:
            done = await tool.execute(**call.arguments)
        except LudusError:
            raise
        except Exception as error:  # foreign code
            done = PoolToolResult(False, error=f"{type(error).__name__}: {error}")
        done.uniq_id = done.uniq_id or call.uniq_id
        return done


# ---- toolsets -----------------------------------------------------------------------------------------------------

_TEXT = {"type": "string"}
_COMMAND: dict[str, Any] = {
    "command": {**_TEXT, "description": "The command."},
    "timeout": {"type": "integer", "minimum": 1, "description": "The time limit in seconds."},
}
_PATH: dict[str, Any] = {"path": {**_TEXT, "description": "The path of the file."}}
_CONTENT: dict[str, Any] = {"content": {**_TEXT, "description": "The whole text of the file."}}
_ABOUT = "Run a shell command in the workspace. Every call has a fresh shell; files last."
SLOT_TOOLS = {
    "terminal": PoolToolSchema("terminal", _ABOUT, _COMMAND, ["command"]),
    "bash": PoolToolSchema("bash", _ABOUT, _COMMAND, ["command"]),
    "read_file": PoolToolSchema("read_file", "Read a text file.", _PATH, ["path"]),
    "write_file": PoolToolSchema("write_file", "Write a text file.", {**_PATH, **_CONTENT}, ["path", "content"]),
}
_FILES = ("read_file", "write_file")
SLOT_SETS = {
    "terminal": ("terminal",),
    "filesystem": _FILES,
    "sandbox": ("terminal", *_FILES),
    "default": ("terminal", *_FILES),
}
"""Toolsets that other systems do not have, or have with other tools."""


def build_pool_tools(
    enabled: Sequence[str], disabled: Sequence[str], tool_server_url: str | None, registry: Registry
) -> PoolToolRegistry:
    """The tools of toolsets.

    Raises:
        ConfigError: one is unknown or cannot be used.
    """
    outside = tool_server_url == IN_PROCESS
    chosen = _list_all(enabled, outside, registry, "enabled_toolsets")
    left_out = {tool.name for tool in _list_all(disabled, True, registry, "disabled_toolsets")}
    made = PoolToolRegistry()
    for tool in chosen:
        if tool.name not in left_out and made.get(tool.name) is None:
            made.register(tool)
    return made


def _list_all(names: Iterable[str], outside: bool, registry: Registry, setting: str) -> list[KnownTool]:
    try:
        return [tool for name in names for tool in _list_tools(name, outside, registry)]
    except ConfigError as error:
        raise ConfigError(f"env.{setting}: {error}") from error


def _list_tools(name: str, outside: bool, registry: Registry) -> list[KnownTool]:
    if name in SLOT_SETS:
        return [KnownTool(SLOT_TOOLS[tool]) for tool in SLOT_SETS[name]]
    if name in ("full", *ALL):
        more = [each for each in list_usable(registry) if each not in ("terminal", "file")] if outside else []
        return [tool for each in ("default", *more) for tool in _list_tools(each, outside, registry)]
    if name == "terminal_stateful":
        raise ConfigError("'terminal_stateful' is a terminal of tmux, which slots do not have: use 'terminal'")
    found: list[KnownTool] = []
    for leaf in registry.require_usable(map_toolset(name), slot=True):
        if leaf.name == "terminal":
            found += _list_tools("terminal", outside, registry)
            continue
        if leaf.name not in IN_SLOT and not outside:
            raise ConfigError(f"'{name}' acts outside of the slot: add --env.tool_server_url {IN_PROCESS}")
        nowhere: Any = object()
        for tool in registry.make_tools([leaf.name], nowhere):
            shape = tool.spec.parameters
            schema = PoolToolSchema(
                tool.name, tool.spec.description, shape.get("properties", {}), shape.get("required", [])
            )
            found.append(KnownTool(schema, leaf.name))
    return found


# ---- calls --------------------------------------------------------------------------------------------------------


class SlotCalls:
    """Runs the calls of one rollout: `await calls.execute(ToolCall(name=…, arguments={…}))`."""

    def __init__(self, slots: TaskSlots, task_id: str, tools: PoolToolRegistry, folder: str = "") -> None:
        self._slots = slots
        self._task_id = task_id
        self._tools = tools
        self._folder = folder
        """Where commands start; empty: in the workspace."""
        self._made: dict[str, Any] = {}

    async def execute(self, call: Any) -> PoolToolResult:
        """Run a call. Errors of commands, files and arguments are in the result; a broken slot raises."""
        name, given = str(call.name), dict(call.arguments or {})
        tool = self._tools.get(name)
        try:
            if tool is not None and not isinstance(tool, KnownTool):
                return await self._tools.execute(call)
            if name in SLOT_TOOLS:
                done = await self._run_in_slot(name, given)
            elif tool is not None:
                done = await self._run_known(tool, given)
            else:
                done = PoolToolResult(False, error=f"Unknown tool: {name}")
        except (BadArguments, ValueError) as error:
            done = PoolToolResult(False, error=str(error))
        done.uniq_id = getattr(call, "uniq_id", None)
        return done

    async def _run_in_slot(self, name: str, given: dict[str, Any]) -> PoolToolResult:
        if name in COMMANDS and given.get("background"):
            return PoolToolResult(False, error="commands cannot run in the background here")
        seconds = given.get("timeout")
        limit = float(seconds) if isinstance(seconds, int | float) and not isinstance(seconds, bool) else None
        done = await self._slots.call(run_in_slot(self._slots, self._task_id, name, given, limit, self._folder))
        codes = {"returncode": done.exit_code, "exit_code": done.exit_code, "timeout": done.timed_out}
        return PoolToolResult(done.success, done.output, done.error, codes if name in COMMANDS else {})

    async def _run_known(self, tool: KnownTool, given: dict[str, Any]) -> PoolToolResult:
        slots = self._slots
        if tool.name not in self._made:
            made = await slots.call(slots.make_tools(self._task_id, [tool.toolset], {}))
            self._made |= {each.name: each for each in made}
        shown = await slots.call(slots.run_tool(self._made[tool.name], given))
        return PoolToolResult(True, shown.text if isinstance(shown, Observation) else shown)
