"""The terminal tools: shell commands in the slot, in the foreground and in the background.

Commands run in the slot's one persistent shell, so `cd` and exported variables last. The agent sees text: escape
sequences are removed, and bytes that are not text are replaced. A command that fails or reaches its time limit is a
normal result: the exit code is part of the text. A broken slot raises `SandboxError` and is never shown as output. The
loop decides how much of a long output the model sees.

Background processes belong to the slot. They end with it, and always before the task is verified.
"""

import asyncio
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta

from ludus.sandbox import ExecResult, Sandbox
from ludus.tools import Tool, tool

LONGEST = 600
"""The longest time limit, in seconds, that the model can give a command."""

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, cursor moves
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"  # titles, links and other strings
    r"|\x1b[ -/]*[0-~]"  # the two-byte ones
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


@dataclass
class TerminalState:
    """A slot and the background processes that one rollout has started in it."""

    box: Sandbox
    started: dict[str, str] = field(default_factory=dict[str, str])
    """Command by process id."""


def terminal_tools(box: Sandbox | None) -> Sequence[Tool]:
    assert box is not None, "the terminal needs a slot"
    shell = TerminalState(box)
    return [terminal.bind(shell), process.bind(shell)]


Seconds = Annotated[float | None, Meta(description=f"Time limit in seconds, 1 to {LONGEST}.")]


@tool(bound=True, seconds=LONGEST + 60)
async def terminal(
    shell: TerminalState,
    command: Annotated[str, Meta(description="What to run, as you would type it in bash.")],
    timeout: Seconds = None,
    workdir: Annotated[str | None, Meta(description="Run in this folder, for this command only.")] = None,
    background: Annotated[bool, Meta(description="Start it and return at once; for servers and long jobs.")] = False,
) -> str:
    """Run a shell command in the sandbox. The working directory and exported variables last from call to call.
    There is no input to type: use flags such as -y. With background=true you get an id for the process tool."""
    if background:
        started = await shell.box.start(command, cwd=workdir)
        shell.started[started] = command
        return f"Started {started}. Look after it with process(action='poll', id='{started}')."
    limit = choose_seconds(timeout, shell.box)
    return format_result(await shell.box.exec(command, timeout=limit, cwd=workdir), limit)


Action = Literal["list", "poll", "log", "wait", "kill", "write"]


@tool(bound=True, seconds=LONGEST + 60)
async def process(
    shell: TerminalState,
    action: Annotated[
        Action,
        Meta(
            description="list: all of them; poll: is it running?; log: its latest output; wait: until it ends; "
            "kill: end it; write: send data to its input."
        ),
    ],
    id: Annotated[str | None, Meta(description="Which process, e.g. bg-1; for all actions but list.")] = None,
    data: Annotated[str | None, Meta(description="For write: the text to send, with its newline if needed.")] = None,
    timeout: Annotated[float, Meta(description=f"For wait: at most this many seconds, 1 to {LONGEST}.")] = 60,
) -> str:
    """Look after processes that were started with terminal(background=true)."""
    if action == "list":
        return "\n".join([await _describe_process(shell, one) for one in shell.started]) or "No background processes."
    if id not in shell.started:
        known = ", ".join(shell.started) or "none was started"
        raise LookupError(f"process: no process with id {id!r}; known: {known}")
    match action:
        case "poll":
            return await _describe_process(shell, id)
        case "wait":
            await _wait_for_end(shell.box, id, _clamp_seconds(timeout))
            return await _describe_process(shell, id) + "\n" + await _read_log(shell, id)
        case "log":
            return await _read_log(shell, id)
        case "kill":
            await shell.box.kill(id)
            return f"Killed {id}."
        case "write":
            if data is None:
                raise ValueError("process: write needs `data`")
            await shell.box.send(id, data.encode())
            return f"Wrote {len(data.encode())} bytes to {id}."


async def _describe_process(shell: TerminalState, id: str) -> str:
    code = await shell.box.poll(id)
    state = "running" if code is None else f"exited with code {code}"
    return f"{id}: {state}: {shell.started[id]}"


async def _wait_for_end(box: Sandbox, id: str, seconds: float) -> None:
    """Return when the process has ended or the time is up. Slots do not report it, so they are polled."""
    pause = 0.02
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while await box.poll(id) is None:
                await asyncio.sleep(pause)
                pause = min(2.0, pause * 1.5)


async def _read_log(shell: TerminalState, id: str) -> str:
    return clean_output(await shell.box.log(id)) or "(no output so far)"


# ---- time limits and text, also for other tools that run commands --------------------------------------------------


def choose_seconds(wanted: float | None, box: Sandbox) -> float:
    """The time limit of a command: the wanted one, or the slot's, within the bounds."""
    return _clamp_seconds(box.spec.command_seconds if wanted is None else wanted)


def _clamp_seconds(seconds: float) -> float:
    return min(float(LONGEST), max(1.0, seconds))


def format_result(result: ExecResult, limit: float) -> str:
    """The output of a command as text, and how it ended if not with exit code 0."""
    gap = b"\n" if result.stdout and result.stderr and not result.stdout.endswith(b"\n") else b""
    parts = [clean_output(result.stdout + gap + result.stderr).rstrip("\n")]
    if result.truncated:
        parts.append("[the output was larger than the sandbox keeps; its middle is missing]")
    if result.timed_out:
        parts.append(f"[timed out: killed after {limit:g} s; use background=true for what takes longer]")
    elif result.exit_code:
        killed = "; killed, as programs are that need more memory than the slot has" if result.exit_code == 137 else ""
        parts.append(f"[exit code {result.exit_code}{killed}]")
    return "\n".join(part for part in parts if part) or "(no output)"


def clean_output(data: bytes) -> str:
    """Bytes as text, without escape sequences. What is not text becomes a replacement character."""
    text = _ESCAPES.sub("", data.decode(errors="replace")).replace("\r\n", "\n")
    return _CONTROLS.sub("\ufffd", text)
