"""Runs a chat template as the model's authors wrote it: in Jinja, in a sandbox, with the helpers that templates expect.

A template turns messages and tools into the text that the model sees. This module only runs it. What a template does
with a conversation is found out in `probe` and used in `render`. The date that a template may ask for is fixed when the
template is made, so that midnight does not change a conversation. Jinja is an extra: `jinja_sandbox`, which is built on
it, is imported when a template is made.

The quality of a template is not checked here. A template that raises becomes a `TemplateFault` with the template's own
message.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from ludus.errors import ConfigError
from ludus.tokens.token_packages import require_packages
from ludus.tokens.views import View
from ludus.whole_files import read_whole_text


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
        require_packages("jinja2")
        from ludus.tokens.jinja_sandbox import compile_template, make_environment

        environment = make_environment(now or datetime.now())
        self._known: dict[str, Any] = {**environment.globals, "documents": None, **(tokens or {}), **(variables or {})}
        self._plain = compile_template(environment, named.get("default") or next(iter(named.values())))
        self._with_tools = compile_template(environment, named["tool_use"]) if "tool_use" in named else self._plain
        self.rendered_messages = 0
        """The number of messages rendered so far: the cost that must stay linear in turns."""

    def render(self, messages: Sequence[View], tools: Sequence[View] | None = None, *, generate: bool = True) -> str:
        """Render a conversation; with `generate`, also the generation prompt.

        Raises:
            TemplateFault: the template raised.
        """
        self.rendered_messages += len(messages)
        template = self._with_tools if tools else self._plain
        return template(
            {**self._known, "messages": messages, "tools": tools or None, "add_generation_prompt": generate}
        )


def read_template(name: str) -> str:
    """The source of a built-in template, or of a template file.

    Raises:
        ConfigError: the name is neither.
    """
    shipped = Path(__file__).parent / "templates" / f"{name}.jinja"
    path = shipped if name.isidentifier() and shipped.exists() else Path(name)
    try:
        return read_whole_text(path)
    except UnicodeDecodeError as error:
        raise ConfigError(f"template: '{name}' is not UTF-8: {error}") from error
    except OSError as error:
        known = ", ".join(sorted(p.stem for p in shipped.parent.glob("*.jinja")))
        raise ConfigError(f"template: '{name}' is neither a file nor a built-in template ({known})") from error
