"""`ToolContext` and `exec_tool`: a rollout's slot for the reward functions of Hermes files.

`ToolContext` is synchronous and returns dicts, as files expect. Errors of commands and files are in the dicts. A broken
slot raises, so that it is a failure and not a reward of 0.
"""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ludus.compat.atropos_env.base_env import SERVICES
from ludus.compat.hermes_env.slot_tools import SHELLS, ToolCall, ToolOutcome, call_as_json, execute
from ludus.compat.hermes_env.task_slots import TaskSlots
from ludus.errors import ConfigError

WEB_TOOLSETS = ("web", "browser")


def get_slots() -> TaskSlots:
    """The slots of the run whose code is running."""
    services = SERVICES.get()
    slots = services.slots if services is not None else None
    if not isinstance(slots, TaskSlots):
        raise ConfigError("ToolContext and HermesAgentLoop work inside a run: ludus process hermes:FILE.py")
    return slots


class HermesToolContext:
    """`environments.tool_context.ToolContext`."""

    def __init__(self, task_id: str) -> None:
        self.task_id = task_id
        self._slots = get_slots()

    def terminal(self, command: str, timeout: float = 180) -> dict[str, Any]:
        """Run a command in a shell of its own. Returns `exit_code` and `output`."""
        done = self._execute("bash", {"command": command}, timeout)
        return {"exit_code": done.exit_code, "output": done.output, **({"error": done.error} if done.timed_out else {})}

    def read_file(self, path: str) -> dict[str, Any]:
        done = self._execute("read_file", {"path": path})
        return {"content": done.output} if done.success else {"error": done.error}

    def write_file(self, path: str, content: str) -> dict[str, Any]:
        done = self._execute("write_file", {"path": path, "content": content})
        size = len(content.encode(errors="replace"))
        return {"success": True, "path": path, "bytes_written": size} if done.success else {"error": done.error}

    def upload_file(self, local_path: Any, remote_path: str) -> dict[str, Any]:
        if not Path(local_path).is_file():
            return {"exit_code": -1, "output": f"there is no file {local_path}"}
        return self._transfer(self._upload(Path(local_path), remote_path))

    def upload_dir(self, local_dir: Any, remote_dir: str) -> list[dict[str, Any]]:
        """Upload all files of a folder. One result for each file."""
        files = sorted(path for path in Path(local_dir).rglob("*") if path.is_file())
        done = self._transfer(self._upload(Path(local_dir), remote_dir))
        return [{**done, "path": str(path.relative_to(local_dir))} for path in files]

    def download_file(self, remote_path: str, local_path: Any) -> dict[str, Any]:
        target = Path(local_path)
        target.parent.mkdir(parents=True, exist_ok=True)
        done = self._transfer(self._download(remote_path, target))
        if done["exit_code"] or not target.is_file():
            return {"success": False, "error": done["output"] or f"{remote_path} is not a file"}
        return {"success": True, "bytes": target.stat().st_size}

    def download_dir(self, remote_dir: str, local_dir: Any) -> list[dict[str, Any]]:
        """Download a folder. One result for each file."""
        target = Path(local_dir)
        target.mkdir(parents=True, exist_ok=True)
        done = self._transfer(self._download(remote_dir, target))
        if done["exit_code"]:
            return [{"success": False, "error": done["output"]}]
        files = sorted(path for path in target.rglob("*") if path.is_file())
        return [{"success": True, "bytes": path.stat().st_size, "path": str(path)} for path in files]

    def search(self, query: str, path: str = ".") -> dict[str, Any]:
        return json.loads(self.call_tool("search_files", {"pattern": query, "path": path}))

    def web_search(self, query: str) -> dict[str, Any]:
        return json.loads(self.call_tool("web_search", {"query": query}))

    def web_extract(self, urls: list[str]) -> dict[str, Any]:
        return json.loads(self.call_tool("web_extract", {"urls": urls}))

    def browser_navigate(self, url: str) -> dict[str, Any]:
        return json.loads(self.call_tool("browser_navigate", {"url": url}))

    def browser_snapshot(self) -> dict[str, Any]:
        return json.loads(self.call_tool("browser_snapshot", {}))

    def call_tool(self, tool_name: str, arguments: dict[str, Any]) -> str:
        """Call any tool of the run. The result is JSON: `{"output": …}` or `{"error": …}`."""
        return self._slots.wait(self._call_tool(tool_name, arguments))

    def cleanup(self) -> None:
        """Give the slot back."""
        self._slots.wait(self._slots.release(self.task_id))

    # ---- in the loop of Ludus -------------------------------------------------------------------------------------

    def _execute(self, tool: str, arguments: dict[str, Any], seconds: float | None = None) -> ToolOutcome:
        return self._slots.wait(run_in_slot(self._slots, self.task_id, tool, arguments, seconds))

    def _transfer(self, work: Any) -> dict[str, Any]:
        try:
            self._slots.wait(work)
        except (OSError, ValueError) as error:
            return {"exit_code": 1, "output": str(error)}
        return {"exit_code": 0, "output": ""}

    async def _upload(self, local: Path, remote: str) -> None:
        await (await self._slots.get(self.task_id)).upload(local, remote)

    async def _download(self, remote: str, local: Path) -> None:
        await (await self._slots.get(self.task_id)).download(remote, local)

    async def _call_tool(self, name: str, arguments: dict[str, Any]) -> str:
        slots, registry = self._slots, self._slots.registry
        usable = [each.name for each in registry.toolsets if each.make and not each.missing]
        tools = {tool.name: tool for tool in registry.make_tools(usable, await slots.get(self.task_id))}
        return await call_as_json(tools, name, arguments)


async def run_in_slot(
    slots: TaskSlots, task_id: str, tool: str, arguments: dict[str, Any], seconds: float | None, folder: str = ""
) -> ToolOutcome:
    """Run a command, or read or write a file, in the slot of a task. `folder`: where a command starts."""
    box = await slots.get(task_id)
    if tool in SHELLS:
        return await execute(ToolCall(box, tool, arguments, seconds, folder=folder or slots.get_folder(task_id)))
    return await execute(ToolCall(box, tool, arguments, seconds))


# ---- exec_tool ----------------------------------------------------------------------------------------------------


@dataclass
class HermesExecResult:
    """What `exec_tool` returns: `atropos.slots.executor.ExecutionResult`."""

    success: bool
    output: str = ""
    error: str = ""
    execution_id: str = ""
    slot_id: str = ""
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    """`returncode` and `exit_code`, which are the same, and `timeout`."""


HermesExecTool = Callable[..., Awaitable[HermesExecResult]]


def make_hermes_exec(slots: TaskSlots, task_id: str) -> HermesExecTool:
    """`await exec_tool("bash", {"command": …}, timeout=300)`, or with one object that has `name` and `arguments`."""

    async def run(tool: Any, args: dict[str, Any] | None = None, timeout: float = 300.0, **_: Any) -> HermesExecResult:
        name, given = (tool, args or {}) if isinstance(tool, str) else (str(tool.name), dict(tool.arguments))
        done = await slots.call(run_in_slot(slots, task_id, name, given, timeout))
        return HermesExecResult(
            done.success,
            done.output,
            done.error,
            done.execution,
            task_id,
            {"returncode": done.exit_code, "exit_code": done.exit_code, "timeout": done.timed_out},
        )

    return run
