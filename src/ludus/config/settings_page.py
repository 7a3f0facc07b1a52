"""The page of all settings (`docs/configuration.md`), made from their definitions."""

import ast
import inspect
import json
import textwrap
from collections.abc import Collection, Iterator
from itertools import pairwise

import msgspec
from msgspec import Struct
from msgspec import inspect as kinds

from ludus.config.reading import describe_type, get_entry_type, list_types
from ludus.config.references import load_env_class
from ludus.config.tree import SECTIONS, ModelSettings, OwnModelSettings, TrainerSettings
from ludus.envs import BUILTIN
from ludus.models.server import ServerSettings
from ludus.sandbox.backend import RemoteSettings
from ludus.sandbox.backends import BACKENDS
from ludus.sandbox.pool import PoolSettings


def render_settings_page() -> str:
    """The page, in Markdown."""
    parts = ["# Settings", inspect.cleandoc(_INTRODUCTION)]
    for name, kind in SECTIONS.items():
        parts.append(f"## {name}")
        if name == "model":
            parts += _render_models()
        elif name == "optimizer":
            parts.append(_OPTIMIZER)
        elif name in _JUDGES:
            parts.append(_JUDGES[name])
        elif name == "trainer":
            parts += _render_trainers()
        elif name == "sandbox":
            parts += [inspect.cleandoc(kind.__doc__ or ""), _render_table(kind, name, _list_own_fields(kind))]
            parts += [f"### The pool\n\n{inspect.cleandoc(PoolSettings.__doc__ or '')}"]
            parts += [_render_table(kind, name, PoolSettings.__struct_fields__)]
        else:
            parts += [inspect.cleandoc(kind.__doc__ or ""), _render_table(kind, name)]
        if name == "env":
            parts += [_render_env(env) for env in BUILTIN]
        if name == "sandbox":
            parts += _render_backends()
    return "\n\n".join(part for part in parts if part) + "\n"


def _render_models() -> Iterator[str]:
    """The types of models. The settings that all servers have are listed once."""
    types = [o for o in list_types(ModelSettings) if isinstance(o, kinds.StructType)]
    yield _MODEL
    servers = ", ".join(f"`{o.tag}`" for o in types if issubclass(o.cls, ServerSettings))
    yield f"### Servers: {servers}\n\n{inspect.cleandoc(ServerSettings.__doc__ or '')}"
    yield _render_table(ServerSettings, "model")
    for option in types:
        group = option.cls
        only = set(group.__annotations__) if issubclass(group, ServerSettings) else None
        name = "module:Class" if group is OwnModelSettings else option.tag
        yield f"### `model.type: {name}`\n\n{inspect.cleandoc(group.__doc__ or '')}"
        yield _render_table(group, "model", {"options"} if group is OwnModelSettings else only)


def _render_trainers() -> Iterator[str]:
    yield "The trainer of `ludus rl`: who changes the weights, and how (`docs/rl.md`)."
    for option in list_types(TrainerSettings):
        assert isinstance(option, kinds.StructType)
        yield f"### `trainer.type: {option.tag}`\n\n{inspect.cleandoc(option.cls.__doc__ or '')}"
        yield _render_table(option.cls, "trainer")


def _list_own_fields(group: type[Struct]) -> list[str]:
    """The fields of the `sandbox` section without those of the pool and of the backends, which have tables of their
    own."""
    others = {*BACKENDS, *PoolSettings.__struct_fields__}
    return [f.name for f in msgspec.structs.fields(group) if f.name not in others]


def _render_backends() -> Iterator[str]:
    """The sections of the backends. The settings that all have are listed once."""
    groups = {name: b.Settings for name, b in BACKENDS.items() if issubclass(b.Settings, RemoteSettings)}
    names = ", ".join(f"`{name}`" for name in groups)
    yield f"### Remote slots: {names}\n\n{_BACKENDS}"
    yield _render_table(RemoteSettings, "sandbox.<backend>")
    for name, group in groups.items():
        base = next((other for other, kind in groups.items() if group.__base__ is kind), "")
        also = f" Beside these, all settings of `sandbox.{base}`." if base else ""
        yield f"### `sandbox.{name}`\n\n{inspect.cleandoc(group.__doc__ or '')}{also}"
        yield _render_table(group, f"sandbox.{name}", set(group.__annotations__))


_BACKENDS = """\
The settings that all of them have, in the section of each. A profile (`sandbox.profiles.<name>`) takes the settings of
a backend, and `backend`, the backend's name."""

_MODEL = """\
The agent's model. `model.type` says which kind it is. Without it, the type is `openai` if a setting is given that the
embedded model does not have, and else `embedded`."""

_OPTIMIZER = """\
The model that proposes changes in `ludus train`. `optimizer.type: same` (the default): the agent's own model, or no
model at all if the proposer needs none. Any other type takes the same settings as `model` above, under `optimizer`.
Without `optimizer.type`, the type is `openai` if any other setting is given."""

_JUDGES = {
    "claim_model": """\
A model that the skill was not trained with, for `ludus train --claim`: both skills are measured with it on the test
tasks. It takes the same settings as `model` above, under `claim_model`, and its cost is in the ledger under that
name.""",
    "judge": """\
The model that grades replies, for environments that are graded by one (`judge`, or your own). It takes the same
settings as `model` above, under `judge`. Its cost is in the ledger under `judge`.""",
    "second_judge": """\
A second judge. It changes no score: the summary of a run says how often the two agree.""",
    "vision": """\
The model that the toolset `vision` (and `browser_vision`) asks about pictures. It takes the same settings as `model`
above, under `vision`. Its cost is in the ledger under `vision`.""",
}

_INTRODUCTION = """
    Defaults, then YAML files in the order given (`--config a.yaml --config b.yaml`), then dotted flags
    (`--env.group_size 4`): later ones win. `--print-config` shows the result. `ludus config` prints this page. In place
    of a built-in name, several settings take a class or function of your own ([Extending Ludus](extending.md)).
    """


def _render_env(name: str) -> str:
    kind = load_env_class(name)
    table = _render_table(kind, "env")
    return f"### Options of `{name}`\n\n{table}" if table else ""


def _render_table(group: type[Struct], prefix: str, only: Collection[str] | None = None) -> str:
    rows = list(_render_rows(group, prefix, only))
    return "\n".join(["| setting | takes | default | |", "|---|---|---|---|", *rows]) if rows else ""


def _render_rows(group: type[Struct], prefix: str, only: Collection[str] | None = None) -> Iterator[str]:
    docs = read_field_docs(group)
    for f in msgspec.structs.fields(group):
        if only is not None and f.name not in only:
            continue
        path = f"{prefix}.{f.name}"
        accepted = list_types(f.type)
        nested = next((o.cls for o in accepted if isinstance(o, kinds.StructType)), None)
        if nested:
            yield from _render_rows(nested, path)
            continue
        entry = next((found for o in accepted if (found := get_entry_type(o))), None)
        if isinstance(entry, type):
            yield from _render_rows(entry, f"{path}.<name>")
            continue
        yield f"| `{path}` | {describe_type(f.type)} | {_render_default(f)} | {docs.get(f.name, '')} |".replace(
            "\n", " "
        )


def _render_default(info: msgspec.structs.FieldInfo) -> str:
    if info.required:
        return "required"
    value = info.default if info.default is not msgspec.NODEFAULT else info.default_factory()
    text = json.dumps(msgspec.to_builtins(value))
    return "" if text in {'""', "[]", "{}"} else f"`{text}`"


def read_field_docs(group: type[Struct]) -> dict[str, str]:
    """The string below each field, inherited fields included."""
    docs: dict[str, str] = {}
    fields = {f.name for f in msgspec.structs.fields(group)}
    for kind in reversed(group.__mro__):
        if not issubclass(kind, Struct) or kind is Struct:
            continue
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
        assert isinstance(definition, ast.ClassDef)
        for statement, below in pairwise(definition.body):
            match statement, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))) if (
                    name in fields
                ):
                    docs[name] = " ".join(text.split())
                case _:
                    pass
    return docs
