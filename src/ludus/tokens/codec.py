"""How one model's conversations become ids, and its ids messages: tokenizer, template and parser together.

`Codec.open` is the way to get one: it finds the tokenizer and its template, takes the parser by name, and refuses early
what cannot work. `read` takes a reply apart: the think block that opens it, the tool calls, the rest. The ids stay
what they were; only words are interpreted here. A call that cannot be read is not dropped: it becomes a call that the
loop refuses with the reason, so that the mistake goes back to the model.
"""

import re
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ludus.models.openai import split_think
from ludus.parsers import CallProblem, Parser
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

    def __init__(self, tokenizer: Tokenizer, renderer: Renderer, parser: Parser) -> None:
        self.tokenizer = tokenizer
        self.renderer = renderer
        self.parser = parser
        self._cached_prompts: deque[_CachedPrompt] = deque(maxlen=16)

    @classmethod
    def open(
        cls,
        tokenizer: str | Path,
        parser: str | Parser,
        *,
        template: str = "",
        variables: Mapping[str, Any] | None = None,
        history: History = "template",
    ) -> "Codec":
        """From names: a tokenizer (see `tokenizer.load`), a parser, and a template in place of the model's own.

        Raises:
            ConfigError: one of them does not exist or cannot be used.
        """
        shipped = load_tokenizer(tokenizer)
        read = parser if isinstance(parser, Parser) else Parser(parser)
        sources = read_template(template) if template else shipped.templates
        made = Template(sources, tokens=shipped.tokens, variables=variables)
        return cls(shipped.tokenizer, Renderer(made, shipped.tokenizer, _make_render_calls(read), history), read)

    def encode_prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[str, tuple[int, ...]]:
        """The first prompt of a conversation as text and ids. The rollouts of a group begin alike, so the last few are
        remembered."""
        begun = tuple(messages)
        for known in self._cached_prompts:
            if known.messages == begun and known.tools == tuple(tools):
                return known.text, known.ids
        text = self.renderer.render_prompt(messages, tools)
        ids = tuple(self.tokenizer.encode(text))
        self._cached_prompts.append(_CachedPrompt(begun, tuple(tools), text, ids))
        return text, ids

    def ends_turn(self, ids: Sequence[int]) -> bool:
        return bool(ids) and ids[-1] in self.tokenizer.stop_tokens

    def decode_reply(self, ids: Sequence[int]) -> str:
        """What sampled ids say, without the token that ended them."""
        return self.tokenizer.decode(ids[:-1] if self.ends_turn(ids) else ids)

    def parse_reply(
        self, text: str, tools: Sequence[ToolSpec], *, stop: Sequence[str] = (), thinking: bool = False, first: int = 0
    ) -> Message:
        """A reply as a message. `thinking`: the prompt opened a think block; `first`: the number of the first call."""
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
    """Why a reply ended: an engine knows no tools, so a plain end with calls is an end to call."""
    return Finish.CALLS if message.calls and finish in (Finish.STOP, Finish.OTHER) else finish


def _make_render_calls(parser: Parser) -> RenderCalls:
    def render(content: str, calls: Sequence[Call]) -> str:
        return parser.render(calls, content)

    return render


def _cut_at_stop(text: str, stop: Sequence[str]) -> str:
    """The text up to the first stop string, which some engines leave in."""
    found = [at for word in stop if word and (at := text.find(word)) >= 0]
    return text[: min(found)] if found else text


def _split_thinking(text: str, thinking: bool) -> tuple[Reasoning | None, str]:
    if thinking and "</think>" not in text:
        return (Reasoning(text.strip(), "think", text), "") if text else (None, "")
    return split_think(text)


_NAME = re.compile(r"""["']?name["']?\s*[:=]\s*["']([^"']+)["']""")


def _make_broken_calls(problems: Sequence[CallProblem], first: int) -> tuple[Call, ...]:
    """Calls that could not be read, under the names that they seem to have: the loop will say what is wrong."""
    raw = [problem.raw for problem in problems if problem.kind == "malformed"]
    names = (found.group(1) if (found := _NAME.search(text)) else "" for text in raw)
    return tuple(Call(f"call_{first + i}", name, text) for i, (name, text) in enumerate(zip(names, raw, strict=True)))
