"""The sections of Ludus beside a file: `ludus process hermes:FILE.py --limits.turns 5 --agent.skill SKILL.md`.

A file has its own loop, so what Ludus's loop would use must become a field of the file's configuration (`limits.turns`
is `max_agent_turns`), or reach its model calls (`sampling`, and the texts of `agent`). What can do neither is refused
with what to use instead. Nothing is accepted without an effect.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from ludus.config.reading import Layer, Tree, is_tree
from ludus.errors import ConfigError

FIELDS: Mapping[str, tuple[str, ...]] = {
    "limits.turns": ("max_agent_turns", "agent_max_steps"),
    "limits.result_chars": ("default_result_size_chars",),
    "limits.turn_chars": ("turn_budget_chars",),
    "limits.preview_chars": ("preview_size_chars",),
    "limits.tool_seconds": ("terminal_timeout",),
    "tools.enabled": ("enabled_toolsets",),
    "tools.disabled": ("disabled_toolsets",),
    "tools.distribution": ("distribution",),
}
"""Settings of Ludus, and the fields of a file's configuration that mean the same."""
TRAINING_LIMITS = ("limits.rollout_seconds", "limits.setup_seconds", "limits.verify_seconds")
"""Limits that hold where each item of a file is a task of Ludus."""
_HELD = ("sampling", "agent.skill", "agent.system")
_INSTEAD = {
    "agent.skill_as": "a skill is added to the file's system messages as text",
    "agent.skill_folder": "a skill is added to the file's system messages as text",
    "agent.examples_as": "a skill is added to the file's system messages as text",
    "agent.harness": "the file is the agent",
    "agent.harnesses": "the file is the agent",
    "limits.rollout_seconds": "the file makes whole groups: use --env.worker_timeout, the time limit of a group",
    "limits.setup_seconds": "the file makes whole groups: use --env.worker_timeout, the time limit of a group",
    "limits.verify_seconds": "the file makes whole groups: use --env.worker_timeout, the time limit of a group",
    "limits.context_tokens": "the file keeps the conversation: use --env.max_token_length",
}
_SECTIONS = ("agent", "limits", "sampling", "tools", "sandbox")


def move_sections(
    own: Sequence[Layer], fields: Collection[str], training: bool, leases: bool
) -> tuple[list[Layer], Tree]:
    """Split the sections of Ludus into those that are used as they are, and values of the file's fields.

    Args:
        own: what the user set of Ludus's sections.
        fields: the fields of the file's configuration.
        training: whether the items of the file are tasks.
        leases: whether the file leases slots, and has the tools that act in them.

    Raises:
        ConfigError: a setting can have no effect.
    """
    kept: list[Layer] = []
    moved: Tree = {}
    for layer in own:
        rest: Tree = {name: section for name, section in layer.tree.items() if name not in _SECTIONS}
        for name in _SECTIONS:
            section = layer.tree.get(name)
            if not is_tree(section):
                continue
            held = {key: value for key, value in section.items() if f"{name}.{key}" not in FIELDS}
            for key in held:
                _refuse_unused(f"{name}.{key}", layer.source, training, leases)
            moved |= dict(_move(name, section, fields, layer.source))
            if held:
                rest[name] = held
        if rest:
            kept.append(Layer(layer.source, rest))
    return kept, moved


def _move(name: str, section: Tree, fields: Collection[str], source: str) -> Iterator[tuple[str, Any]]:
    for key, value in section.items():
        names = FIELDS.get(f"{name}.{key}")
        if names is None:
            continue
        field = next((each for each in names if each in fields), None)
        if field is None:
            raise ConfigError(
                f"{source}: {name}.{key} has no effect on this file, which has no field {' or '.join(names)}: set what "
                "its own configuration has (env.…)"
            )
        yield field, value


def _refuse_unused(path: str, source: str, training: bool, leases: bool) -> None:
    section = path.partition(".")[0]
    if path in _HELD or section in _HELD or (training and path in TRAINING_LIMITS):
        return
    if section in ("tools", "sandbox"):
        if leases:
            return
        raise ConfigError(f"{source}: {path} has no effect on a file of Atropos: it has no slots and tools of Ludus")
    raise ConfigError(f"{source}: {path} has no effect on a file: {_INSTEAD.get(path, 'leave it out')}")


def list_sampling(own: Sequence[Layer]) -> list[str]:
    """The fields of `sampling` that the user set. They win over what the file's own calls say."""
    sections = [layer.tree.get("sampling") for layer in own]
    return list(dict.fromkeys(name for section in sections if is_tree(section) for name in section))
