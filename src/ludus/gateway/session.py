"""A session: the agent of one rollout at the gateway, and the record of its requests and replies.

The record grows linearly with the conversation: an exchange contains the messages since the reply that it continues,
not the whole conversation. In token mode the replies have their exact ids (`Completion.tokens` and `splice`), numbered
like the replies. `SessionRecord.build_sequences` and `ludus.rl.rows` build rows from them.
"""

import asyncio
import time
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
from msgspec import Struct, field

from ludus.gateway.conversation import Conversations, MessageNode
from ludus.gateway.dialect import Api, ParsedRequest
from ludus.models.ledger import Budget, Ledger
from ludus.tokens.sequences import TokenSequence, TokenStep, build_sequences
from ludus.tokens.session_tree import Tree
from ludus.types import (
    Call,
    Completion,
    Failure,
    Message,
    Sampling,
    Score,
    StopReason,
    ToolResult,
    ToolSpec,
    Turn,
    Usage,
)

if TYPE_CHECKING:
    from ludus.gateway.model_calls import ModelCaller

Stop = Literal["", "budget", "context", "unusable"]


class Exchange(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One reply, and what was sent since the last one."""

    api: Api
    follows: int | None = None
    """The number of the last reply in the conversation; None if it contains no reply."""
    messages: tuple[Message, ...] = ()
    """The messages since that reply, or the whole conversation."""
    tools: tuple[ToolSpec, ...] = ()
    sampling: Sampling = Sampling()
    """The sampling that was used."""
    requested_sampling: Sampling | None = field(default=None, name="asked")
    """The sampling that the agent requested, if it differs."""
    ignored: tuple[str, ...] = ()
    """What the agent requested and did not get."""
    completion: Completion
    seconds: float = 0.0
    """From the request to the reply."""
    delivered: bool = True
    """False: the agent had closed the connection before the reply. If it read a stream, the sample was ended then, and
    this is the beginning of a reply."""


class SessionRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The record of a session."""

    name: str
    model: str
    exchanges: tuple[Exchange, ...] = ()
    """In the order of the replies."""
    stop: Stop = ""
    """The limit that the agent reached: the session's budget, or the model's context. It may have continued. Or
    `unusable`: no request to the model can succeed, as `failure` says."""
    failure: Failure | None = None
    """The last failure on the side of Ludus or the model. Such a rollout is not used as training data."""
    failed: int = 0
    """Requests without a reply."""
    requests: int = 0
    exact: bool = False
    """Whether the replies have the sampled token ids."""
    started: float = 0.0
    """Seconds since 1970."""
    seconds: float = 0.0
    task: str = ""
    """The id of the task that the client named, if it named one apart from the session's name."""
    score: Score | None = None
    """The reward that was posted for the session, if it came before the session ended."""

    @property
    def completions(self) -> tuple[Completion, ...]:
        return tuple(exchange.completion for exchange in self.exchanges)

    @property
    def usage(self) -> Usage:
        return sum((exchange.completion.usage for exchange in self.exchanges), Usage())

    @property
    def opening(self) -> tuple[Message, ...]:
        """The messages of the first request."""
        return self.exchanges[0].messages if self.exchanges else ()

    def make_turns(self) -> tuple[Turn, ...]:
        """The replies as turns, each with the messages that the agent sent next: results of its calls, and others."""
        sent: dict[int, tuple[Message, ...]] = {}
        for exchange in self.exchanges:
            if exchange.follows is not None:
                sent[exchange.follows] = exchange.messages
        return tuple(_make_turn(exchange, sent.get(number, ())) for number, exchange in enumerate(self.exchanges))

    def build_sequences(self) -> list[TokenSequence]:
        """The token sequences of the replies, in token mode.

        Raises:
            ValueError: the record is not exact.
        """
        steps: list[TokenStep] = []
        for number, completion in enumerate(self.completions):
            if completion.tokens is None:
                raise ValueError(f"session '{self.name}': reply {number} was not sampled in token mode")
            steps.append(TokenStep(completion.tokens, completion.splice, completion.guided))
        return build_sequences(steps)


def _make_turn(exchange: Exchange, sent: tuple[Message, ...]) -> Turn:
    completion = exchange.completion
    calls = {call.id: call for call in completion.message.calls}
    answers = {message.call_id: message for message in sent if message.role == "tool"}
    return Turn(
        completion,
        tuple(_make_result(call, answers[name]) for name, call in calls.items() if name in answers),
        seconds=exchange.seconds,
        notices=tuple(message for message in sent if message.role != "tool" or message.call_id not in calls),
    )


def _make_result(call: Call, answer: Message) -> ToolResult:
    return ToolResult(call, answer.content, images=tuple(image.url for image in answer.images))


class RecordedReply(NamedTuple):
    """A reply that is in the record."""

    number: int
    node: MessageNode
    completion: Completion
    logprobs: list[Any] | None = None
    """The logprobs that the client asked for. They are no part of the record."""


class GatewaySession:
    """An open session. `Gateway.open` makes it, `Gateway.close` ends it."""

    def __init__(
        self,
        secret: str,
        name: str,
        root: str,
        *,
        sampling: Sampling | None,
        budget: Budget | None,
        caller: "ModelCaller",
    ) -> None:
        self.secret = secret
        self.name = name
        self.sampling = sampling
        """The sampling of every reply, in place of the agent's; None: the agent's sampling is used."""
        self.ledger = None if budget is None else Ledger(budget)
        self.caller = caller
        """Calls the model for this session."""
        self.tree: Tree | None = caller.make_tree()
        """The exact ids, when the model is in token mode."""
        self.conversations = Conversations()
        self.answers: dict[str, MessageNode] = {}
        """The node of the first reply of each answer, by the answer's id."""
        self.last_used = time.monotonic()
        """Time of the last request or reply."""
        self.tasks: set[asyncio.Task[None]] = set()
        """Running requests."""
        self._root = root
        self._started = time.time()
        self._clock = time.monotonic()
        self._exchanges: list[Exchange] = []
        self._stop: Stop = ""
        self._failure: Failure | None = None
        self._failed = 0
        self.requests = 0
        self.task = ""
        self.score: Score | None = None

    def __repr__(self) -> str:
        return f"GatewaySession({self.name!r})"

    # ---- addresses ------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """The base URL for OpenAI's clients."""
        return f"{self.make_base_url(self._root)}/v1"

    @property
    def anthropic_url(self) -> str:
        """The base URL for Anthropic's clients."""
        return self.make_base_url(self._root)

    @property
    def api_key(self) -> str:
        """The key for a client whose base URL does not contain the secret."""
        return self.secret

    def make_base_url(self, root: str) -> str:
        """The session's base URL for another root, such as `http://127.0.0.1:9000` in a slot."""
        return f"{root.rstrip('/')}/s/{self.secret}"

    # ---- events ---------------------------------------------------------------------------------------------------

    def note_request(self) -> None:
        self.requests += 1
        self.last_used = time.monotonic()

    def record_reply(
        self,
        api: Api,
        at: MessageNode,
        request: ParsedRequest,
        sampling: Sampling,
        completion: Completion,
        seconds: float,
        *,
        ignored: tuple[str, ...] = (),
        delivered: bool = True,
        logprobs: list[Any] | None = None,
    ) -> "RecordedReply":
        """Add a reply to the record."""
        number = len(self._exchanges)
        follows, messages = at.split_at_reply()
        self._exchanges.append(
            Exchange(
                api=api,
                follows=follows,
                messages=messages,
                tools=tuple(request.tools),
                sampling=sampling,
                requested_sampling=None if sampling == request.sampling else request.sampling,
                ignored=request.ignored + ignored,
                completion=completion,
                seconds=seconds,
                delivered=delivered,
            )
        )
        self.last_used = time.monotonic()
        node = self.conversations.add_reply(at, completion.message, number)
        return RecordedReply(number, node, completion, logprobs)

    def mark_undelivered(self, number: int) -> None:
        """Mark a reply that the agent did not receive."""
        self._exchanges[number] = msgspec.structs.replace(self._exchanges[number], delivered=False)

    def note_stop(self, why: Stop) -> None:
        self._failed += 1
        self._stop = why

    def note_refusal(self) -> None:
        self._failed += 1

    def note_failure(self, failure: Failure) -> None:
        self._failed += 1
        self._failure = failure

    def mark_unusable(self) -> None:
        """Note that no further request to the model can succeed."""
        self._stop = "unusable"

    @property
    def replies(self) -> int:
        """The number of replies so far."""
        return len(self._exchanges)

    def make_record(self) -> SessionRecord:
        """The record so far."""
        steps = () if self.tree is None else self.tree.steps
        sampled = [exchange.completion.tokens for exchange in self._exchanges]
        in_step = len(steps) == len(sampled) and all(
            step.tokens is own for step, own in zip(steps, sampled, strict=True)
        )
        return SessionRecord(
            name=self.name,
            model=self.caller.name,
            exchanges=tuple(self._exchanges),
            stop=self._stop,
            failure=self._failure,
            failed=self._failed,
            requests=self.requests,
            exact=self.tree is not None and in_step,
            started=self._started,
            seconds=time.monotonic() - self._clock,
            task=self.task,
            score=self.score,
        )


def make_turns(record: SessionRecord, stop: StopReason) -> tuple[Turn, ...]:
    """The replies as turns, each with the messages before the next reply. The last turn has the stop reason."""
    turns = list(record.make_turns())
    followed: set[int] = set()
    for number, exchange in enumerate(record.exchanges):
        # A separate conversation, such as a sub-agent's, follows no reply. It is put after the reply before it.
        before = number - 1 if exchange.follows is None else exchange.follows
        if before >= 0 and before not in followed:
            followed.add(before)
            notices = tuple(message for message in exchange.messages if message.role != "tool")
            turns[before] = msgspec.structs.replace(turns[before], notices=notices)
    if turns:
        turns[-1] = msgspec.structs.replace(turns[-1], stop=stop)
    return tuple(turns)
