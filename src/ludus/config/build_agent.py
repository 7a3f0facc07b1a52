"""Builds the environment, the policy and the harness from settings. Heavy packages are imported inside functions."""

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ludus.agent_settings import AgentSettings, SkillAs
from ludus.config.build_sandboxes import change_spec, find_profile
from ludus.config.reading import convert_tree
from ludus.config.references import HARNESS, load_env_class
from ludus.config.secrets import find_agents_folder
from ludus.config.tree import Config
from ludus.env import Env
from ludus.errors import ConfigError
from ludus.models import Model
from ludus.models.settings import EmbeddedSettings
from ludus.policy import Agent, Limits, Policy
from ludus.sandbox import SandboxSpec
from ludus.sandbox.backends import get_image_support
from ludus.skill import Skill

if TYPE_CHECKING:
    from ludus.harness import Harness
    from ludus.skill_library import SkillLibrary
    from ludus.tools.toolsets import Registry


def build_env(config: Config) -> Env:
    """The environment with its options."""
    if not config.env.name:
        raise ConfigError("env.name: which environment? `ludus envs` lists those that come with Ludus")
    env = convert_tree(config.options, load_env_class(config.env.name), "env")
    if env.sandbox is not None and env.sandbox.image is not None:
        return env.use_images(get_image_support(find_profile(config.sandbox, env.sandbox.profile)))
    return env


def build_slot(config: Config, env: Env) -> SandboxSpec | None:
    """The environment's slot with the values that the `sandbox` section sets."""
    return None if env.sandbox is None else change_spec(env.sandbox, config.sandbox)


def build_policy(config: Config, env: Env, model: Model, registry: "Registry", agent: Agent | None = None) -> Policy:
    """The policy. Its toolsets are None, which leaves them to the environment, unless the settings name some. `agent`
    acts in place of the loop and of a command-line agent."""
    from ludus.tools.toolsets import choose_toolsets

    tools = config.tools
    chosen = None
    if tools.enabled is not None or tools.disabled or tools.mcp:
        chosen = choose_toolsets(tools.enabled, tools.disabled, (*env.toolsets, *tools.mcp), registry)
    if not tools.distribution and not config.agent.harness:
        registry.require_usable(env.toolsets if chosen is None else chosen, slot=env.sandbox is not None)
    skill, library = _read_skill(config.agent.skill), _read_library(config.agent)
    skill_as = _choose_form(config.agent, skill)
    if skill_as != "text":
        if env.sandbox is None and not config.agent.harness:
            fix = "name its SKILL.md to give its text" if skill_as == "listed" else "leave it at 'text'"
            raise ConfigError(f"agent.skill_as: {env.name} has no slot to put a file in; {fix}")
        _ = skill and skill.front  # raises if its front matter is not in the Agent Skills form
    return Policy(
        model=model,
        skill=skill,
        library=library,
        skill_as=skill_as,
        skill_folder=_check_folder(config.agent.skill_folder),
        examples_as=config.agent.examples_as,
        sampling=config.sampling,
        limits=_choose_limits(config),
        system=config.agent.system,
        toolsets=chosen,
        registry=registry,
        agent=agent or _build_harness_agent(config.agent),
    )


def _choose_form(agent: AgentSettings, skill: Skill | None) -> SkillAs:
    """How the agent gets the skill: a package as agents deploy it, unless the settings say otherwise."""
    is_folder = skill is not None and Path(agent.skill).expanduser().is_dir()
    return "listed" if is_folder and agent.skill_as == "text" else agent.skill_as


def _check_folder(folder: str) -> str:
    if folder and (not folder.startswith(("/", "~/")) or ".." in folder.split("/") or "\0" in folder):
        raise ConfigError(f"agent.skill_folder: {folder!r} is no absolute path: begin it with / or ~/, without '..'")
    return folder


def _build_harness_agent(agent: AgentSettings) -> Agent | None:
    harness = build_harness(agent)
    if harness is None:
        return None
    from ludus.harness import HarnessAgent

    return HarnessAgent(harness)


def build_harness(agent: AgentSettings) -> "Harness | None":
    """The command-line agent that the settings name, if they name one.

    Raises:
        ConfigError: it is unknown, has no command, or is not installed.
    """
    if not agent.harness:
        return None
    from ludus.harness import Harness
    from ludus.harness.known import KNOWN, find_harness, find_installation

    name, own = agent.harness, agent.harnesses.get(agent.harness)
    if own is None:
        if name not in KNOWN and HARNESS.knows(name):
            found = HARNESS.load(name)
        else:
            found = find_harness(name, [*agent.harnesses, *HARNESS.list_names()])
        return find_installation(found, find_agents_folder())
    base = KNOWN.get(name) or Harness(name=name, command="")
    if not (own.command or base.command):
        raise ConfigError(f"agent.harnesses.{name}.command is not set: how is the agent started?")
    for variable in own.env:
        if not variable.isidentifier() or not variable.isascii():
            raise ConfigError(f"agent.harnesses.{name}.env: '{variable}' is not the name of a variable")
    mounts = tuple((str(Path(source).expanduser().absolute()), place) for source, place in own.mounts.items())
    command = own.command or base.command
    needed = tuple(
        mount for mount in base.mounts if mount[1] in command
    )  # a command of the user's own may not need the mount
    changed = Harness(
        name=name,
        command=command,
        env={**base.env, **own.env},
        files={**base.files, **own.files},
        skills=base.skills if own.skills is None else own.skills,
        model=base.model if own.model is None else own.model,
        mounts=(*needed, *mounts),
    )
    return find_installation(changed, find_agents_folder())


def _choose_limits(config: Config) -> Limits:
    """The limits. For the embedded model, `context_tokens` has a default: its window less the room for a reply."""
    limits = config.limits.get_rollout_limits()
    if not isinstance(config.model, EmbeddedSettings) or limits.context_tokens is not None:
        return limits
    from ludus.models.embedded import EmbeddedRuntime

    defaults = {f.name: f.default for f in msgspec.structs.fields(EmbeddedRuntime)}
    return msgspec.structs.replace(limits, context_tokens=config.model.context - defaults["reply_tokens"])


def _read_library(agent: AgentSettings) -> "SkillLibrary | None":
    if not agent.library:
        return None
    if agent.skill or agent.skill_as not in ("text", "listed"):
        name, fix = ("skill", "put it into the library's folder") if agent.skill else ("skill_as", "leave it out")
        raise ConfigError(f"agent.{name}: the skills of agent.library are listed, each by name: {fix}")
    from ludus.skill_library import read_library

    try:
        return read_library(Path(agent.library).expanduser())
    except ConfigError as error:
        raise ConfigError(f"agent.library: {error}") from None


def _read_skill(path: str) -> Skill | None:
    if not path:
        return None
    from ludus.skill_folder import read_skill

    try:
        return read_skill(Path(path).expanduser())
    except ConfigError as error:
        raise ConfigError(f"agent.skill: {error}") from None
