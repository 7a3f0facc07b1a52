"""Jinja as chat templates expect it: in its sandbox, with their helpers, and with a fast path for common lookups."""

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from ludus.tokens.template import TemplateFault


def compile_template(environment: ImmutableSandboxedEnvironment, source: str) -> Callable[[dict[str, Any]], str]:
    """The template as a function of its variables, which raises a `TemplateFault` if the template raises.

    Jinja's own `render` collects the globals again each time.

    Raises:
        TemplateFault: the source is not valid Jinja.
    """
    try:
        template = environment.from_string(source)
    except TemplateError as error:
        raise TemplateFault(f"the chat template is not valid Jinja: {error}") from error

    def render(known: dict[str, Any]) -> str:
        try:
            context = environment.context_class(environment, known, template.name, template.blocks)
            return "".join(template.root_render_func(context))
        except TemplateError as error:
            raise TemplateFault(f"the chat template refused the conversation: {error}") from error
        except Exception as error:  # a template is foreign code and may fail in any way
            raise TemplateFault(f"the chat template failed with {type(error).__name__}: {error}") from error

    return render


def make_environment(now: datetime) -> ImmutableSandboxedEnvironment:
    """Jinja with the settings and helpers that chat templates expect."""
    extensions = [_Generation, "jinja2.ext.loopcontrols"]
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    environment.filters["tojson"] = _to_json
    helpers: dict[str, Any] = {"raise_exception": _raise_exception, "strftime_now": now.strftime}
    environment.globals.update(helpers)
    return environment


_METHODS = frozenset(dir(dict))
_TEXT_METHODS = frozenset(
    ("split", "rsplit", "strip", "lstrip", "rstrip", "startswith", "endswith", "replace", "lower")
)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, with a fast path for harmless lookups that templates make all the time: a field of a message,
    the state of a loop, a method of a text. Everything else goes through its checks."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        kind: Any = type(obj)  # pyright: ignore[reportUnknownVariableType]
        if kind is dict and attribute not in _METHODS:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if (kind is LoopContext and attribute[0] != "_") or (kind is str and attribute in _TEXT_METHODS):
            return getattr(obj, attribute)
        if kind is Namespace:
            try:
                return getattr(obj, attribute)
            except AttributeError:
                return self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        kind: Any = type(obj)  # pyright: ignore[reportUnknownVariableType]
        if kind is dict and isinstance(argument, str) and argument in obj:
            return obj[argument]
        return super().getitem(obj, argument)


_PLAIN_JSON = json.JSONEncoder(ensure_ascii=False)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON. Jinja's own filter escapes HTML and sorts keys, and no model was trained on that."""
    if indent is None and separators is None and not ensure_ascii and not sort_keys:
        return _PLAIN_JSON.encode(value)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> str:
    raise TemplateError(message)


class _Generation(Extension):
    """The tag `{% generation %}` marks what a model wrote, for other training scripts. It prints only its content."""

    tags = {"generation"}  # noqa: RUF012  (as the base class has it)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
