"""`TokenModel`: an engine and a codec as a `Model`.

The loop calls it like any other model. The replies in a conversation lead to its session (`session_index`), for as long
as the caller holds the message objects. So a session ends with the messages of its rollout, and nothing has to be
closed. Messages that were copied or sent through JSON lead nowhere. A caller that does this holds a `TokenSession`
itself and calls `sample_reply`, as the gateway does.

Before the first call the engine is compared with the tokenizer, once: both must encode a probe text to the same ids.
The template must be able to show what is needed. A mismatch is a `ConfigError`, not a bad rollout.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from ludus.images import refuse_images
from ludus.models.reply_pieces import PieceStream
from ludus.models.server import Price, make_usage
from ludus.tokens import Engine, Generation, StreamingEngine, TakeIds
from ludus.tokens.codec import Codec
from ludus.tokens.guides import add_guide, make_guide, mark_guided
from ludus.tokens.probe import TemplateFinding, check_engine, probe_template, raise_fatal
from ludus.tokens.reply_decoder import ReplyDecoder
from ludus.tokens.same_message import same_message
from ludus.tokens.sequences import find_own_ids
from ludus.tokens.session import TokenSession, check_echo, check_text
from ludus.tokens.session_index import SessionIndex
from ludus.tokens.session_tree import check_columns
from ludus.types import Completion, Message, Sampling, ToolSpec


class TokenModel:
    """A model in token mode.

    >>> engine = VllmEngine(ServerSettings(base_url="http://127.0.0.1:8000/v1", name="qwen"))
    >>> model = TokenModel(engine, Codec.open("Qwen/Qwen3-8B", parser="hermes"))
    """

    def __init__(self, engine: Engine, codec: Codec, *, name: str = "", price: Price = Price()) -> None:
        self.engine = engine
        self.codec = codec
        self.price = price
        self.findings: tuple[TemplateFinding, ...] = probe_template(codec)
        """Findings about the template and, after the start, about the engine."""
        self._name = name or engine.name
        self._streaming = engine if isinstance(engine, StreamingEngine) else None
        self._sessions = SessionIndex[TokenSession]()
        self._started = False
        self._starting = asyncio.Lock()

    @property
    def name(self) -> str:
        return self._name

    async def complete(self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Completion:
        known, own = self._sessions.find(messages)
        session = known or self.make_tree()
        completion = await self.sample_reply(session, own, tools, sampling)
        message = self._sessions.register_copy(completion.message, session)
        return msgspec.structs.replace(completion, message=message)

    def adopt_reply(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], before: Sequence[Completion], reply: Completion
    ) -> Completion | None:
        """Add a recorded reply to a conversation, with its exact ids. The prompt is encoded as for a new reply."""
        own_ids = find_own_ids(reply)
        if own_ids is None or max(own_ids.ids) >= self.codec.tokenizer.size:
            return None
        known, own = self._sessions.find(messages)
        session = known or self.make_tree()
        completion = session.add_completion(session.build_prompt(own, tools), own_ids, model=reply.model)
        if not same_message(completion.message, reply.message):
            return None
        message = self._sessions.register_copy(completion.message, session)
        return msgspec.structs.replace(completion, message=message, finish=reply.finish, usage=reply.usage)

    def make_tree(self) -> TokenSession:
        return TokenSession(self.codec)

    async def sample_reply(
        self,
        tree: TokenSession,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        sampling: Sampling,
        reply_stream: PieceStream | None = None,
    ) -> Completion:
        (completion,) = await self.sample(tree, messages, tools, sampling, reply_stream=reply_stream)
        return completion

    async def sample(
        self,
        session: TokenSession,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        sampling: Sampling,
        n: int = 1,
        reply_stream: PieceStream | None = None,
    ) -> list[Completion]:
        """Sample `n` replies to a conversation of a session. With a `reply_stream`, one reply is passed on as it is
        sampled."""
        await self.start()
        raise_fatal(self.findings, tools=bool(tools))
        refuse_images(messages, "a model in token mode")
        prompt = session.build_prompt(messages, tools)
        if sampling.tool_choice == "none":
            prompt = prompt._replace(tools=())
        guide = make_guide(sampling, prompt.tools, self.codec.parser, opens_thought=prompt.opens_thought)
        if guide is not None:
            sampling = add_guide(self.engine, guide, sampling)
        if reply_stream is None:
            generated = await self.engine.generate(prompt.ids, sampling, n)
        else:
            begin = partial(
                ReplyDecoder,
                self.codec,
                prompt.tools,
                stop=sampling.stop,
                thinking=prompt.opens_thought,
                first=prompt.node.calls,
            )
            generated = [await self.generate_stream(prompt.ids, sampling, reply_stream, begin)]
        completions = [
            session.add_completion(prompt, g, stop=sampling.stop, model=self._name, price=self.price) for g in generated
        ]
        return completions if guide is None else [mark_guided(each, guide) for each in completions]

    async def sample_continuation(
        self,
        tree: TokenSession,
        prompt: str | Sequence[int],
        sampling: Sampling,
        reply_stream: PieceStream | None = None,
    ) -> Completion:
        """Sample the continuation of a raw prompt. In the tree it follows a node that has ids but no messages."""
        await self.start()
        codec = self.codec
        ids = codec.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        if reply_stream is None:
            (generated,) = await self.engine.generate(ids, sampling)
        else:
            begin = partial(ReplyDecoder, codec, stop=sampling.stop, raw=True)
            generated = await self.generate_stream(ids, sampling, reply_stream, begin)
        check_echo(ids, generated)
        check_columns(generated)
        text = codec.decode_reply(generated.ids)
        check_text(text, generated, codec.tokenizer.stop_tokens.values())
        given = tree.add_given(tree.root, (), ids, "", ())
        message = codec.parse_reply(text, (), stop=sampling.stop)
        _, step = tree.add_reply(given, message, generated, ended=codec.ends_turn(generated.ids))
        usage = make_usage(self.price, len(ids), len(generated.ids), generated.cached_tokens)
        return Completion(message, generated.finish, usage, self.name, step.tokens, step.splice)

    async def generate_stream(
        self, ids: Sequence[int], sampling: Sampling, reply_stream: PieceStream, begin: Callable[[], TakeIds]
    ) -> Generation:
        """Sample one reply and pass it on, at once or, if the engine has no streams, when it is complete."""
        if self._streaming is not None:
            return await self._streaming.stream(ids, sampling, reply_stream, begin)
        (generated,) = await self.engine.generate(ids, sampling)
        return generated

    async def start(self) -> None:
        """Compare the engine with the tokenizer. Done once.

        Raises:
            ConfigError: they belong to different models.
            ModelError: the engine does not answer.
        """
        if self._started:
            return
        async with self._starting:
            if not self._started:
                self.findings += await check_engine(self.engine, self.codec)
                self._started = True

    async def close(self) -> None:
        await self.engine.close()
