"""The sources of this package: what `SCHEME:NAME` stands for, by system.

    verifiers:NAME   openenv:URL       an environment that is run like any other
    atropos:FILE.py  hermes:FILE.py    a file that acts and scores itself, with settings of its own
    skillopt:FILE.yaml                 settings, and an adapter if they name one

Ludus imports this module for many commands, so what a source needs is imported in its methods.
"""

import copy
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from ludus.arguments import RunArguments, make_argument
from ludus.config.reading import Layer, Tree
from ludus.env import Env
from ludus.errors import ConfigError
from ludus.models import Model
from ludus.models.ledger import Ledger
from ludus.policy import Agent
from ludus.sources import AddModel, Source
from ludus.store import RunDir

if TYPE_CHECKING:
    from ludus.config import Config
    from ludus.gateway.named_sessions import NamedSessions
    from ludus.gateway.service import Route


class VerifiersSource(Source):
    """`verifiers:NAME`."""

    title = "environments of verifiers"

    def name_env(self, name: str) -> Mapping[str, str]:
        return {"env.name": "ludus.compat.verifiers_env:VerifiersEnv", "env.id": name}


class OpenEnvSource(Source):
    """`openenv:URL`."""

    title = "servers of OpenEnv"

    def name_env(self, name: str) -> Mapping[str, str]:
        return {"env.name": "ludus.compat.openenv_env:OpenEnvEnv", "env.url": name}


# ---- files of Atropos and Hermes ----------------------------------------------------------------------------------

_FILE_TAKES = (
    make_argument(
        "--slurm",
        metavar="BOOL",
        help="an option of Atropos' files: true needs --openai.base_url: servers are not searched on SLURM nodes",
    ),
    make_argument("--testing", metavar="BOOL", help="an option of Atropos' files: only false is possible"),
)
_WORKS = {
    "process": "ludus.compat.atropos_env.file_commands:ProcessFileWork",
    "evaluate": "ludus.compat.atropos_env.file_commands:EvaluateFileWork",
    "serve": "ludus.compat.atropos_env.file_commands:ServeFileWork",
}
_TRAINING = ("train", "headroom", "audit")
"""Commands for which the items of a file are tasks."""
_COMMANDS = (*_WORKS, *_TRAINING)


class _FileSource(Source):
    """What files of Atropos and Hermes have in common."""

    takes = dict.fromkeys(_COMMANDS, _FILE_TAKES)
    works = _WORKS
    uses = MappingProxyType({"process": frozenset({"serve"})})
    chooses_model = True
    file_env: ClassVar[str]
    """The environment class that stands for a file."""
    task_env: ClassVar[str]
    """The same where its items are tasks."""

    def name_env(self, name: str) -> Mapping[str, str]:
        raise ConfigError(f"env.name: {name} makes and scores its rollouts itself: {self._list_commands()}")

    def read_settings(self, arguments: RunArguments) -> "Config | None":
        from ludus.compat.atropos_env.command_settings import read_file_settings

        if arguments.command not in _COMMANDS:
            raise ConfigError(f"ludus {arguments.command}: {self._list_commands()}")
        reference = self.task_env if arguments.command in _TRAINING else self.file_env
        return read_file_settings(arguments, reference, self.extend)

    def _list_commands(self) -> str:
        *others, last = _COMMANDS
        return f"{self.title} are for ludus {', '.join(others)} and {last}"

    def extend(self, settings: Tree, named: Collection[str]) -> Tree:
        """The sections that only this system has, for the settings of a file. `named`: those that were given."""
        return {}

    def list_secrets(self, config: "Config") -> tuple[str, ...]:
        from ludus.compat.atropos_env.command_settings import read_keys

        return tuple(filter(None, read_keys(len(config.options.get("servers", ())))))

    async def open_agent(
        self, config: "Config", env: Env, model: Model, ledger: Ledger, stack: AsyncExitStack
    ) -> Agent | None:
        from ludus.compat.atropos_env.file_agent import open_file_agent
        from ludus.compat.atropos_env.file_env import AtroposFileEnv

        assert isinstance(env, AtroposFileEnv)
        return await open_file_agent(config, env, model, ledger, stack)


class AtroposSource(_FileSource):
    """`atropos:FILE.py`, `atropos:FILE.py:Class`; and the routes of Atropos' proxy for `ludus gateway`."""

    title = "files of Atropos"
    file_env = "ludus.compat.atropos_env.file_env:AtroposFileEnv"
    task_env = file_env
    references = (file_env,)

    def make_gateway_route(self, config: "Config", sessions: "NamedSessions", add_model: AddModel) -> "Route":
        from ludus.compat.atropos import make_managed_route

        return make_managed_route(config, sessions, add_model)


class HermesSource(_FileSource):
    """`hermes:FILE.py`, `hermes:FILE.py:Class`; and the flat settings of Hermes for Ludus's own environments."""

    title = "files of Hermes"
    file_env = "ludus.compat.hermes_env.file_env:HermesFileEnv"
    task_env = "ludus.compat.hermes_env.file_env:HermesTaskEnv"
    references = (
        file_env,
        task_env,
        "ludus.compat.hermes_env.hermes_file_env:HermesFileEnv",  # in runs of 0.1
        "ludus.compat.hermes_env.hermes_file_env:HermesTaskEnv",
    )

    def read_settings(self, arguments: RunArguments) -> "Config | None":
        from ludus.compat.hermes_env.settings import refuse_distribution

        found = super().read_settings(arguments)
        if found is not None and arguments.command in _TRAINING:
            refuse_distribution(found.options.get("settings", {}))
        return found

    def extend(self, settings: Tree, named: Collection[str]) -> Tree:
        from ludus.command.terminal import print_notice
        from ludus.compat.hermes_env.settings import choose_parser, make_sandbox_trees

        return {**make_sandbox_trees(settings, os.environ, named), **choose_parser(settings, print_notice)}

    def translate(self, layers: Sequence[Layer]) -> Sequence[Layer]:
        from ludus.compat.hermes_env.flat_settings import translate_flat

        return translate_flat(layers)


# ---- SkillOpt -----------------------------------------------------------------------------------------------------

_SKILLOPT = make_argument(
    "--skillopt", metavar="FILE", default="", help="settings in SkillOpt's YAML; --config overrides them"
)


class SkillOptSource(Source):
    """`skillopt:FILE.yaml`, or `--skillopt FILE` beside an environment."""

    title = "settings of SkillOpt"
    takes = dict.fromkeys(("train", "evaluate", "headroom"), (_SKILLOPT,))
    chooses_model = True

    def name_env(self, name: str) -> Mapping[str, str]:
        raise ConfigError(f"env.name: {name} has the settings of a whole run: start it as ludus train skillopt:{name}")

    def claims(self, arguments: RunArguments) -> bool:
        return bool(getattr(arguments, "skillopt", ""))

    def read_settings(self, arguments: RunArguments) -> "Config | None":
        from ludus.command.settings import read_own_settings
        from ludus.compat.skillopt.layers import read_layers

        arguments = copy.copy(arguments)
        file: str = getattr(arguments, "skillopt", "")
        if arguments.env and arguments.env.startswith("skillopt:"):
            if file:
                raise ConfigError(f"--skillopt: {arguments.env} is such a file already: leave one of them out")
            file, arguments.env = arguments.env.partition(":")[2], None
        return read_own_settings(arguments, read_layers(file, arguments.config, arguments.flags, arguments.env or ""))

    def list_run_files(self, directory: RunDir) -> Iterable[tuple[str, str]]:
        from ludus.compat.skillopt.run_layout import list_layout

        return list_layout(directory)
