"""Sources: where environments of other systems come from.

    ludus evaluate SCHEME:NAME ──> the installed source SCHEME ──> settings, an Env, and at times an agent

A package brings a source by an entry point of the group `ludus.sources`, whose name is the scheme. Ludus imports it
only when a command names it, when a run of it is resumed, or to read names in the settings that Ludus does not know.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from ludus.config.reading import Layer
from ludus.config.references import SOURCE
from ludus.env import Env
from ludus.errors import ConfigError
from ludus.models import Model
from ludus.models.ledger import Ledger
from ludus.policy import Agent
from ludus.store import RunDir

if TYPE_CHECKING:
    from ludus.arguments import Argument, RunArguments
    from ludus.config import Config
    from ludus.gateway.named_sessions import NamedSessions
    from ludus.gateway.service import Route

EXTRAS: Mapping[str, str] = {
    "atropos": "atropos",
    "hermes": "hermes",
    "skillopt": "skillopt",
    "verifiers": "verifiers",
    "openenv": "openenv",
}
"""Schemes of sources that another package of this project brings, and the extra that installs it."""
EXTRA_ARGUMENTS: Mapping[str, str] = {"--skillopt": "skillopt", "--slurm": "atropos", "--testing": "atropos"}
"""Arguments that commands take for these sources, and the scheme."""


class Source:
    """The base class of sources. What is defined here fits a source whose environments are run like any other."""

    title: ClassVar[str] = ""
    """What it brings, in messages: `files of Atropos`."""
    references: ClassVar[tuple[str, ...]] = ()
    """The environment classes of its runs, as `env.name` has them, if the methods below are for them."""
    takes: "ClassVar[Mapping[str, tuple[Argument, ...]]]" = MappingProxyType({})
    """Arguments that commands take for it, by command."""
    works: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """What commands do in place of their own work: the class as `module:Class`, by command. It is one like
    `ludus.command.run_command.RunWork`."""
    uses: ClassVar[Mapping[str, frozenset[str]]] = MappingProxyType({})
    """The sections of settings that commands use for it beside their own, by command."""
    chooses_model: ClassVar[bool] = False
    """Whether its own settings choose the model, so that a run cannot have several."""

    # ---- settings -------------------------------------------------------------------------------------------------

    def name_env(self, name: str) -> Mapping[str, str]:
        """The settings that `SCHEME:NAME` stands for: `env.name`, and options of that environment.

        Raises:
            ConfigError: the command cannot run it.
        """
        raise NotImplementedError

    def claims(self, arguments: "RunArguments") -> bool:
        """Whether one of its own arguments (`takes`) asks for it."""
        return False

    def read_settings(self, arguments: "RunArguments") -> "Config | None":
        """The settings of a run, for a source that has settings of its own. None: they are read as for any other."""
        return None

    def translate(self, layers: Sequence[Layer]) -> Sequence[Layer]:
        """The layers with the names of this system in Ludus's own terms. Called where a setting is unknown."""
        return layers

    def list_secrets(self, config: "Config") -> tuple[str, ...]:
        """What must not be in the run directory, beside the secrets that the settings name."""
        return ()

    # ---- runs -----------------------------------------------------------------------------------------------------

    async def open_agent(
        self, config: "Config", env: Env, model: Model, ledger: Ledger, stack: AsyncExitStack
    ) -> Agent | None:
        """The agent that acts in place of the policy's own; what it needs is closed with the stack."""
        return env.make_agent(model)

    def list_run_files(self, directory: RunDir) -> Iterable[tuple[str, str]]:
        """The files in which this system would keep a run: path and text. For `ludus export --format SCHEME`."""
        raise ConfigError("--format: it has no form of its own for runs")

    # ---- the gateway ----------------------------------------------------------------------------------------------

    def make_gateway_route(self, config: "Config", sessions: "NamedSessions", add_model: "AddModel") -> "Route":
        """The route of a gateway for clients of this system. `add_model` takes a further model into the gateway's
        ledger, and closes it with the gateway."""
        raise ConfigError("gateway: it has no routes of its own")


AddModel = Callable[[Model], Model]


async def open_agent(
    config: "Config", env: Env, model: Model, ledger: Ledger, stack: AsyncExitStack, tell: Callable[[str], None]
) -> Agent | None:
    """The agent that acts in place of the policy's own: that of the environment's source, or the environment's."""
    source = find_source(config.env.name)
    return env.make_agent(model) if source is None else await source.open_agent(config, env, model, ledger, stack)


def split_scheme(name: str) -> tuple[str, str]:
    """The scheme of `SCHEME:NAME` and the rest; two empty texts if no source has that scheme.

    Raises:
        ConfigError: the source is known, and its package is not installed.
    """
    scheme, colon, rest = name.partition(":")
    if not colon or not scheme.isidentifier():
        return "", ""
    if scheme in SOURCE.find_installed():
        return scheme, rest
    _refuse_missing(scheme, name)
    return "", ""


def load_source(scheme: str, setting: str = "") -> Source:
    """The source of a scheme. `setting`: what asks for it.

    Raises:
        ConfigError: it is not installed.
    """
    if scheme not in SOURCE.find_installed():
        _refuse_missing(scheme, setting or f"{scheme}:")
    return SOURCE.load(scheme, setting)()


def _refuse_missing(scheme: str, what: str) -> None:
    """Raise `ConfigError` if a package of this project that is not installed has the scheme."""
    if scheme in EXTRAS:
        raise ConfigError(f"{what}: this needs another package: pip install 'ludus-train[{EXTRAS[scheme]}]'")


def refuse_missing_argument(name: str) -> None:
    """Raise `ConfigError` if a package of this project that is not installed brings an argument."""
    scheme = EXTRA_ARGUMENTS.get(name, "")
    if scheme not in SOURCE.find_installed():
        _refuse_missing(scheme, name)


def name_env(name: str) -> list[tuple[str, str]]:
    """The settings that an environment on the command line stands for."""
    scheme, rest = split_scheme(name)
    return list(load_source(scheme).name_env(rest).items()) if scheme else [("env.name", name)]


def find_source(name: str) -> Source | None:
    """The source of an environment: of `SCHEME:NAME`, or of a class that a source brings; None for others."""
    if ":" not in name:
        return None
    scheme, _ = split_scheme(name)
    if scheme:
        return load_source(scheme)
    return next((source for source in list_sources() if name in source.references), None)


def list_sources() -> list[Source]:
    """All installed sources."""
    return [SOURCE.load(found.reference)() for found in SOURCE.find_installed().values()]


def translate_names(layers: Sequence[Layer]) -> Sequence[Layer] | None:
    """The layers with names of other systems translated; None if no source knows one of them."""
    translated: Sequence[Layer] = layers
    for source in list_sources():
        translated = source.translate(translated)
    return None if list(translated) == list(layers) else translated


def list_arguments(command: str) -> "list[Argument]":
    """The arguments that a command takes for installed sources. Several sources may take the same."""
    found = (argument for source in list_sources() for argument in source.takes.get(command, ()))
    return list({argument.name: argument for argument in found}.values())


def find_claiming(arguments: "RunArguments") -> Source | None:
    """The source that one of its own arguments asks for."""
    return next((source for source in list_sources() if source.claims(arguments)), None)


def refuse_other_arguments(arguments: "RunArguments", source: Source | None) -> None:
    """Raise `ConfigError` for an argument that is for other sources than that of the environment."""
    command = arguments.command
    own = {argument.name for argument in source.takes.get(command, ())} if source else set[str]()
    for name, options in list_arguments(command):
        given: Any = getattr(arguments, name.lstrip("-").replace("-", "_"))
        if name not in own and given != options.get("default"):
            takers = [each.title for each in list_sources() if any(a.name == name for a in each.takes.get(command, ()))]
            raise ConfigError(f"{name} is for {' and '.join(takers)}: leave it out")
