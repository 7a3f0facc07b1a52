"""Reads settings: layers of YAML and flags become a checked tree, for any Struct of settings.

Values are checked field by field against the types before the Struct is made. So every problem has its dotted path, and
all problems are reported at once. Spelling is lax ("4" for 4), names are strict.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import msgspec
import yaml
from msgspec import Struct
from msgspec import inspect as kinds

from ludus.errors import ConfigError, suggest

Tree = dict[str, Any]


# ---- layers: files and flags --------------------------------------------------------------------------------------


class Flag(str):
    """The text of a dotted flag before it is read. How it is read depends on the type of the field."""


class Layer(NamedTuple):
    """Some settings and their source."""

    source: str
    tree: Tree


def read_file_layer(path: Path) -> Layer:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"--config: there is no file {path}") from None
    except OSError as error:
        raise ConfigError(f"--config {path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"--config {path}: not UTF-8 text ({error.reason} at byte {error.start})") from None
    tree = _parse_yaml(text, str(path))
    if tree is None:
        tree = {}
    if not is_tree(tree):
        raise ConfigError(f"{path}: expected settings in sections (`run:` and so on), found {format_value(tree)}")
    return Layer(str(path), tree)


def make_flag_layer(path: str, words: str) -> Layer:
    tree: Any = Flag(words)
    for name in reversed(path.split(".")):
        tree = {name: tree}
    return Layer(f"--{path}", tree)


class _Loader(yaml.SafeLoader):
    """YAML without dates, and with an error for a key that is given twice."""


_Loader.yaml_implicit_resolvers = {
    letter: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _construct_mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[str] = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise yaml.constructor.ConstructorError(None, None, "a key must be a word", key.start_mark)
        if key.value in seen:
            raise yaml.constructor.ConstructorError(None, None, f"the key '{key.value}' is there twice", key.start_mark)
        seen.add(key.value)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor("tag:yaml.org,2002:map", _construct_mapping)


class UnusableText(ConfigError):
    """A YAML text whose value cannot be stored. It is not taken as plain text, either."""


def _check_text(value: Any) -> None:
    """Raise `UnicodeEncodeError` if a text in the value is not valid Unicode."""
    if isinstance(value, str):
        value.encode()
    elif isinstance(value, dict):
        for pair in value.items():  # pyright: ignore[reportUnknownVariableType]
            _check_text(pair)
    elif isinstance(value, list | tuple):
        for item in value:  # pyright: ignore[reportUnknownVariableType]
            _check_text(item)


def _parse_yaml(text: str, source: str) -> Any:
    """The value of a YAML text. Raises a `ConfigError` that names the file and the line."""
    try:
        value = yaml.load(text, _Loader)
        if "\\" in text:  # only an escape can stand for half of a surrogate pair
            _check_text(value)
        return value
    except RecursionError:
        raise UnusableText(f"{source or format_value(str(text))}: nested too deeply") from None
    except UnicodeEncodeError:
        problem = "it contains half of a surrogate pair: write the character itself"
        raise UnusableText(f"{source or format_value(str(text))}: {problem}") from None
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{source}{line}: not valid YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: not valid YAML: {error}") from None


OnConflict = Callable[[str, Any], None]
"""Called with the path of a value that is no mapping although a later layer sets a part of it, and with the value."""


def merge_trees(
    under: Mapping[str, Any], over: Mapping[str, Any], on_conflict: OnConflict = lambda path, value: None
) -> Tree:
    """Merge two trees: mappings key by key, other values are replaced. An empty section changes nothing."""
    result = dict(under)
    for key, value in over.items():
        old = result.get(key)
        if isinstance(old, Flag) and is_tree(value):
            old = _parse_yaml_or_text(old)
        if is_tree(old) and is_tree(value):
            result[key] = merge_trees(old, value, lambda path, value, key=key: on_conflict(f"{key}.{path}", value))
        elif is_tree(value) and old is not None:
            on_conflict(str(key), old)
            result[key] = value
        elif not (is_tree(old) and value is None):
            result[key] = value
    return result


def _list_paths(tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in tree.items():
        path = f"{prefix}{key}"
        yield path
        if is_tree(value):
            yield from _list_paths(value, f"{path}.")


def is_tree(value: Any) -> TypeGuard[Tree]:
    return isinstance(value, dict)


# ---- checking -----------------------------------------------------------------------------------------------------


class Problems:
    """The problems of some settings, in words. `paths` has the full path of each known setting, by name."""

    def __init__(self, paths: Mapping[str, str]) -> None:
        self.found: list[str] = []
        self._paths = paths
        self._sources: dict[str, str] = {}

    def note_source(self, layer: Layer) -> None:
        """Remember which settings a layer sets, so that a problem can name the file."""
        self._sources.update(dict.fromkeys(_list_paths(layer.tree), layer.source))

    def add_unknown(self, section: str, key: str, known: Sequence[str]) -> None:
        right, given = self._paths.get(key), _join_path(section, key)
        if right == given:
            hint = f"another {section}.type has it; this one knows {', '.join(known)}"
        else:
            hint = f"did you mean '{right}'?" if right else _suggest_name(section, key, known)
        self.found.append(f"{self.locate(given)}: unknown setting; {hint}")

    def add_wrong(self, path: str, kind: Any, value: Any) -> None:
        hint = ' (put it in quotes: "…")' if _is_text(kind) and isinstance(value, int | float) else ""
        self.found.append(f"{self.locate(path)}: expected {describe_type(kind)}, got {format_value(value)}{hint}")

    def add_conflict(self, path: str, value: Any, layer: Layer) -> None:
        """A value is no mapping, but a later layer sets a part of it. Without an error the value would be lost."""
        self.found.append(
            f"{self.locate(path)}: expected a mapping, got {format_value(value)} ({layer.source} sets a part of it)"
        )

    def add_missing(self, path: str, kind: Any) -> None:
        self.found.append(f"{path}: not set; expected {describe_type(kind)}")

    def raise_if_any(self) -> None:
        if self.found:
            raise ConfigError("\n".join(self.found))

    def locate(self, path: str) -> str:
        """The setting, and the file that sets it."""
        source = self._sources.get(path, "")
        if source.startswith("--") or not source:
            return path
        return f"{source}: {path}"


def check_value(value: Any, kind: Any, path: str, problems: Problems, also: type[Struct] | None = None) -> Any:
    """Read the flags in `value` and check every key. Problems are added to `problems`.

    `also`: other settings in the same section, whose names are suggested, too.
    """
    accepted = list_types(kind)
    if isinstance(value, Flag):
        value = _read_flag(value, accepted)
    if is_tree(value):
        groups = {o.tag: o.cls for o in accepted if isinstance(o, kinds.StructType)}
        if groups:
            group = _choose_type(value, groups, path, problems)
            return _check_keys(value, group, path, problems, also) if group else value
        entry = next((found for o in accepted if (found := get_entry_type(o))), None)
        if entry:
            return {key: check_value(item, entry, f"{path}.{key}", problems) for key, item in value.items()}
    value = _read_flags(value)
    try:
        number = msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError:
        problems.add_wrong(path, kind, value)
    else:
        if isinstance(number, float) and not math.isfinite(number):  # JSON has no word for it
            problems.add_wrong(path, kind, value)
    return value


def _check_keys(
    tree: Mapping[str, Any], group: type[Struct], path: str, problems: Problems, also: type[Struct] | None
) -> Tree:
    info = kinds.type_info(group)
    assert isinstance(info, kinds.StructType)
    fields = {f.name: f for f in msgspec.structs.fields(group)}
    found: Tree = {}
    for key, value in tree.items():
        if key == info.tag_field:
            found[key] = info.tag
        elif key in fields:
            found[key] = check_value(value, fields[key].type, _join_path(path, key), problems)
        else:
            others = [f.name for f in msgspec.structs.fields(also)] if also else []
            problems.add_unknown(path, str(key), [*fields, *others, *([info.tag_field] if info.tag_field else [])])
    for name, info_field in fields.items():
        if info_field.required and name not in tree:
            problems.add_missing(_join_path(path, name), info_field.type)
    return found


def _choose_type(
    value: Mapping[str, Any], groups: Mapping[Any, type[Struct]], path: str, problems: Problems
) -> type[Struct] | None:
    """The Struct that the mapping's tag (such as `type`) names, if there are several."""
    one = next(iter(groups.values()))
    if len(groups) == 1:
        return one
    name = one.__struct_config__.tag_field or "type"
    tag = value.get(name)
    if tag not in groups:
        given = f"'{tag}' is not one" if tag else "not set"
        problems.found.append(f"{path}.{name}: {given}; {suggest(str(tag), [str(name) for name in groups])}")
    return groups.get(tag)


def list_types(kind: Any) -> tuple[kinds.Type, ...]:
    info = kinds.type_info(kind)
    return info.types if isinstance(info, kinds.UnionType) else (info,)


def get_entry_type(option: kinds.Type) -> Any:
    """The Struct of a mapping's values, or the union of Structs; None if they are something else."""
    values = option.value_type if isinstance(option, kinds.DictType) else option
    groups = values.types if isinstance(values, kinds.UnionType) else (values,)
    found = [group.cls for group in groups if isinstance(group, kinds.StructType)]
    if not isinstance(option, kinds.DictType) or len(found) < len(groups):
        return None
    kind: Any = found[0]
    for another in found[1:]:
        kind |= another
    return kind


_TEXTS = (kinds.StrType, kinds.LiteralType, kinds.EnumType)
_LISTS = (kinds.VarTupleType, kinds.ListType, kinds.SetType, kinds.FrozenSetType, kinds.TupleType)


def _is_text(kind: Any) -> bool:
    return any(isinstance(option, _TEXTS) for option in list_types(kind))


def _read_flag(words: Flag, accepted: Sequence[kinds.Type]) -> Any:
    """A flag's words as the field takes them: as text, as a list (with commas), or as YAML."""
    nothing = any(isinstance(o, kinds.NoneType) for o in accepted)
    if any(isinstance(o, _TEXTS) for o in accepted):
        return None if nothing and words == "null" else str(words)
    value = _parse_yaml_or_text(words)
    wants_list = any(isinstance(o, _LISTS) for o in accepted)
    if wants_list and not isinstance(value, list) and not (value is None and nothing):
        return [part.strip() for part in words.split(",") if part.strip()]
    return value  # pyright: ignore[reportUnknownVariableType]


def _parse_yaml_or_text(words: Flag) -> Any:
    try:
        return _parse_yaml(words, "")
    except UnusableText:
        raise
    except ConfigError:
        return str(words)


def _read_flags(value: Any) -> Any:
    if isinstance(value, Flag):
        return _parse_yaml_or_text(value)
    if is_tree(value):
        return {key: _read_flags(item) for key, item in value.items()}
    return value


def convert_tree(tree: Mapping[str, Any], kind: type[Any], path: str) -> Any:
    """Convert a checked tree to a Struct. Only its own check (`__post_init__`) can still fail, as a ConfigError."""
    try:
        return _restore_defaults(msgspec.convert(tree, kind, strict=False))
    except msgspec.ValidationError as error:
        message, _, at = str(error).partition(" - at `$.")
        raise ConfigError(f"{at.rstrip('`') or path}: {message}") from None


def _restore_defaults(group: Struct) -> Struct:
    """The settings with the default itself wherever a value equals it. Records leave out a value that is the default
    *object* (`encoding.canonical`). A resumed run reads its settings, so its values are other objects, and it would
    write out what its first process left out."""
    changed: Tree = {}
    for field in msgspec.structs.fields(type(group)):
        value = getattr(group, field.name)
        if isinstance(value, Struct):
            own = _restore_defaults(value)
        else:
            own = field.default if type(value) is type(field.default) and value == field.default else value
        if own is not value:
            changed[field.name] = own
    return msgspec.structs.replace(group, **changed) if changed else group


def _join_path(section: str, key: str) -> str:
    return f"{section}.{key}" if section else key


def _suggest_name(section: str, key: str, known: Sequence[str]) -> str:
    near = get_close_matches(key, known, n=1, cutoff=0.5)
    if near:
        return f"did you mean '{_join_path(section, near[0])}'?"
    where = f" in '{section}'" if section else ""
    return f"known{where}: {', '.join(sorted(known)) or 'none'}"


# ---- words for types ----------------------------------------------------------------------------------------------


def describe_type(kind: Any) -> str:
    """A type in words, such as "a whole number of at least 1 or null"."""
    return _describe_info(kinds.type_info(kind))


def _describe_info(info: kinds.Type) -> str:
    match info:
        case kinds.UnionType(types=types):
            return " or ".join(_describe_info(option) for option in types)
        case kinds.LiteralType(values=values):
            return "one of " + ", ".join(str(value) or "(empty)" for value in values)
        case kinds.EnumType(cls=cls):
            return "one of " + ", ".join(str(member.value) for member in cls)
        case kinds.IntType():
            return "a whole number" + _describe_bounds(info)
        case kinds.FloatType():
            return "a number" + _describe_bounds(info)
        case kinds.VarTupleType(item_type=item) | kinds.ListType(item_type=item):
            return f"a list of {_make_plural(_describe_info(item))}"
        case kinds.StructType() | kinds.DictType():
            return "a mapping"
        case kinds.CustomType(cls=cls):
            return f"{cls.__name__} (which only code can give)"
        case _:
            return _PLAIN.get(type(info), "something else")


_PLAIN: Mapping[type[kinds.Type], str] = {
    kinds.StrType: "text",
    kinds.BoolType: "true or false",
    kinds.NoneType: "null",
    kinds.AnyType: "any value",
}


def _describe_bounds(info: kinds.IntType | kinds.FloatType) -> str:
    if info.ge is not None and info.le is not None:
        return f" from {info.ge:g} to {info.le:g}"
    words = {"of at least": info.ge, "above": info.gt, "of at most": info.le, "below": info.lt}
    return "".join(f" {word} {bound:g}" for word, bound in words.items() if bound is not None)


def _make_plural(words: str) -> str:
    return {"text": "texts", "a whole number": "whole numbers", "a number": "numbers"}.get(words, words)


def format_value(value: Any) -> str:
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
