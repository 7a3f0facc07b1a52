"""The settings reference, made from the recipes themselves, so that it cannot drift from them."""

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
from ludus.config.tree import SECTIONS, ModelSettings
from ludus.envs import BUILTIN
from ludus.models.server import ServerSettings
from ludus.sandbox.backend import RemoteSettings
from ludus.sandbox.backends import BACKENDS


def render_settings_page() -> str:
    """Every setting as a Markdown page, from the recipes themselves."""
    parts = ["# Settings", inspect.cleandoc(_INTRODUCTION)]
    for name, kind in SECTIONS.items():
        parts.append(f"## {name}")
        if name == "model":
            parts += _render_models()
        elif name == "optimizer":
            parts.append(_OPTIMIZER)
        elif name == "sandbox":
            parts += [inspect.cleandoc(kind.__doc__ or ""), _render_table(kind, name, _list_own_fields(kind))]
        else:
            parts += [inspect.cleandoc(kind.__doc__ or ""), _render_table(kind, name)]
        if name == "env":
            parts += [_render_env(env) for env in BUILTIN]
        if name == "sandbox":
            parts += _render_backends()
    return "\n\n".join(part for part in parts if part) + "\n"


def _render_models() -> Iterator[str]:
    """The kinds of models, with what servers of all kinds have in common told once."""
    types = [o for o in list_types(ModelSettings) if isinstance(o, kinds.StructType)]
    yield _MODEL
    servers = ", ".join(f"`{o.tag}`" for o in types if issubclass(o.cls, ServerSettings))
    yield f"### Servers: {servers}\n\n{inspect.cleandoc(ServerSettings.__doc__ or '')}"
    yield _render_table(ServerSettings, "model")
    for option in types:
        recipe = option.cls
        only = set(recipe.__annotations__) if issubclass(recipe, ServerSettings) else None
        yield f"### `model.type: {option.tag}`\n\n{inspect.cleandoc(recipe.__doc__ or '')}"
        yield _render_table(recipe, "model", only)


def _list_own_fields(recipe: type[Struct]) -> list[str]:
    """A recipe's fields without those that are told of elsewhere."""
    return [f.name for f in msgspec.structs.fields(recipe) if f.name not in BACKENDS]


def _render_backends() -> Iterator[str]:
    """The sections of the backends, with what all have in common told once."""
    recipes = {name: b.Settings for name, b in BACKENDS.items() if issubclass(b.Settings, RemoteSettings)}
    names = ", ".join(f"`{name}`" for name in recipes)
    yield f"### Remote slots: {names}\n\n{_BACKENDS}"
    yield _render_table(RemoteSettings, "sandbox.<backend>")
    for name, recipe in recipes.items():
        base = next((other for other, kind in recipes.items() if recipe.__base__ is kind), "")
        also = f" Beside these, all settings of `sandbox.{base}`." if base else ""
        yield f"### `sandbox.{name}`\n\n{inspect.cleandoc(recipe.__doc__ or '')}{also}"
        yield _render_table(recipe, f"sandbox.{name}", set(recipe.__annotations__))


_BACKENDS = """\
What all of them have in common, in the section of each. A profile (`sandbox.profiles.<name>`) takes the same settings
and `backend`, which says whose they are."""

_MODEL = """\
Who acts. `model.type` says which kind of model it is. Left out, it is `openai` if anything is said about the model that
the embedded one does not know, and `embedded` if not."""

_OPTIMIZER = """\
Who proposes changes in `ludus train`. `optimizer.type: same` (the default): the agent's own model; for a proposer that
asks nobody, no model at all. Any other type takes the same settings as `model` above, under `optimizer`. Left out, the
type is `openai` if anything else is said."""

_INTRODUCTION = """
    Defaults, then YAML files in the order given (`--config a.yaml --config b.yaml`), then dotted flags
    (`--env.group_size 4`): the later wins. `--print-config` shows the result. This page is printed by `ludus config`.
    """


def _render_env(name: str) -> str:
    kind = load_env_class(name)
    table = _render_table(kind, "env")
    return f"### Of `{name}`\n\n{table}" if table else ""


def _render_table(recipe: type[Struct], prefix: str, only: Collection[str] | None = None) -> str:
    rows = list(_render_rows(recipe, prefix, only))
    return "\n".join(["| setting | takes | default | |", "|---|---|---|---|", *rows]) if rows else ""


def _render_rows(recipe: type[Struct], prefix: str, only: Collection[str] | None = None) -> Iterator[str]:
    docs = read_field_docs(recipe)
    for f in msgspec.structs.fields(recipe):
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


def read_field_docs(recipe: type[Struct]) -> dict[str, str]:
    """The string beneath each field, inherited ones included."""
    docs: dict[str, str] = {}
    fields = {f.name for f in msgspec.structs.fields(recipe)}
    for kind in reversed(recipe.__mro__):
        if not issubclass(kind, Struct) or kind is Struct:
            continue
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
        assert isinstance(definition, ast.ClassDef)
        for statement, below in pairwise(definition.body):
            match statement, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))) if name in fields:
                    docs[name] = " ".join(text.split())
                case _:
                    pass
    return docs
