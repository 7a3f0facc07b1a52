"""Makes rows for training from a rollout.

A rollout that was run in token mode has, on each completion, the ids that it added. `build_rows` joins them to the
maximal linear sequences that the engine really saw (`ludus.tokens.sequences` has the rules). Nothing is encoded here,
so no ids can change. Replies that were sampled under guided decoding are context (`unmark_guided` changes that).

A rollout that was run in chat mode has no ids, and `build_rows` refuses it: ids made from its text are not the sampled
ones, and there are no logprobs. For supervised fine-tuning on the text there is `retokenize`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from ludus.errors import ConfigError
from ludus.tokens import Generation
from ludus.tokens.sequences import TokenSequence, TokenStep, build_sequences, find_mode
from ludus.types import Completion, Finish, Group, Message, Rollout, ToolSpec

if TYPE_CHECKING:
    from ludus.tokens.codec import Codec


class NotExact(ConfigError):
    """The rollout does not have what RL needs."""


def build_rows(rollout: Rollout) -> list[TokenSequence]:
    """Build the sequences of a rollout, exactly as they were sampled.

    Raises:
        NotExact: it was run in chat mode, in part or as a whole, or its record is incomplete.
    """
    found = find_mode(rollout)
    if found in ("chat", "mixed"):
        raise NotExact(
            f"the rollout of task '{rollout.task.id}' was run in chat mode{' in part' if found == 'mixed' else ''}: "
            "the server did not return the sampled ids, so there is nothing to train on with RL. Run it with a "
            "model in token mode, or ask for re-tokenized rows for supervised fine-tuning."
        )
    try:
        return build_sequences([_make_step(turn.completion) for turn in rollout.turns])
    except ValueError as error:
        raise NotExact(f"the record of task '{rollout.task.id}' is incomplete: {error}") from error


def unmark_guided(group: Group) -> Group:
    """The group with all replies as if they had been sampled freely, so that guided ones are trained on too."""
    return msgspec.structs.replace(group, rollouts=tuple(_unmark_rollout(rollout) for rollout in group.rollouts))


def _unmark_rollout(rollout: Rollout) -> Rollout:
    turns = tuple(
        msgspec.structs.replace(turn, completion=msgspec.structs.replace(turn.completion, guided=False))
        for turn in rollout.turns
    )
    return msgspec.structs.replace(rollout, turns=turns)


def _make_step(completion: Completion) -> TokenStep:
    assert completion.tokens is not None
    return TokenStep(completion.tokens, completion.splice, completion.guided)


def retokenize(messages: Sequence[Message], tools: Sequence[ToolSpec], codec: "Codec") -> list[TokenSequence]:
    """Make rows for supervised fine-tuning from text: the replies as the tokenizer encodes them, without logprobs.

    Not exact, and never for RL: `sampled` marks what the model should imitate.
    """
    from ludus.tokens.session import TokenSession
    from ludus.tokens.views import format_thinking

    session = TokenSession(codec)
    end = next(iter(codec.tokenizer.stop_tokens), None)
    for index, message in enumerate(messages):
        if message.role != "assistant":
            continue
        prompt = session.build_prompt(messages[:index], tools)
        text = format_thinking(message) + message.content
        if message.calls:
            text = codec.parser.render(message.calls, text)
        ids = (*codec.tokenizer.encode_after(text), *(() if end is None else (end,)))
        sampled = Generation(ids=ids, logprobs=(None,) * len(ids), finish=Finish.STOP)
        session.add_reply(prompt.node, message, sampled, ended=end is not None)
    return session.build_sequences()
