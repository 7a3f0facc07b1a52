"""A session: one rollout's agent at the gateway, and the record of what it asked and got.

The record is linear in what was said: an exchange holds the messages that came since the reply it goes on from, not
the conversation again. In token mode the replies carry their exact ids (`Completion.tokens` and `splice`), numbered as
the replies are, so `Record.sequences` and `ludus.rl.rows.rows` can put them together.
"""

import asyncio
import time
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec
from msgspec import Struct

from ludus.gateway.conversation import Conversations, Said
from ludus.gateway.dialect import Api, Asked
from ludus.models.ledger import Budget, Ledger
from ludus.tokens.sequences import TokenStep, TokenSequence, build_sequences
from ludus.tokens.session_tree import Tree
from ludus.types import (
    Completion,
    Failure,
    Message,
    Sampling,
    ToolResult,
    ToolSpec,
    Turn,
    Usage,
)

if TYPE_CHECKING:
    from ludus.gateway.model_calls import Asker

Stop = Literal["", "budget", "context"]


class Exchange(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One reply, and what was asked for it."""

    api: Api
    follows: int | None = None
    """The last reply in the conversation, by its number; None if there is none of ours in it."""
    messages: tuple[Message, ...] = ()
    """What came since that reply, or the whole conversation."""
    tools: tuple[ToolSpec, ...] = ()
    sampling: Sampling = Sampling()
    """How it was drawn."""
    asked: Sampling | None = None
    """How the agent wanted it drawn, where that differs."""
    ignored: tuple[str, ...] = ()
    """What the agent asked for and did not get."""
    completion: Completion
    seconds: float = 0.0
    """From the request to the reply."""
    delivered: bool = True
    """False: the agent had gone before the reply came."""


class Record(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What happened in a session."""

    name: str
    model: str
    exchanges: tuple[Exchange, ...] = ()
    """In the order of the replies."""
    stop: Stop = ""
    """The limit that the agent ran into: the session's budget, or the model's context. It may have gone on after."""
    failure: Failure | None = None
    """The last thing that broke on our side, if something did: such a rollout is no training data."""
    failed: int = 0
    """Requests that got no reply."""
    requests: int = 0
    exact: bool = False
    """Whether the replies carry the ids that were sampled."""
    started: float = 0.0
    """Seconds since 1970."""
    seconds: float = 0.0

    @property
    def completions(self) -> tuple[Completion, ...]:
        return tuple(exchange.completion for exchange in self.exchanges)

    @property
    def usage(self) -> Usage:
        return sum((exchange.completion.usage for exchange in self.exchanges), Usage())

    @property
    def opening(self) -> tuple[Message, ...]:
        """What the first request began with."""
        return self.exchanges[0].messages if self.exchanges else ()

    def turns(self) -> tuple[Turn, ...]:
        """The replies as turns, each with what the agent told the model next: results of its calls, and the rest."""
        told: dict[int, tuple[Message, ...]] = {}
        for exchange in self.exchanges:
            if exchange.follows is not None:
                told[exchange.follows] = exchange.messages
        return tuple(_turn(exchange, told.get(number, ())) for number, exchange in enumerate(self.exchanges))

    def sequences(self) -> list[TokenSequence]:
        """The rows that the replies come to, in token mode.

        Raises:
            ValueError: the record is not exact.
        """
        steps: list[TokenStep] = []
        for number, completion in enumerate(self.completions):
            if completion.tokens is None:
                raise ValueError(f"session '{self.name}': reply {number} was not drawn in token mode")
            steps.append(TokenStep(completion.tokens, completion.splice))
        return build_sequences(steps)


def _turn(exchange: Exchange, told: tuple[Message, ...]) -> Turn:
    completion = exchange.completion
    calls = {call.id: call for call in completion.message.calls}
    answers = {message.call_id: message.content for message in told if message.role == "tool"}
    return Turn(
        completion,
        tuple(ToolResult(call, answers[name]) for name, call in calls.items() if name in answers),
        seconds=exchange.seconds,
        notices=tuple(message for message in told if message.role != "tool" or message.call_id not in calls),
    )


class Noted(NamedTuple):
    """A reply in the record."""

    number: int
    said: Said
    completion: Completion


class Session:
    """A live session. Made by `Gateway.open`, ended by `Gateway.close`."""

    def __init__(
        self,
        secret: str,
        name: str,
        root: str,
        *,
        sampling: Sampling | None,
        budget: Budget | None,
        asker: "Asker",
    ) -> None:
        self.secret = secret
        self.name = name
        self.sampling = sampling
        """How every reply is drawn, whatever the agent asks for; None: as the agent asks."""
        self.ledger = None if budget is None else Ledger(budget)
        self.asker = asker
        """How its model is asked."""
        self.tree: Tree | None = asker.begin()
        """The exact ids, when the model is in token mode."""
        self.conversations = Conversations()
        self.answers: dict[str, Said] = {}
        """Where the conversation stands behind an answer, by its id."""
        self.used = time.monotonic()
        """When it was last used."""
        self.tasks: set[asyncio.Task[None]] = set()
        """Requests that are being answered."""
        self._root = root
        self._started = time.time()
        self._clock = time.monotonic()
        self._exchanges: list[Exchange] = []
        self._stop: Stop = ""
        self._failure: Failure | None = None
        self._failed = 0
        self.requests = 0

    def __repr__(self) -> str:
        return f"Session({self.name!r})"

    # ---- where it is ----------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """What OpenAI's clients want as base URL."""
        return f"{self.base(self._root)}/v1"

    @property
    def anthropic_url(self) -> str:
        """What Anthropic's clients want as base URL."""
        return self.base(self._root)

    @property
    def api_key(self) -> str:
        """Enough for a client that is pointed at the gateway without the secret in the address."""
        return self.secret

    def base(self, root: str) -> str:
        """The base of the session's addresses as seen from elsewhere, such as `http://127.0.0.1:9000` in a slot."""
        return f"{root.rstrip('/')}/s/{self.secret}"

    # ---- what happened --------------------------------------------------------------------------------------------

    def begun(self) -> None:
        self.requests += 1
        self.used = time.monotonic()

    def replied(
        self,
        api: Api,
        at: Said,
        asked: Asked,
        sampling: Sampling,
        completion: Completion,
        seconds: float,
    ) -> "Noted":
        """Note a reply."""
        number = len(self._exchanges)
        follows, messages = at.since_reply()
        self._exchanges.append(
            Exchange(
                api=api,
                follows=follows,
                messages=messages,
                tools=tuple(asked.tools),
                sampling=sampling,
                asked=None if sampling == asked.sampling else asked.sampling,
                ignored=asked.ignored,
                completion=completion,
                seconds=seconds,
            )
        )
        self.used = time.monotonic()
        return Noted(number, self.conversations.add_reply(at, completion.message, number), completion)

    def lost(self, number: int) -> None:
        """The agent had gone when the reply came."""
        self._exchanges[number] = msgspec.structs.replace(self._exchanges[number], delivered=False)

    def stopped(self, why: Stop) -> None:
        self._failed += 1
        self._stop = why

    def refused(self) -> None:
        self._failed += 1

    def failed(self, failure: Failure) -> None:
        self._failed += 1
        self._failure = failure

    @property
    def replies(self) -> int:
        """How many there are so far."""
        return len(self._exchanges)

    def record(self) -> Record:
        """What happened so far."""
        steps = () if self.tree is None else self.tree.steps
        drawn = [exchange.completion.tokens for exchange in self._exchanges]
        in_step = len(steps) == len(drawn) and all(step.tokens is own for step, own in zip(steps, drawn, strict=True))
        return Record(
            name=self.name,
            model=self.asker.name,
            exchanges=tuple(self._exchanges),
            stop=self._stop,
            failure=self._failure,
            failed=self._failed,
            requests=self.requests,
            exact=self.tree is not None and in_step,
            started=self._started,
            seconds=time.monotonic() - self._clock,
        )
