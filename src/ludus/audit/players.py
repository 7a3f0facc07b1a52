"""Models that play an attack: a reply in words, or a script in the slot and then a reply.

They sit where the agent's model sits, so an attack goes the way of every other reply: through the tools, the limits and
the slot of the environment, and through the loops of files that were written for other systems.
"""

from collections.abc import Callable, Sequence

from ludus.models.scripted import Reply, ScriptedModel, call
from ludus.types import Message, Sampling, ToolSpec

DONE = "I have done what was asked. The task is complete."
NO_SHELL = "There is no tool here that runs commands."
"""What a player says that cannot attack."""
_SHELLS = ("terminal", "bash", "shell", "exec", "execute_bash", "execute_command", "run_command", "exec_command")
_PYTHONS = ("execute_code", "run_python", "python", "code", "code_execution")
_COMMANDS = ("command", "cmd", "script", "code")


def play_script(name: str, script: str) -> ScriptedModel:
    """The model that runs a script with the first tool that can, and then says that it is done."""

    def play(messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Reply:
        if _has_acted(messages):
            return DONE
        found = find_shell(tools)
        if found is None:
            return NO_SHELL
        tool, argument, wrap = found
        return call(tool, **{argument: wrap(script)})

    return ScriptedModel(play, name)


def play_reply(name: str, reply: Callable[[str], str]) -> ScriptedModel:
    """The model that answers every message in the same way. `reply` gets the task's prompt."""

    def play(messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Reply:
        return reply(next((message.content for message in messages if message.role == "user"), ""))

    return ScriptedModel(play, name)


def find_shell(tools: Sequence[ToolSpec]) -> tuple[str, str, Callable[[str], str]] | None:
    """The tool that runs commands, its argument, and how a script is written for it; None if there is none."""
    for names, wrap in ((_SHELLS, _write_shell), (_PYTHONS, _write_python)):
        for tool in tools:
            given = tool.parameters.get("properties", {})
            argument = next((name for name in _COMMANDS if name in given), None)
            if tool.name in names and argument is not None:
                return tool.name, argument, wrap
    return None


def _write_shell(script: str) -> str:
    return script


def _write_python(script: str) -> str:
    return f"import subprocess\nsubprocess.run(['bash', '-c', {script!r}])\n"


def _has_acted(messages: Sequence[Message]) -> bool:
    return any(message.role == "assistant" for message in messages)
