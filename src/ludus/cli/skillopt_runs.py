"""Runs with SkillOpt's files: `ludus train --skillopt FILE`, and what its adapters bring beside tasks.

`ludus.compat.skillopt` is imported only for such runs. Adapters act themselves: see `ludus.cli.acting_envs`.
"""

from collections.abc import Sequence
from pathlib import Path

from ludus.cli.common import print_notice
from ludus.config.reading import Layer, is_tree, make_flag_layer, read_file_layer
from ludus.env import Env
from ludus.reflact.proposers import Proposer

_ADAPTER = "skillopt-adapter"


def read_layers(file: str, config: Sequence[str], flags: Sequence[tuple[str, str]]) -> list[Layer]:
    """The settings of a SkillOpt file, which those of YAML files and flags override; none if `file` is empty.

    If a YAML file or a flag gives the type of a model, the file's settings of that model are dropped: settings of two
    types do not mix.
    """
    if not file:
        return []
    from ludus.compat.skillopt.config_file import read_config

    given = read_config(Path(file))
    for note in given.notes:
        print_notice(f"{file}: {note}")
    over = [*(read_file_layer(Path(path)) for path in config), *(make_flag_layer(*flag) for flag in flags)]
    typed = {name for layer in over for name, tree in layer.tree.items() if is_tree(tree) and "type" in tree}
    return [Layer(file, {name: tree for name, tree in given.tree.items() if name not in typed})]


def get_adapter_name(env: Env) -> str:
    """The name of the adapter's class; empty for any other environment."""
    return str(getattr(env, "adapter", "")).rpartition(":")[2] if env.name == _ADAPTER else ""


def find_proposer(env: Env) -> Proposer | None:
    """The proposer of an adapter that has its own reflection; None for others."""
    if env.name != _ADAPTER:
        return None
    from ludus.compat.skillopt.adapters import make_proposer

    return make_proposer(env)
