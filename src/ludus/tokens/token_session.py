"""One conversation as a tree of exact ids.

    session = Session(codec)
    prompt = session.prompt(messages, tools)                       # ids to send: known ones, then the new delta
    generated = await engine.generate(prompt.ids, sampling)        # anything may happen meanwhile
    completion = session.add(prompt, generated[0])                 # a message, and the exact ids with it

`prompt` finds the longest part of the conversation that is already a path in the tree, by what the messages mean:
callers may have sent them round the world as JSON, reordered the arguments of a call or left the reasoning out, and
still the recorded ids are used. What is new is rendered behind it (`render`). A message that was edited, a history that
was compacted or that the template rewrites, a second sample of the same prompt, a sub-agent: each starts a branch.

Guarantees. Ids that were sampled are never encoded again. A session stores each id once, whatever the number of turns,
and the last prompt whole. The tree only grows, and `prompt` and `add` do not wait for anything, so any number of
requests may be under way in one session. Every so often (at turns 4, 16, 64, …) the conversation is rendered whole and
compared with the short way; the cost of that stays linear. A session is of use to one conversation and its branches,
then dropped.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ludus.errors import ModelError
from ludus.models.server import Price, make_usage
from ludus.tokens import Generation
from ludus.tokens.codec import Codec, infer_finish
from ludus.tokens.same_message import same_message
from ludus.tokens.session_tree import Node, Tree, count_common
from ludus.types import Completion, Message, ToolSpec


class Prompt(NamedTuple):
    """What to send to an engine."""

    node: Node
    ids: list[int]
    messages: Sequence[Message]
    tools: Sequence[ToolSpec]


MAX_ID = 2**31
"""Ids are below this in every vocabulary."""


@dataclass
class Counts:
    """What happened in a session, for reports."""

    branches: int = 0
    """Prompts that did not go on from the reply before them."""
    foreign: int = 0
    """Assistant messages that were given and not sampled here."""
    surprises: int = 0
    """Times that rendering whole gave another text than the short way."""


class TokenSession(Tree):
    """One conversation and its branches."""

    def __init__(self, codec: Codec) -> None:
        super().__init__()
        self.codec = codec
        self.counts = Counts()
        self._last_prompt: tuple[Node | None, list[int]] = None, []
        """The node of the last prompt, and all ids up to it."""
        self._latest: tuple[list[Message], Node] | None = None
        """The conversation that was last added to, as a shortcut."""
        self._trusts_short = True
        self._next_audit = 4

    # ---- asking ---------------------------------------------------------------------------------------------------

    def build_prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Prompt:
        """The ids of a conversation, up to where the reply begins.

        Raises:
            ConfigError: the template cannot render it.
        """
        found, matched = self._find_node(messages, tools)
        new = messages[matched:]
        if found is self.root:
            text, ids = self.codec.encode_prompt(messages, tools)
            node = self.add_given(self.root, messages, ids, text, tools)
        elif not new and not found.sampled:
            node = found
        else:
            node = self._add_messages(found, new, messages, tools)
        self.counts.foreign += sum(message.role == "assistant" for message in new)
        ids = self._collect_ids(node)
        self._last_prompt = node, ids
        return Prompt(node, ids, messages, tools)

    def _collect_ids(self, node: Node) -> list[int]:
        """All ids up to a node. Those up to the last prompt are at hand, and it mostly goes on from there."""
        asked, known = self._last_prompt
        reply = node.parent
        if asked is None or reply is None or reply.parent is not asked:
            return node.collect_ids()
        return [*known, *reply.ids, *node.ids]

    def _add_messages(
        self, found: Node, new: Sequence[Message], messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> Node:
        """A given node for what is new."""
        parent, text = self._extend(found, new, tools)
        if parent is not found:
            self.counts.branches += 1
            new = messages[sum(len(node.messages) for node in parent.walk_up()) :]
        if parent.sampled:
            return self.add_given(parent, new, self.codec.tokenizer.encode_after(text), text, tools)
        return self._append_to_given(parent, new, text, tools)

    def _extend(self, leaf: Node, new: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[Node, str]:
        renderer = self.codec.renderer
        extension = renderer.extend(leaf, new, tools) if self._trusts_short else renderer.render_whole(leaf, new, tools)
        if self._trusts_short and renderer.history == "template" and len(self.steps) == self._next_audit:
            self._next_audit *= 4
            if not renderer.matches_whole(leaf, new, extension, tools):
                self.counts.surprises += 1
                self._trusts_short = False
                extension = renderer.render_whole(leaf, new, tools)
        return extension.parent or self.root, extension.text

    def _append_to_given(self, parent: Node, new: Sequence[Message], text: str, tools: Sequence[ToolSpec]) -> Node:
        """Given text behind given text: the ids are those of both encoded together, or the earlier ones do not hold."""
        tokenizer = self.codec.tokenizer
        if parent is self.root:
            return self.add_given(parent, new, tokenizer.encode(text), text, tools)
        grand = parent.parent or self.root
        both = (parent.shape or "") + text
        ids = tokenizer.encode(both) if grand is self.root else tokenizer.encode_after(both)
        if tuple(ids[: len(parent.ids)]) == parent.ids:
            return self.add_given(parent, new, ids[len(parent.ids) :], text, tools)
        return self.add_given(grand, (*parent.messages, *new), ids, both, tools)

    def _find_node(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[Node, int]:
        """The deepest node whose path the conversation begins with, and how many messages that are."""
        if self._latest is not None:
            before, node = self._latest
            count = len(before)
            goes_on = count < len(messages) and same_message(before[-1], messages[count - 1])
            if goes_on and _same_tools(node.tools, tools) and before[:-1] == [*messages[: count - 1]]:
                return node, count
        best, matched = self.root, 0
        stack = [(child, 0) for child in self.root.children if _same_tools(child.tools, tools)]
        while stack:
            node, start = stack.pop()
            end = start + len(node.messages)
            if end > len(messages) or not all(map(same_message, node.messages, messages[start:end])):
                continue
            if end > matched:
                best, matched = node, end
            stack += [(child, end) for child in node.children]
        return best, matched

    # ---- answering ------------------------------------------------------------------------------------------------

    def add_completion(
        self,
        prompt: Prompt,
        generated: Generation,
        *,
        stop: Sequence[str] = (),
        model: str = "",
        price: Price = Price(),
    ) -> Completion:
        """Take in what the engine drew after a prompt.

        Raises:
            ModelError: what came back does not fit together, or not to what was sent.
        """
        check_echo(prompt.ids, generated)
        check_columns(generated)
        codec = self.codec
        text = codec.decode_reply(generated.ids)
        check_text(text, generated, codec.tokenizer.stop_tokens.values())
        opened = (prompt.node.shape or "").rstrip().endswith("<think>")
        message = codec.parse_reply(text, prompt.tools, stop=stop, thinking=opened, first=prompt.node.calls)
        node, step = self.add_reply(prompt.node, message, generated, ended=codec.ends_turn(generated.ids))
        self._latest = ([*prompt.messages, message], node)
        spent = make_usage(price, len(prompt.ids), len(generated.ids), generated.cached_tokens)
        return Completion(message, infer_finish(generated.finish, message), spent, model, step.tokens, step.splice)


def _same_tools(one: Sequence[ToolSpec], other: Sequence[ToolSpec]) -> bool:
    return one is other or tuple(one) == tuple(other)


# ---- what does not fit --------------------------------------------------------------------------------------------


def check_echo(sent: Sequence[int], generated: Generation) -> None:
    """The engine must have used the prompt that it was sent."""
    told = generated.prompt
    if told is not None and told != tuple(sent):
        raise ModelError(
            f"the engine used another prompt than it was sent: {len(told)} ids instead of {len(sent)}, the first "
            f"difference at position {count_common(sent, told)}. Does it add or drop a begin-of-text token, or cut long "
            "prompts?",
            retryable=False,
        )
    if generated.prompt_tokens is not None and generated.prompt_tokens != len(sent):
        raise ModelError(
            f"the engine counted {generated.prompt_tokens} ids in a prompt of {len(sent)}. "
            "Does it add a begin-of-text token, or cut long prompts?",
            retryable=False,
        )


def check_columns(generated: Generation) -> None:
    """Every id must have its logprob, and be one that a vocabulary can have."""
    ids = generated.ids
    if len(ids) != len(generated.logprobs):
        raise ModelError(f"the engine gave {len(generated.logprobs)} logprobs for {len(ids)} ids")
    if ids and (min(ids) < 0 or max(ids) >= MAX_ID):
        raise ModelError(f"the engine gave an id that no vocabulary has: {min(ids) if min(ids) < 0 else max(ids)}")


def check_text(text: str, generated: Generation, ends: Collection[str]) -> None:
    """The engine's text may be shorter than what its ids say (stop strings, special tokens), but longer only by the
    token that ended it, one of `ends`."""
    if generated.text is None:
        return
    told, says = (value.replace("\ufffd", "").strip() for value in (generated.text, text))
    if len(told) <= len(says):
        return
    rest = told[len(says) :].strip() if told.startswith(says) else ""
    if rest not in ends:
        raise ModelError(
            f"the engine gave {len(generated.ids)} ids that say {says[-40:]!r}, but a longer text, "
            f"{told[-40:]!r}: ids are missing"
        )
