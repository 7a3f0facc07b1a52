"""A model that is a function, for tests, examples and trying an environment without a model.

A script is a list of replies, or a function that returns one. A list is played once per conversation: the number of
assistant messages in the conversation picks the reply. So one model can serve any number of rollouts at the same time
and has no state.

    ScriptedModel([call("add", a=2, b=3), say("It is 5.")])
    ScriptedModel(lambda messages, tools, sampling: say(f"You said: {messages[-1].content}"))

A reply is a text, a `Message`, or a `Completion` where the finish or the usage matters. What a script leaves out is
added: ids of calls, the finish, and a usage of one token per four characters. If a script raises, the model raises the
same exception.
"""

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from ludus.errors import ModelError
from ludus.models.token_estimate import estimate_prompt, estimate_text
from ludus.types import Call, Completion, Finish, Message, Reasoning, Sampling, ToolSpec, Usage

Reply = Completion | Message | str
Script = Callable[[Sequence[Message], Sequence[ToolSpec], Sampling], Reply | Awaitable[Reply]]


def say(text: str, *, reasoning: str = "") -> Message:
    """A text reply."""
    return Message("assistant", text, reasoning=_make_reasoning(reasoning))


def call(name: str, /, **arguments: Any) -> Message:
    """A reply that calls one tool: `call("add", a=2, b=3)`."""
    return Message("assistant", calls=(Call("", name, msgspec.json.encode(arguments).decode()),))


def join_calls(*replies: Message, text: str = "", reasoning: str = "") -> Message:
    """One reply with the calls of several: `join_calls(call("look", at="a"), call("look", at="b"))`."""
    calls = tuple(call for reply in replies for call in reply.calls)
    return Message("assistant", text, calls, reasoning=_make_reasoning(reasoning))


class ScriptedModel:
    """Plays a script. It has no state, so rollouts can share it."""

    def __init__(self, script: Script | Sequence[Reply], name: str = "scripted") -> None:
        self._script: Script = script if callable(script) else _make_player(tuple(script), name)
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    async def complete(self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Completion:
        reply = self._script(messages, tools, sampling)
        if inspect.isawaitable(reply):
            reply = await reply
        if not isinstance(reply, (Completion, Message, str)):  # pyright: ignore[reportUnnecessaryIsInstance]  # foreign
            kind = type(reply).__name__
            raise ModelError(
                f"{self._name}: the script returned {kind}; a reply is a text, a Message or a Completion",
                retryable=False,
            )
        return _complete_reply(reply, messages, tools, self._name)

    async def close(self) -> None:
        """There is nothing to close."""


def _make_player(replies: Sequence[Reply], name: str) -> Script:
    def play(messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Reply:
        index = sum(message.role == "assistant" for message in messages)
        if index >= len(replies):
            raise ModelError(
                f"{name}: reply {index + 1} was requested, but the script has {len(replies)}", retryable=False
            )
        return replies[index]

    return play


def _complete_reply(reply: Reply, messages: Sequence[Message], tools: Sequence[ToolSpec], name: str) -> Completion:
    """The reply with everything that a server would add."""
    if isinstance(reply, Completion):
        return msgspec.structs.replace(reply, message=_add_ids(reply.message, messages))
    message = _add_ids(Message("assistant", reply) if isinstance(reply, str) else reply, messages)
    size = estimate_text(message.content) + sum(estimate_text(c.arguments) for c in message.calls)
    return Completion(
        message,
        Finish.CALLS if message.calls else Finish.STOP,
        Usage(estimate_prompt(messages, tools), size),
        model=name,
    )


def _add_ids(message: Message, before: Sequence[Message]) -> Message:
    """Give calls without an id one that is unique in the conversation and the same in every run."""
    if all(call.id for call in message.calls):
        return message
    turn = sum(m.role == "assistant" for m in before) + 1
    calls = (
        call if call.id else Call(f"call_{turn}_{number}", call.name, call.arguments)
        for number, call in enumerate(message.calls, 1)
    )
    return msgspec.structs.replace(message, calls=tuple(calls))


def _make_reasoning(text: str) -> Reasoning | None:
    return Reasoning(text, "reasoning_content") if text else None
