"""The definitions of the tools that rollouts were offered.

The record of a rollout has the names of its tools. Their descriptions and parameters are made again from the run's
settings: those of its toolsets, and those of its environment for the task. Sessions of the gateway have them in their
requests. A tool that is known to neither, such as one of a command-line agent, is counted as unknown.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from ludus.command import NO_SLOT
from ludus.config import Config, assemble
from ludus.config.build_agent import build_env
from ludus.config.build_models import build_ledger, build_vision
from ludus.config.build_tools import open_registry
from ludus.config.reading import Layer
from ludus.config.tree import SECTIONS
from ludus.env import Env
from ludus.errors import describe_error
from ludus.run_info import find_kind
from ludus.session_runs import read_session_tools
from ludus.store import RunDir
from ludus.tools.toolsets import Registry
from ludus.types import Rollout, ToolSpec


class ToolDefinitions:
    """Finds definitions, and notes the names of tools that have none."""

    def __init__(self, known: Mapping[str, ToolSpec], env: Env | None, problem: str = "") -> None:
        self._known = dict(known)
        self._env = env
        self.problem = problem
        """Why tools could not be made again; empty if nothing went wrong."""
        self.unknown: set[str] = set()

    @classmethod
    def read(cls, directory: RunDir) -> "ToolDefinitions":
        """Those of a run."""
        if find_kind(directory) == "gateway":
            return cls(read_session_tools(directory), None)
        try:
            config = read_recorded(directory.config)
            return cls(asyncio.run(_list_tools(config)), build_env(config))
        except Exception as error:  # the environment's file may be gone, or a server of tools does not answer
            return cls({}, None, describe_error(error))

    def find(self, rollout: Rollout) -> list[ToolSpec]:
        """The tools of a rollout, in the order in which they were offered. Unknown ones are left out and noted."""
        names = rollout.provenance.tools
        known = self._known
        if self._env is not None and any(name not in known for name in names):
            known = {**known, **self._list_own(self._env, rollout)}
        self.unknown.update(name for name in names if name not in known)
        return [known[name] for name in names if name in known]

    def _list_own(self, env: Env, rollout: Rollout) -> dict[str, ToolSpec]:
        try:
            return {tool.name: tool.spec for tool in env.tools(rollout.task, NO_SLOT)}
        except Exception as error:  # an environment is foreign code, and may need a real slot for its tools
            self.problem = describe_error(error)
            return {}

    def describe_unknown(self) -> str:
        """What is not known, for people; empty if everything is."""
        if not self.unknown:
            return ""
        why = f" ({self.problem})" if self.problem else ""
        return f"the run's settings do not give the definitions of these tools: {', '.join(sorted(self.unknown))}{why}"


def read_recorded(recorded: Mapping[str, Any]) -> Config:
    """The settings of a run, as its record has them."""
    return assemble([Layer("the run's settings", {name: recorded[name] for name in SECTIONS if name in recorded})])


async def _list_tools(config: Config) -> dict[str, ToolSpec]:
    async with open_registry(config.tools, build_vision(config, build_ledger(config))) as registry:
        return list_tools(registry)


def list_tools(registry: Registry) -> dict[str, ToolSpec]:
    """The tools of all toolsets, by name."""
    made = [toolset.make(NO_SLOT) for toolset in registry.toolsets if toolset.make]
    return {tool.name: tool.spec for tools in made for tool in tools}
