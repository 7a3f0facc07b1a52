"""Tokenizer, template and parser of one model: conversations to ids, and sampled ids to messages.

`Codec.open` makes one. It loads the tokenizer and its template, finds the parser, and raises early if something cannot
work. `parse_reply` splits a reply into reasoning, tool calls and content. The ids are not changed by that. A malformed
call is not dropped: it becomes a call that the loop rejects with the reason, so that the model sees its mistake.
"""

import re
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ludus.models.openai import split_think
from ludus.parsers import CallProblem, Format, ReplyParser, make_parser
from ludus.tokens.render import History, Renderer
from ludus.tokens.template import Template, read_template
from ludus.tokens.tokenizer import Tokenizer, load_tokenizer
from ludus.tokens.views import RenderCalls
from ludus.types import Call, Finish, Message, Reasoning, ToolSpec


class _CachedPrompt(NamedTuple):
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    text: str
    ids: tuple[int, ...]


class Codec:
    """Tokenizer, template and parser of one model."""

    def __init__(self, tokenizer: Tokenizer, renderer: Renderer, parser: ReplyParser) -> None:
        self.tokenizer = tokenizer
        self.renderer = renderer
        self.parser = parser
        self._cached_prompts: deque[_CachedPrompt] = deque(maxlen=16)

    @classmethod
    def open(
        cls,
        tokenizer: str | Path,
        parser: str | Format | ReplyParser,
        *,
        template: str = "",
        variables: Mapping[str, Any] | None = None,
        history: History = "template",
    ) -> "Codec":
        """Make a codec from a tokenizer (see `load_tokenizer`), a parser (a name, a `Format` or a `ReplyParser`), and a
        template to use instead of the model's own.

        Raises:
            ConfigError: one of them does not exist or cannot be used.
        """
        files = load_tokenizer(tokenizer)
        own = make_parser(parser)
        sources = read_template(template) if template else files.templates
        compiled = Template(sources, tokens=files.tokens, variables=variables)
        return cls(files.tokenizer, Renderer(compiled, files.tokenizer, _make_render_calls(own), history), own)

    def encode_prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[str, tuple[int, ...]]:
        """Render and encode the first prompt of a conversation. The rollouts of a group begin with the same prompt, so
        the last few are cached."""
        opening = tuple(messages)
        for known in self._cached_prompts:
            if known.messages == opening and known.tools == tuple(tools):
                return known.text, known.ids
        text = self.renderer.render_prompt(messages, tools)
        ids = tuple(self.tokenizer.encode(text))
        self._cached_prompts.append(_CachedPrompt(opening, tuple(tools), text, ids))
        return text, ids

    def ends_turn(self, ids: Sequence[int]) -> bool:
        """Whether the last id is a stop token."""
        return bool(ids) and ids[-1] in self.tokenizer.stop_tokens

    def decode_reply(self, ids: Sequence[int]) -> str:
        """Decode sampled ids, without the stop token."""
        return self.tokenizer.decode(ids[:-1] if self.ends_turn(ids) else ids)

    def parse_reply(
        self, text: str, tools: Sequence[ToolSpec], *, stop: Sequence[str] = (), thinking: bool = False, first: int = 0
    ) -> Message:
        """Make a message of a reply. `thinking`: the prompt ends with an open think block. `first`: the number of the
        first call."""
        text = _cut_at_stop(text, stop)
        calls: tuple[Call, ...] = ()
        reasoning: Reasoning | None = None
        if tools:
            parsed = self.parser.parse(text, tools, thinking=thinking, first=first)
            broken = _make_broken_calls(parsed.problems, first + len(parsed.calls))
            text, calls = parsed.content, (*parsed.calls, *broken)
            if parsed.reasoning:
                reasoning = Reasoning(parsed.reasoning, "reasoning_content")
        if reasoning is None:
            reasoning, text = _split_thinking(text, thinking)
        return Message("assistant", text, calls, reasoning=reasoning)


def infer_finish(finish: Finish, message: Message) -> Finish:
    """The finish reason of a reply. Engines do not know tools, so a plain stop with calls becomes `CALLS`."""
    return Finish.CALLS if message.calls and finish in (Finish.STOP, Finish.OTHER) else finish


def _make_render_calls(parser: ReplyParser) -> RenderCalls:
    def render(content: str, calls: Sequence[Call]) -> str:
        return parser.render(calls, content)

    return render


def _cut_at_stop(text: str, stop: Sequence[str]) -> str:
    """The text before the first stop string. Some engines leave the stop string in the text."""
    found = [at for word in stop if word and (at := text.find(word)) >= 0]
    return text[: min(found)] if found else text


def _split_thinking(text: str, thinking: bool) -> tuple[Reasoning | None, str]:
    if thinking and "</think>" not in text:
        return (Reasoning(text.strip(), "think", text), "") if text else (None, "")
    return split_think(text)


_NAME = re.compile(r"""["']?name["']?\s*[:=]\s*["']([^"']+)["']""")


def _make_broken_calls(problems: Sequence[CallProblem], first: int) -> tuple[Call, ...]:
    """Malformed calls, with the names that they seem to have. The loop reports what is wrong."""
    raw = [problem.raw for problem in problems if problem.kind == "malformed"]
    names = (found.group(1) if (found := _NAME.search(text)) else "" for text in raw)
    return tuple(Call(f"call_{first + i}", name, text) for i, (name, text) in enumerate(zip(names, raw, strict=True)))
