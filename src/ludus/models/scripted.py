"""A model that is a function: the shipped fake, for tests, examples and trying an environment without a model.

A script is a list of replies, or a function that makes one. A list is played once per conversation: the reply is
picked by how many assistant messages the conversation already holds, so one model can serve any number of rollouts
side by side and keeps no state.

    ScriptedModel([call("add", a=2, b=3), say("It is 5.")])
    ScriptedModel(lambda messages, tools, sampling: say(f"You said: {messages[-1].content}"))

A reply is a text, a `Message`, or a `Completion` where the finish or the usage matters. What a script leaves open is
filled in: ids of calls, why the reply ended, and a usage of one token per four characters. A script that raises is a
model that raises: the exception passes through as it is.
"""

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from ludus.errors import ModelError
from ludus.models.token_estimate import prompt_tokens, text_tokens
from ludus.settings import Settings
from ludus.types import Call, Completion, Finish, Message, Reasoning, Sampling, ToolSpec, Usage


class ScriptedSettings(Settings, frozen=True, tag_field="type", tag="scripted"):
    """A function in place of a model: `(messages, tools, sampling) -> reply`. For tests and dry runs."""

    script: str = ""
    """`module:function` or `file.py:function`; also the name of a list of replies."""
    name: str = "scripted"
    """What the record calls it."""


Reply = Completion | Message | str
Script = Callable[[Sequence[Message], Sequence[ToolSpec], Sampling], Reply | Awaitable[Reply]]


def say(text: str, *, reasoning: str = "") -> Message:
    """A reply in words."""
    return Message("assistant", text, reasoning=_thought(reasoning))


def call(name: str, /, **arguments: Any) -> Message:
    """A reply that calls one tool: `call("add", a=2, b=3)`."""
    return Message("assistant", calls=(Call("", name, msgspec.json.encode(arguments).decode()),))


def together(*replies: Message, text: str = "", reasoning: str = "") -> Message:
    """One reply with the calls of several: `together(call("look", at="a"), call("look", at="b"))`."""
    calls = tuple(call for reply in replies for call in reply.calls)
    return Message("assistant", text, calls, reasoning=_thought(reasoning))


class ScriptedModel:
    """Plays a script. Stateless, and so safe to share between rollouts."""

    def __init__(self, script: Script | Sequence[Reply], name: str = "scripted") -> None:
        self._script: Script = script if callable(script) else _player(tuple(script), name)
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    async def complete(self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Completion:
        reply = self._script(messages, tools, sampling)
        if inspect.isawaitable(reply):
            reply = await reply
        return _finished(reply, messages, tools, self._name)

    async def close(self) -> None:
        """Nothing to give back."""


def _player(replies: Sequence[Reply], name: str) -> Script:
    def play(messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Reply:
        index = sum(message.role == "assistant" for message in messages)
        if index >= len(replies):
            raise ModelError(f"{name}: reply {index + 1} was asked for, the script has {len(replies)}", retryable=False)
        return replies[index]

    return play


def _finished(reply: Reply, messages: Sequence[Message], tools: Sequence[ToolSpec], name: str) -> Completion:
    """The reply with everything that a server would have added."""
    if isinstance(reply, Completion):
        return msgspec.structs.replace(reply, message=_with_ids(reply.message, messages))
    message = _with_ids(Message("assistant", reply) if isinstance(reply, str) else reply, messages)
    size = text_tokens(message.content) + sum(text_tokens(c.arguments) for c in message.calls)
    return Completion(
        message,
        Finish.CALLS if message.calls else Finish.STOP,
        Usage(prompt_tokens(messages, tools), size),
        model=name,
    )


def _with_ids(message: Message, before: Sequence[Message]) -> Message:
    """Calls that have no id get one that is unique in the conversation and the same in every run."""
    if all(call.id for call in message.calls):
        return message
    turn = sum(m.role == "assistant" for m in before) + 1
    calls = (
        call if call.id else Call(f"call_{turn}_{number}", call.name, call.arguments)
        for number, call in enumerate(message.calls, 1)
    )
    return msgspec.structs.replace(message, calls=tuple(calls))


def _thought(text: str) -> Reasoning | None:
    return Reasoning(text, "reasoning_content") if text else None
