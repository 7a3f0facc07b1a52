"""Runs a chat template as the model's authors wrote it: in Jinja, in a sandbox, with the helpers that templates expect.

A template turns messages and tools into the text that the model sees. This module only runs it. What a template does
with a conversation is found out in `probe` and used in `render`. The date that a template may ask for is fixed when the
template is made, so that midnight does not change a conversation.

The quality of a template is not checked here. A template that raises becomes a `TemplateFault` with the template's own
message.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from ludus.errors import ConfigError

try:
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension
    from jinja2.parser import Parser
    from jinja2.runtime import LoopContext
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from jinja2.utils import Namespace
except ModuleNotFoundError as missing:
    raise ConfigError("exact tokens need the extra 'tokens': pip install 'ludus-train[tokens]'") from missing

View = dict[str, Any]
"""A message as templates see it."""


class TemplateFault(ConfigError):
    """The template cannot be run, or it refuses the conversation."""


class Template:
    """Renders conversations. `variables` are the user's switches of the template (`enable_thinking`, …)."""

    def __init__(
        self,
        sources: str | Mapping[str, str],
        *,
        tokens: Mapping[str, str] | None = None,
        variables: Mapping[str, Any] | None = None,
        now: datetime | None = None,
    ) -> None:
        named = {"default": sources} if isinstance(sources, str) else dict(sources)
        if not named:
            raise TemplateFault(
                "template: the tokenizer comes without a chat template. Give one: a file, or 'chatml' for models of "
                "that format."
            )
        environment = _make_environment(now or datetime.now())
        self._known: dict[str, Any] = {**environment.globals, "documents": None, **(tokens or {}), **(variables or {})}
        self._plain = _compile(environment, named.get("default") or next(iter(named.values())))
        self._with_tools = _compile(environment, named["tool_use"]) if "tool_use" in named else self._plain
        self.rendered_messages = 0
        """The number of messages rendered so far: the cost that must stay linear in turns."""

    def render(self, messages: Sequence[View], tools: Sequence[View] | None = None, *, generate: bool = True) -> str:
        """Render a conversation; with `generate`, also the generation prompt.

        Raises:
            TemplateFault: the template raised.
        """

        self.rendered_messages += len(messages)
        template = self._with_tools if tools else self._plain
        try:
            given = {**self._known, "messages": messages, "tools": tools or None, "add_generation_prompt": generate}
            return template(given)
        except TemplateError as error:
            raise TemplateFault(f"the chat template refused the conversation: {error}") from error
        except Exception as error:  # a template is foreign code and may fail in any way
            raise TemplateFault(f"the chat template failed with {type(error).__name__}: {error}") from error


def read_template(name: str) -> str:
    """The source of a built-in template, or of a template file.

    Raises:
        ConfigError: the name is neither.
    """
    shipped = Path(__file__).parent / "templates" / f"{name}.jinja"
    path = shipped if name.isidentifier() and shipped.exists() else Path(name)
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"template: '{name}' is not UTF-8: {error}") from error
    except OSError as error:
        known = ", ".join(sorted(p.stem for p in shipped.parent.glob("*.jinja")))
        raise ConfigError(f"template: '{name}' is neither a file nor a built-in template ({known})") from error


def _compile(environment: ImmutableSandboxedEnvironment, source: str) -> Callable[[dict[str, Any]], str]:
    """The template as a function of its variables. Jinja's own `render` collects the globals again each time."""
    try:
        template = environment.from_string(source)
    except TemplateError as error:
        raise TemplateFault(f"the chat template is not valid Jinja: {error}") from error

    def render(known: dict[str, Any]) -> str:
        context = environment.context_class(environment, known, template.name, template.blocks)
        return "".join(template.root_render_func(context))

    return render


def _make_environment(now: datetime) -> ImmutableSandboxedEnvironment:
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
