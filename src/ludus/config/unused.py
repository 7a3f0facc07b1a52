"""Settings that were given and have no effect.

A group declares under which conditions a field of it is used (`Settings.used_if`): `train.batch_size` with the recipe
`reflact`, `data.folder` with the mode `folder`. A field that is not used, that a file or a flag has set, and that is
not at its default, is refused by name. A whole file of `--print-config` can be given back: it has defaults, too.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

from msgspec import Struct

from ludus.config.reading import Layer, is_tree
from ludus.config.tree import SECTIONS, Config
from ludus.errors import ConfigError
from ludus.settings import UsedIf


def refuse_unused(config: Config, given: Sequence[Layer]) -> None:
    """Raise `ConfigError` for settings of the layers that have no effect with the others."""
    paths = {path: layer.source for layer in given for path in list_leaves(layer.tree)}
    problems = [
        f"{_locate(max(path, unused, key=len), paths[path])} has no effect {reason}"
        for unused, reason in find_unused(config)
        for path in paths
        if _overlaps(path, unused)
    ]
    if problems:
        raise ConfigError("\n".join(problems))


def find_unused(config: Config) -> Iterator[tuple[str, str]]:
    """The settings that differ from their default and have no effect, each with the reason."""
    for name in SECTIONS:
        yield from _find_in_group(name, getattr(config, name))


def _find_in_group(path: str, group: Struct) -> Iterator[tuple[str, str]]:
    declared: Mapping[str, tuple[UsedIf, ...]] = getattr(group, "used_if", {})
    unset = type(group)() if declared else None
    for field, conditions in declared.items():
        changed = _get(group, field) != _get(unset, field)
        if changed and not any(condition.holds(group) for condition in conditions):
            yield f"{path}.{field}", _explain(path, group, conditions[0])
    for field in group.__struct_fields__:
        if isinstance(value := getattr(group, field), Struct):
            yield from _find_in_group(f"{path}.{field}", value)


def _get(group: Any, field: str) -> Any:
    return reduce(getattr, field.split("."), group)


def _explain(path: str, group: Struct, condition: UsedIf) -> str:
    value = getattr(group, condition.field)
    words = f"with {path}.{condition.field} {value}" if value or value is False else "without"
    if words == "without":
        return f"without {path}.{condition.field}: set that, or leave it out"
    wanted = " or ".join(str(each).lower() if isinstance(each, bool) else str(each) for each in condition.values)
    return f"{words}; it is for {wanted}: leave it out" if wanted else f"{words}: leave it out"


def _locate(path: str, source: str) -> str:
    """The setting, and the file that sets it."""
    return path if source.startswith("--") or not source else f"{source}: {path}"


def list_leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterable[str]:
    """The paths of the values in a tree."""
    for key, value in tree.items():
        if is_tree(value):
            yield from list_leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def _overlaps(one: str, other: str) -> bool:
    """Whether one path is the other, or a part of it."""
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")
