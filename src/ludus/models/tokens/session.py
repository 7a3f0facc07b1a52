"""One conversation as a tree of exact ids.

    session = Session(codec)
    prompt = session.prompt(messages, tools)                       # ids to send: known ones, then the new delta
    generated = await engine.generate(prompt.ids, sampling)        # anything may happen meanwhile
    completion = session.add(prompt, generated[0])                 # a message, and the exact ids with it

`prompt` finds the longest part of the conversation that is already a path in the tree, by what the messages mean: callers
may have sent them round the world as JSON, reordered the arguments of a call or left the reasoning out, and still the
recorded ids are used. What is new is rendered behind it (`render`). A message that was edited, a history that was
compacted or that the template rewrites, a second sample of the same prompt, a sub-agent: each starts a branch.

Guarantees. Ids that were sampled are never encoded again. A session stores each id once, whatever the number of turns.
The tree only grows, and `prompt` and `add` do not wait for anything, so any number of requests may be under way in one
session. Every so often (at turns 2, 4, 8, …) the conversation is rendered whole and compared with the short way; the
cost of that stays linear. A session is of use to one conversation and its branches, then dropped.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from ludus.errors import ModelError
from ludus.models.tokens import Generated
from ludus.models.tokens.codec import Codec, finish_of
from ludus.models.tokens.meaning import same
from ludus.models.tokens.sequences import Step, TokenSequence, sequences
from ludus.models.tokens.tree import Node
from ludus.types import Completion, Joint, Message, Tokens, ToolSpec, Usage


@dataclass(frozen=True)
class Prompt:
    """What to send to an engine."""

    node: Node
    ids: list[int]
    tools: Sequence[ToolSpec]


@dataclass
class Counts:
    """What happened in a session, for reports."""

    completions: int = 0
    branches: int = 0
    """Prompts that did not go on from the reply before them."""
    foreign: int = 0
    """Assistant messages that were given and not sampled here."""
    surprises: int = 0
    """Times that rendering whole gave another text than the short way."""


class Session:
    """A tree of one conversation. Two modes of use: `prompt` and `add`, or `capture` alone."""

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self.counts = Counts()
        self._root = Node(None, ())
        self._steps: list[Step] = []
        self._leaves: list[Node] = []
        """The reply of each step."""
        self._latest: tuple[list[Message], Node] | None = None
        """The conversation that was last added to, as a shortcut."""
        self._trusts_short = True

    # ---- asking ---------------------------------------------------------------------------------------------------

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Prompt:
        """The ids of a conversation, up to where the reply begins.

        Raises:
            ConfigError: the template cannot render it.
        """
        found, matched = self._find(messages, tools)
        new = tuple(messages[matched:])
        node = found if not new and not found.sampled and found.parent else self._grow(found, new, messages, tools)
        return Prompt(node, node.all_ids(), tools)

    def _grow(self, found: Node, new: Sequence[Message], messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Node:
        """A given node for what is new."""
        self.counts.foreign += sum(message.role == "assistant" for message in new)
        tokenizer = self.codec.tokenizer
        if found.parent is None:
            text = self.codec.renderer.opening(messages, tools)
            return _attach(self._root, new, tokenizer.encode(text), text, tools)
        parent, text = self._extend(found, new, tools)
        if parent is not found:
            self.counts.branches += 1
            new = messages[sum(len(node.messages) for node in parent.upward()) :]
        if parent.parent is None:
            return _attach(parent, new, tokenizer.encode(text), text, tools)
        if parent.sampled:
            return _attach(parent, new, tokenizer.encode_after(text), text, tools)
        return self._after_given(parent, new, text, tools)

    def _extend(self, leaf: Node, new: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[Node, str]:
        renderer = self.codec.renderer
        if not self._trusts_short:
            extension = renderer.whole(leaf, new, tools)
            return extension.parent or self._root, extension.text
        extension = renderer.extend(leaf, new, tools)
        if self._audit_is_due() and renderer.history == "template":
            whole = renderer.extend(leaf, new, tools, audit=True)
            if whole != extension:
                self.counts.surprises += 1
                self._trusts_short = False
                extension = whole
        return extension.parent or self._root, extension.text

    def _audit_is_due(self) -> bool:
        count = len(self._steps)
        return count > 1 and count & (count - 1) == 0

    def _after_given(self, parent: Node, new: Sequence[Message], text: str, tools: Sequence[ToolSpec]) -> Node:
        """Given text behind given text: the ids are those of both encoded together, or the earlier ones do not hold."""
        tokenizer = self.codec.tokenizer
        grand = parent.parent or self._root
        both = (parent.shape or "") + text
        ids = tokenizer.encode(both) if grand.parent is None else tokenizer.encode_after(both)
        if tuple(ids[: len(parent.ids)]) == parent.ids:
            return _attach(parent, new, ids[len(parent.ids) :], text, tools)
        return _attach(grand, (*parent.messages, *new), ids, both, tools)

    # ---- matching -------------------------------------------------------------------------------------------------

    def _find(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[Node, int]:
        """The deepest node whose path the conversation begins with, and how many messages that are."""
        if self._latest is not None:
            before, node = self._latest
            if len(before) <= len(messages) and messages[: len(before)] == before and _same_tools(node.tools, tools):
                return node, len(before)
        best, matched = self._root, 0
        stack = [(child, 0) for child in self._root.children if _same_tools(child.tools, tools)]
        while stack:
            node, start = stack.pop()
            end = start + len(node.messages)
            if end > len(messages) or not all(map(same, node.messages, messages[start:end])):
                continue
            if end >= matched:
                best, matched = node, end
            stack += [(child, end) for child in node.children]
        return best, matched

    # ---- answering ------------------------------------------------------------------------------------------------

    def add(self, prompt: Prompt, generated: Generated, *, stop: Sequence[str] = (), model: str = "") -> Completion:
        """Take in what the engine drew after a prompt.

        Raises:
            ModelError: what came back does not fit together, or not to what was sent.
        """
        _check_echo(prompt.ids, generated)
        _check_columns(generated)
        text = self.codec.text(generated.ids)
        _check_text(text, generated)
        first = sum(len(m.calls) for node in prompt.node.upward() for m in node.messages) if prompt.tools else 0
        opened = (prompt.node.shape or "").rstrip().endswith("<think>")
        message = self.codec.read(text, prompt.tools, stop=stop, thinking=opened, first=first)
        return self._record(prompt.node, message, generated, model, len(prompt.ids))

    def capture(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        generated: Generated,
        message: Message,
        model: str = "",
    ) -> Completion:
        """Take in a completion whose prompt the engine rendered itself and told us in `generated.prompt`.

        The ids are the engine's own; they go on from an earlier reply only as far as they repeat its ids exactly.
        """
        if generated.prompt is None:
            raise ModelError("the engine did not tell the ids of the prompt", retryable=False)
        _check_columns(generated)
        parent = self._longest_prefix(generated.prompt)
        node = Node(parent, tuple(messages), generated.prompt[parent.end :], tools=tools)
        parent.children.append(node)
        return self._record(node, message, generated, model, len(generated.prompt))

    def _record(self, given: Node, message: Message, generated: Generated, model: str, prompt_tokens: int) -> Completion:
        logprobs = tuple(_finite(value) for value in generated.logprobs)
        reply = Node(
            given, (message,), generated.ids, sampled=True, ended=self.codec.ended(generated.ids), tools=given.tools
        )
        joint, new = self._join(given)
        tokens = Tokens(
            (*new, *generated.ids),
            (False,) * len(new) + (True,) * len(generated.ids),
            (None,) * len(new) + logprobs,
        )
        given.children.append(reply)
        self._index(reply)
        self._steps.append(Step(tokens, joint))
        self.counts.completions += 1
        usage = Usage(generated.prompt_tokens or prompt_tokens, len(generated.ids), generated.cached_tokens)
        return Completion(message, finish_of(generated.finish, message), usage, model, tokens, joint)

    def _index(self, reply: Node) -> None:
        step = len(self._steps)
        for node in reply.upward():
            if node.step is not None:
                break
            node.step = step
        self._leaves.append(reply)
        self._latest = ([*reply.all_messages()], reply)

    # ---- where a completion goes ----------------------------------------------------------------------------------

    def _join(self, given: Node) -> tuple[Joint | None, Sequence[int]]:
        """Where a completion's ids join on, and the given ones among them that are new."""
        if not self._steps:
            return None, given.all_ids()
        last = len(self._steps) - 1
        if given.parent is self._leaves[last]:
            return None, given.ids
        known = next((node for node in given.upward() if node.step is not None), None)
        turn = known.step if known is not None and known.step is not None else last
        start = known.end if known is not None else 0
        ids = given.all_ids()
        kept = start + _alike(ids[start:], self._leaves[turn].all_ids()[start:])
        return Joint(turn, kept), ids[kept:]

    def _longest_prefix(self, ids: Sequence[int]) -> Node:
        """The deepest node whose sequence `ids` begins with."""
        best = self._root
        stack = list(self._root.children)
        while stack:
            node = stack.pop()
            start = node.end - len(node.ids)
            if tuple(ids[start : node.end]) == node.ids:
                best = node if node.end >= best.end else best
                stack += node.children
        return best

    # ---- giving out -----------------------------------------------------------------------------------------------

    @property
    def steps(self) -> Sequence[Step]:
        """What each completion added, in order."""
        return self._steps

    def sequences(self) -> list[TokenSequence]:
        """The rows that this session comes to."""
        return sequences(self._steps)


def _attach(parent: Node, messages: Iterable[Message], ids: Sequence[int], shape: str, tools: Sequence[ToolSpec]) -> Node:
    node = Node(parent, tuple(messages), ids, shape=shape, tools=tools)
    parent.children.append(node)
    return node


def _same_tools(one: Sequence[ToolSpec], other: Sequence[ToolSpec]) -> bool:
    return one is other or tuple(one) == tuple(other)


def _alike(one: Sequence[int], other: Sequence[int]) -> int:
    """How many ids two sequences begin with in common."""
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


# ---- what does not fit --------------------------------------------------------------------------------------------


def _check_echo(sent: Sequence[int], generated: Generated) -> None:
    told = generated.prompt
    if told is not None and list(told) != list(sent):
        at = _alike(sent, told)
        raise ModelError(
            f"the engine used another prompt than it was sent: {len(told)} ids instead of {len(sent)}, the first "
            f"difference at position {at}. Does it add or drop a begin-of-text token, or cut long prompts?",
            retryable=False,
        )
    if generated.prompt_tokens is not None and generated.prompt_tokens != len(sent):
        raise ModelError(
            f"the engine counted {generated.prompt_tokens} ids in a prompt of {len(sent)}. "
            "Does it add a begin-of-text token, or cut long prompts?",
            retryable=False,
        )


def _check_columns(generated: Generated) -> None:
    if len(generated.ids) != len(generated.logprobs):
        raise ModelError(f"the engine gave {len(generated.logprobs)} logprobs for {len(generated.ids)} ids")
    if any(number < 0 for number in generated.ids):
        raise ModelError(f"the engine gave a negative id: {min(generated.ids)}")


def _check_text(text: str, generated: Generated) -> None:
    """The engine's text may be shorter than what its ids say (stop strings, special tokens), but not longer."""
    if generated.text is not None and len(generated.text.strip()) > len(text.strip()):
        raise ModelError(
            f"the engine gave {len(generated.ids)} ids that say {text[-40:]!r}, but a longer text, "
            f"{generated.text[-40:]!r}: ids are missing"
        )


def completions_in(messages: Iterable[Message]) -> int:
    return sum(1 for _ in chain(m for m in messages if m.role == "assistant"))
