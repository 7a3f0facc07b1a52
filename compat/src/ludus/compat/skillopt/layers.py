"""The settings of a SkillOpt file as a layer below those of YAML files and flags."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from ludus.command.terminal import print_notice
from ludus.compat.skillopt.config_file import read_config
from ludus.config.reading import Layer, Tree, is_tree, make_flag_layer, merge_trees, read_file_layer


def read_layers(file: str, config: Sequence[str], flags: Sequence[tuple[str, str]], env: str = "") -> list[Layer]:
    """The settings of a SkillOpt file, which those of YAML files and flags override; none if `file` is empty.

    `env` is an environment that takes the place of the file's: then what the file says about its own does not count.
    If a YAML file or a flag gives the type of a model, the file's settings of that model are dropped: settings of two
    types do not mix.
    """
    if not file:
        return []
    over = [*(read_file_layer(Path(path)) for path in config), *(make_flag_layer(*flag) for flag in flags)]
    given = read_config(Path(file), env or _find_setting(over, "env.name"))
    for note in given.notes:
        print_notice(f"{file}: {note}")
    if _find_setting(over, "train.shipping.rule") == "certain":
        print_notice(
            f"{file}: train.shipping.rule certain keeps the initial skill unless another one is better with enough "
            "certainty; SkillOpt ships the best one on the selection split (best)"
        )
    typed = {name for layer in over for name, tree in layer.tree.items() if is_tree(tree) and "type" in tree}
    return [Layer(file, {name: tree for name, tree in given.tree.items() if name not in typed})]


def _find_setting(layers: Iterable[Layer], setting: str) -> str:
    """What the layers say about a setting; empty if nothing."""
    tree: Tree = {}
    for layer in layers:
        tree = merge_trees(tree, layer.tree)
    for name in setting.split("."):
        tree = tree.get(name, {}) if is_tree(tree) else {}
    return str(tree or "")
