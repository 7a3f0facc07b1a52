"""`ludus train --skillopt FILE`: where the command line meets `ludus.compat`. Imports it only if it is needed."""

import sys
from collections.abc import Generator
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path

from ludus.cli import Arguments
from ludus.cli.batches import say
from ludus.config.reading import Layer, file_layer, flag_layer, is_tree
from ludus.env import Env
from ludus.models import Model
from ludus.reflact.proposers import Proposer

_ADAPTER = "skillopt-adapter"


def base_layers(arguments: Arguments) -> list[Layer]:
    """The settings of a SkillOpt file, beneath all others. A model whose type is given elsewhere is not taken from it:
    settings of two types do not mix."""
    if not arguments.skillopt:
        return []
    from ludus.compat.skillopt.config_file import read_config

    given = read_config(Path(arguments.skillopt))
    for note in given.notes:
        say(f"{arguments.skillopt}: {note}")
    over = [*(file_layer(Path(path)) for path in arguments.config), *(flag_layer(*flag) for flag in arguments.flags)]
    typed = {name for layer in over for name, tree in layer.tree.items() if is_tree(tree) and "type" in tree}
    return [Layer(arguments.skillopt, {name: tree for name, tree in given.tree.items() if name not in typed})]


@contextmanager
def prints_apart(env: str) -> Generator[None]:
    """Adapters print as they go: to the user, not into what the command itself has to say on stdout."""
    with redirect_stdout(sys.stderr) if env.endswith(":AdapterEnv") else nullcontext():
        yield


def acting(env: Env) -> Model | None:
    """Who acts in place of the policy's model: an adapter does everything itself."""
    if env.name != _ADAPTER:
        return None
    from ludus.compat.skillopt.adapters import AdapterEnv, AdapterModel

    return AdapterModel(env) if isinstance(env, AdapterEnv) else None


def adapter_name(env: Env) -> str:
    """The name of the adapter's class; empty for an environment of ours."""
    return str(getattr(env, "adapter", "")).rpartition(":")[2] if env.name == _ADAPTER else ""


def own_proposer(env: Env) -> Proposer | None:
    """The reflection that an adapter brings along, if it does."""
    if env.name != _ADAPTER:
        return None
    from ludus.compat.skillopt.adapters import proposer_of

    return proposer_of(env)
