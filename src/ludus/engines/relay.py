"""A model that lives in the driver, asked from the nodes.

    node: RelayModel.complete ──> report ──> driver: the policy's own model ──> word ──> node

The policy of `rl` is the trainer's: its weights, or the names of its versions, exist in the driver only. Everything
else of a rollout, above all its tools and its verifier, runs on the node. A model in token mode finds the exact ids of
a conversation by its message objects (`ludus.tokens.session_index`), which do not travel. So each reply has a handle:
the node sends it in place of the reply, and the driver holds the object until the node lets go of it.
"""

import itertools
import pickle
import weakref
from collections.abc import Awaitable, Callable, Hashable, Sequence

import msgspec
from msgspec import Struct

from ludus.activity import enter_phase
from ludus.encoding import to_json
from ludus.engines.wire import StopCause, describe_stop, make_error
from ludus.errors import ModelError
from ludus.models import Model
from ludus.types import Completion, Message, Sampling, ToolSpec


class RelayRequest(Struct, frozen=True):
    """A call of a model. A message that the driver made is its handle."""

    model: str
    messages: tuple[Message | int, ...]
    tools: tuple[ToolSpec, ...]
    sampling: Sampling


class RelayReply(Struct, frozen=True):
    """What the model said, and the handle of its message; or why it said nothing."""

    completion: bytes = b""
    """As JSON: a pickled value that equals a default is not the default itself, and would be written to records."""
    handle: int = 0
    error: StopCause | None = None


Send = Callable[[bytes], Awaitable[bytes]]
"""Sends a `RelayRequest` to the driver, and returns its `RelayReply`."""


class RelayLine:
    """The node's side: the handles of the messages that the driver holds."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._handles: dict[int, tuple[weakref.ref[Message], int]] = {}
        self.dropped: list[int] = []
        """Handles that are not needed any more."""

    def open_model(self, name: str) -> "RelayModel":
        return RelayModel(name, self)

    async def ask(self, request: RelayRequest) -> Completion:
        reply: RelayReply = pickle.loads(await self._send(pickle.dumps(request)))
        if reply.error is not None:
            raise make_error(reply.error, "") if reply.error.kind else RuntimeError(reply.error.message)
        completion = msgspec.json.decode(reply.completion, type=Completion)
        self._keep(completion.message, reply.handle)
        return completion

    def replace_known(self, messages: Sequence[Message]) -> tuple[Message | int, ...]:
        """The messages, with a handle in place of each that the driver holds."""
        known = (self._handles.get(id(message)) for message in messages)
        pairs = zip(messages, known, strict=True)
        return tuple(entry[1] if entry and entry[0]() is message else message for message, entry in pairs)

    def _keep(self, message: Message, handle: int) -> None:
        key = id(message)

        def drop(_: object) -> None:
            self._handles.pop(key, None)
            self.dropped.append(handle)

        self._handles[key] = (weakref.ref(message, drop), handle)


class RelayModel:
    """A model of the driver, on a node. Its calls are booked by the driver."""

    def __init__(self, name: str, line: RelayLine) -> None:
        self._name = name
        self._line = line

    @property
    def name(self) -> str:
        return self._name

    async def complete(self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Completion:
        with enter_phase("model"):
            known = self._line.replace_known(messages)
            return await self._line.ask(RelayRequest(self._name, known, tuple(tools), sampling))

    async def close(self) -> None: ...


class RelayDesk:
    """The driver's side: answers nodes with the models of this process."""

    def __init__(self, find_model: Callable[[str], Model | None]) -> None:
        self._find_model = find_model
        self._held: dict[Hashable, dict[int, Message]] = {}
        self._numbers = itertools.count(1)

    async def answer(self, node: Hashable, data: bytes) -> bytes:
        """The reply to a request of a node."""
        request: RelayRequest = pickle.loads(data)
        try:
            return pickle.dumps(await self._complete(node, request))
        except Exception as error:  # also a bug of the model: that rollout's failure, as in one process
            return pickle.dumps(RelayReply(error=describe_stop(error)))

    async def _complete(self, node: Hashable, request: RelayRequest) -> RelayReply:
        model, held = self._find_model(request.model), self._held.setdefault(node, {})
        if model is None:
            raise ModelError(f"the model {request.model} is not in use any more", retryable=False)
        messages = [held[each] if isinstance(each, int) else each for each in request.messages]
        completion = await model.complete(messages, request.tools, request.sampling)
        handle = next(self._numbers)
        held[handle] = completion.message
        return RelayReply(to_json(completion), handle)

    def drop(self, node: Hashable, handles: Sequence[int]) -> None:
        """A node does not need these messages any more."""
        for handle in handles:
            self._held.get(node, {}).pop(handle, None)

    def lose(self, node: Hashable) -> None:
        self._held.pop(node, None)
