"""The form that starts a run: its fields are the settings, and it is equal to a command line that it shows."""

import shlex
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect as kinds

from ludus.config.settings_page import read_field_docs
from ludus.config.tree import SECTIONS
from ludus.encoding import to_json
from ludus.errors import ConfigError, suggest
from ludus.view.model import CommandPreview, FormField, FormList, RunForm

COMMANDS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "evaluate": (
        "measure a model on an environment",
        ("env", "model", "sampling", "limits", "tools", "sandbox", "run", "budget", "agent"),
    ),
    "process": (
        "write groups of scored rollouts",
        ("env", "model", "sampling", "limits", "tools", "sandbox", "run", "budget", "agent"),
    ),
    "train": (
        "train the skill of an agent",
        ("env", "model", "optimizer", "train", "data", "sampling", "limits", "sandbox", "run", "budget", "agent"),
    ),
    "rl": ("train weights", ("env", "trainer", "rl", "sampling", "limits", "sandbox", "run", "budget", "agent")),
}
"""The commands that can be started, what each does, and the sections of its settings."""

_COMMON = {
    *("env", "out", "env.limit", "env.group_size", "env.split", "model.base_url", "model.name", "model.api_key_var"),
    *("run.concurrency", "budget.dollars", "train.recipe", "train.epochs", "rl.steps", "rl.groups", "rl.group_size"),
}
_SERVER = {
    "base_url": "the address of a server with the chat API, such as http://localhost:8000/v1",
    "name": "the name of the model there",
    "api_key_var": "the environment variable with the key",
    "type": "openai, anthropic, embedded, scripted, … or module:Class",
    "script": "for type scripted: file.py:function",
    "tokenizer": "for token mode: a folder or a name on the hub",
    "mode": "chat or token",
    "engine": "for token mode: vllm, sglang or llamacpp",
}
"""Settings of models, which have several types."""


class FormBook:
    """The forms. `folder` is where new runs go by default."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def list(self) -> FormList:
        return FormList({name: summary for name, (summary, _) in COMMANDS.items()})

    def get(self, command: str) -> RunForm:
        summary, sections = _find_command(command)
        first = (
            FormField(
                name="env",
                label="environment",
                section="",
                kind="text",
                required=True,
                common=True,
                help="a name (ludus envs), module:Class, or file.py",
            ),
            FormField(
                name="out",
                label="run directory",
                section="",
                kind="text",
                common=True,
                default=str(self._folder / f"{command}-{time.strftime('%m%d-%H%M%S')}"),
            ),
        )
        fields = [field for section in sections for field in _list_fields(section)]
        return RunForm(command=command, summary=summary, fields=(*first, *fields))

    def preview(self, command: str, values: Mapping[str, str]) -> CommandPreview:
        """The command line that a form is equal to."""
        _, sections = _find_command(command)
        known = {field.name: field for section in sections for field in _list_fields(section)}
        words, problem = ["ludus", command], ""
        if env := values.get("env", "").strip():
            words.append(env)
        else:
            problem = "env: which environment?"
        out = values.get("out", "").strip()
        words += ["--out", out or str(self._folder / f"{command}-{time.strftime('%m%d-%H%M%S')}")]
        for name, value in values.items():
            if name in ("env", "out") or value == "":
                continue
            if name not in known and name.partition(".")[0] not in sections:
                problem = problem or f"{name[:60]}: unknown setting; {suggest(name, list(known))}"
            elif (wrong := _find_wrong(known.get(name), value)) and not problem:
                problem = f"{name}: {wrong}"
            words += [f"--{name}", value]
        if env.startswith("-") or any("\0" in word for word in words):
            problem = problem or "env: a name, not a flag"
        return CommandPreview(line=shlex.join([*words, "--quiet"]), words=(*words, "--quiet"), problem=problem)


def _find_command(command: str) -> tuple[str, tuple[str, ...]]:
    if command not in COMMANDS:
        raise ConfigError(f"'{command[:40]}' cannot be started from a page; {suggest(command, list(COMMANDS))}")
    return COMMANDS[command]


def _find_wrong(field: FormField | None, value: str) -> str:
    """What is wrong with a value, as far as its kind says."""
    if field is None or value == "null":
        return ""
    try:
        if field.kind == "whole":
            int(value)
        elif field.kind == "number":
            float(value)
    except ValueError:
        return f"a {'whole number' if field.kind == 'whole' else 'number'}, not {value[:40]!r}"
    if field.kind == "choice" and value not in field.choices:
        return f"one of {', '.join(field.choices)}"
    return "true or false" if field.kind == "flag" and value not in ("true", "false") else ""


def _list_fields(section: str) -> Iterator[FormField]:
    kind: Any = SECTIONS.get(section)
    if section in ("model", "optimizer", "trainer"):
        for name, words in _SERVER.items():
            full = f"{section}.{name}"
            yield FormField(name=full, label=name, section=section, kind="text", help=words, common=full in _COMMON)
        return
    if not isinstance(kind, type) or not issubclass(kind, msgspec.Struct):
        return
    texts = read_field_docs(kind)
    for field in msgspec.structs.fields(kind):
        name = f"{section}.{field.name}"
        if name == "env.name":
            continue
        shape, choices = _name_kind(kinds.type_info(field.type))
        if shape:
            yield FormField(
                name=name,
                label=field.name,
                section=section,
                kind=shape,
                choices=choices,
                default=_write_default(field),
                help=texts.get(field.name, ""),
                common=name in _COMMON,
            )


def _write_default(field: "msgspec.structs.FieldInfo") -> str:
    default = field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default
    if default is msgspec.NODEFAULT or default is None:
        return ""
    return default if isinstance(default, str) else to_json(default).decode()


def _name_kind(found: kinds.Type) -> tuple[str, tuple[str, ...]]:
    """The kind of a field, and its choices; empty for groups of settings, which are set by their own names."""
    if isinstance(found, kinds.UnionType):
        inner = [each for each in found.types if not isinstance(each, kinds.NoneType)]
        return _name_kind(inner[0]) if len(inner) == 1 else ("text", ())
    match found:
        case kinds.BoolType():
            return "flag", ("true", "false")
        case kinds.IntType():
            return "whole", ()
        case kinds.FloatType():
            return "number", ()
        case kinds.LiteralType():
            return "choice", tuple(str(value) for value in found.values)
        case kinds.StrType():
            return "text", ()
        case kinds.StructType():
            return "", ()
        case _:
            return "json", ()
