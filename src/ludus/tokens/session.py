"""One conversation as a tree of exact ids.

    session = TokenSession(codec)
    prompt = session.build_prompt(messages, tools)                 # ids to send: known ones, then the new delta
    generated = await engine.generate(prompt.ids, sampling)        # other requests may run meanwhile
    completion = session.add_completion(prompt, generated[0])      # a message, and the exact ids with it

`build_prompt` finds the longest part of the conversation that is already a path in the tree. Messages are compared by
meaning (`same_message`): a caller may have sent them as JSON, reordered the arguments of a call or dropped the
reasoning, and the recorded ids are still used. The new messages are rendered after them (`render`). A branch starts at
an edited message, at a history that was compacted or that the template rewrites, at a second sample of the same prompt,
and at a sub-agent.

Guarantees. Sampled ids are never encoded again. A session stores each id once, plus the last prompt. The tree only
grows, and `build_prompt` and `add_completion` do not wait for anything, so any number of requests can be under way in
one session. At turns 4, 16, 64, … the conversation is rendered whole and compared with the short rendering; the total
cost of that is linear. A session serves one conversation and its branches, and is then dropped.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from ludus.errors import ModelError
from ludus.models.server import Price, make_usage
from ludus.tokens import Generation
from ludus.tokens.codec import Codec, infer_finish
from ludus.tokens.same_message import same_message
from ludus.tokens.session_tree import Node, Tree, check_columns, count_common
from ludus.types import Completion, Message, ToolSpec


class Prompt(NamedTuple):
    """The ids to send to an engine, and where the reply goes in the tree."""

    node: Node
    ids: list[int]
    messages: Sequence[Message]
    tools: Sequence[ToolSpec]

    @property
    def opens_thought(self) -> bool:
        """Whether the prompt ends with an open think block."""
        return (self.node.shape or "").rstrip().endswith("<think>")


class TokenSession(Tree):
    """One conversation and its branches."""

    def __init__(self, codec: Codec) -> None:
        super().__init__()
        self.codec = codec

        self._last_prompt: tuple[Node | None, list[int]] = None, []
        """The node of the last prompt, and all ids up to it."""
        self._latest: tuple[list[Message], Node] | None = None
        """The conversation that was last added to: usually the next prompt continues it."""
        self._trusts_short = True
        """False once a whole rendering differed from the short one."""
        self._next_audit = 4

    # ---- prompts --------------------------------------------------------------------------------------------------

    def build_prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Prompt:
        """The ids of a conversation, with the generation prompt.

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

        ids = self._collect_ids(node)
        self._last_prompt = node, ids
        return Prompt(node, ids, messages, tools)

    def _collect_ids(self, node: Node) -> list[int]:
        """All ids up to a node. The ids of the last prompt are kept, because the node usually continues it."""
        last, known = self._last_prompt
        reply = node.parent
        if last is None or reply is None or reply.parent is not last:
            return node.collect_ids()
        return [*known, *reply.ids, *node.ids]

    def _add_messages(
        self, found: Node, new: Sequence[Message], messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> Node:
        """Add a given node for the new messages."""
        parent, text = self._extend(found, new, tools)
        if parent is not found:
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
                self._trusts_short = False
                extension = renderer.render_whole(leaf, new, tools)
        return extension.parent or self.root, extension.text

    def _append_to_given(self, parent: Node, new: Sequence[Message], text: str, tools: Sequence[ToolSpec]) -> Node:
        """Add given text after given text. Both are encoded together; if that changes the earlier ids, one node
        replaces both."""
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
        """The deepest node whose path is a prefix of the conversation, and its number of messages."""
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

    # ---- replies --------------------------------------------------------------------------------------------------

    def add_completion(
        self,
        prompt: Prompt,
        generated: Generation,
        *,
        stop: Sequence[str] = (),
        model: str = "",
        price: Price = Price(),
    ) -> Completion:
        """Add a reply that the engine sampled after a prompt.

        Raises:
            ModelError: the reply is inconsistent, or is not a reply to this prompt.
        """
        check_echo(prompt.ids, generated)
        check_columns(generated)
        codec = self.codec
        text = codec.decode_reply(generated.ids)
        check_text(text, generated, codec.tokenizer.stop_tokens.values())
        message = codec.parse_reply(
            text, prompt.tools, stop=stop, thinking=prompt.opens_thought, first=prompt.node.calls
        )
        node, step = self.add_reply(prompt.node, message, generated, ended=codec.ends_turn(generated.ids))
        self._latest = ([*prompt.messages, message], node)
        spent = make_usage(price, len(prompt.ids), len(generated.ids), generated.cached_tokens)
        return Completion(message, infer_finish(generated.finish, message), spent, model, step.tokens, step.splice)


def _same_tools(one: Sequence[ToolSpec], other: Sequence[ToolSpec]) -> bool:
    return one is other or tuple(one) == tuple(other)


# ---- checks of replies --------------------------------------------------------------------------------------------


def check_echo(sent: Sequence[int], generated: Generation) -> None:
    """Check that the engine used the prompt that was sent."""
    used = generated.prompt
    if used is not None and used != tuple(sent):
        raise ModelError(
            f"the engine used another prompt than it was sent: {len(used)} ids instead of {len(sent)}, with the first "
            f"difference at position {count_common(sent, used)}. Does it add or drop a begin-of-text token, or cut "
            "long prompts?",
            retryable=False,
        )
    if generated.prompt_tokens is not None and generated.prompt_tokens != len(sent):
        raise ModelError(
            f"the engine counted {generated.prompt_tokens} ids in a prompt of {len(sent)}. "
            "Does it add a begin-of-text token, or cut long prompts?",
            retryable=False,
        )


def check_text(text: str, generated: Generation, stop_tokens: Collection[str]) -> None:
    """Check the engine's text against its ids. It may be shorter (stop strings, special tokens), but longer only by one
    of the `stop_tokens`."""
    if generated.text is None:
        return
    returned, decoded = (value.replace("\ufffd", "").strip() for value in (generated.text, text))
    if len(returned) <= len(decoded):
        return
    rest = returned[len(decoded) :].strip() if returned.startswith(decoded) else ""
    if rest not in stop_tokens:
        raise ModelError(
            f"the engine returned {len(generated.ids)} ids that decode to {decoded[-40:]!r}, but a longer text, "
            f"{returned[-40:]!r}: ids are missing"
        )
