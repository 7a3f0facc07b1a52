"""Engines behind HTTP: what they have in common.

The module of an engine holds its wire format as pure functions: the path, the request for a prompt of ids, and the
parsing of the reply. The rest is here: one or several equal servers with the retries, health and limits of chat models
(`ServerPool`), and two requests that are made once at the start.

All sampling parameters are sent. Engines have defaults that cut the distribution (llama.cpp: `top_k` 40, `min_p` 0.05;
vLLM and SGLang: the model's `generation_config.json`), and logprobs under such a cut are not those of the policy. So
what the user does not set is sent as neutral.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NoReturn, TypeVar

import msgspec

from ludus.encoding import to_json
from ludus.errors import ModelError
from ludus.http_client import Client, HttpError
from ludus.models.reply_pieces import PieceStream
from ludus.models.server import (
    BadReply,
    Endpoint,
    ModelServer,
    ServerFault,
    ServerSettings,
    StreamedReply,
    make_endpoints,
    mask_url,
    merge_headers,
)
from ludus.models.server_pool import ServerPool, Tell, Timing
from ludus.tokens import EngineFacts, Generation, TakeIds
from ludus.types import Finish, JsonObject, Sampling

T = TypeVar("T")

DEFAULT_REPLY = 2048
"""The longest reply when neither the user nor the engine sets a limit."""

NO_PROBABILITY = -9999.0
"""A logprob at or below this means "none": engines write it for minus infinity."""


class HttpEngine(ABC):
    """An engine on one or several servers. Subclasses implement the wire format."""

    path: str
    """The path of the requests, after the root of the server."""

    def __init__(
        self,
        settings: ServerSettings,
        *endpoints: Endpoint,
        timing: Timing = Timing(),
        tell: Tell | None = None,
    ) -> None:
        self._settings = settings
        self._endpoints = endpoints or make_endpoints(settings)
        self._servers = ServerPool(
            [self._make_server(endpoint) for endpoint in self._endpoints], settings.retry, timing, tell
        )
        self._facts: EngineFacts | None = None

    # ---- the wire format ------------------------------------------------------------------------------------------

    @abstractmethod
    def build_request(self, ids: Sequence[int], sampling: Sampling, n: int, model: str) -> JsonObject:
        """The body of a request for `n` replies. `sampling.max_tokens` is set. `sampling.extra` overrides the rest."""

    @abstractmethod
    def parse_replies(self, data: bytes) -> list[Generation]:
        """Parse the body of a response.

        Raises:
            ValueError: it is not a reply. A `ServerFault` if a retry cannot help.
        """

    @abstractmethod
    async def fetch_facts(self, client: "EngineClient") -> EngineFacts: ...

    @abstractmethod
    async def fetch_tokens(self, client: "EngineClient", text: str) -> Sequence[int] | None: ...

    # ---- the protocol ---------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self._servers.name

    async def generate(self, ids: Sequence[int], sampling: Sampling, n: int = 1) -> list[Generation]:
        data = self._write_request(ids, await self._set_limit(ids, sampling), n)

        def read(reply: bytes) -> list[Generation]:
            found = self.parse_replies(reply)
            if len(found) != n:
                raise BadReply(f"{len(found)} replies instead of {n}")
            return found

        return await self._servers.run_with_retries(lambda lane: lane.server.exchange(data, read))

    async def _set_limit(self, ids: Sequence[int], sampling: Sampling) -> Sampling:
        """Sampling with a longest reply."""
        if sampling.max_tokens is not None:
            return sampling
        return msgspec.structs.replace(sampling, max_tokens=await self._find_room(len(ids)))

    def _write_request(self, ids: Sequence[int], sampling: Sampling, n: int = 1, **more: Any) -> bytes:
        """The body of a request, without the fields that the server refuses."""
        body = self.build_request(ids, sampling, n, self._settings.name) | more
        for part in (body, body.get("sampling_params", {})):
            for name in self._settings.omit:
                part.pop(name, None)
        return to_json(body)

    async def get_facts(self) -> EngineFacts:
        if self._facts is None:
            async with EngineClient(self._settings, self._endpoints[0]) as client:
                self._facts = await self.fetch_facts(client)
        return self._facts

    async def tokenize(self, text: str) -> Sequence[int] | None:
        async with EngineClient(self._settings, self._endpoints[0]) as client:
            return await self.fetch_tokens(client, text)

    async def close(self) -> None:
        await self._servers.close()

    async def _find_room(self, prompt: int) -> int:
        context = (await self.get_facts()).context
        return DEFAULT_REPLY if context is None else max(1, context - prompt)

    def _make_server(self, endpoint: Endpoint) -> ModelServer:
        return ModelServer(
            self._settings,
            endpoint,
            url=make_root_url(endpoint) + self.path,
            headers=make_headers(endpoint),
            encode=_refuse_chat,
            parse=_refuse_chat,
        )


class StreamingHttpEngine(HttpEngine):
    """An engine that streams. Subclasses add the wire format of the stream."""

    stream_fields: ClassVar[JsonObject]
    """The fields of a request that ask for a stream."""

    @abstractmethod
    def make_stream_reader(self, take: TakeIds) -> StreamedReply[Generation]:
        """A reader for one streamed reply."""

    async def stream(
        self, ids: Sequence[int], sampling: Sampling, reply_stream: PieceStream, begin: Callable[[], TakeIds]
    ) -> Generation:
        """Sample one reply and pass it on while it is sampled."""
        data = self._write_request(ids, await self._set_limit(ids, sampling), **self.stream_fields)
        return await self._servers.run_with_retries(
            lambda lane: lane.server.exchange_stream(
                data, self.make_stream_reader(begin()), lambda reply: self.parse_replies(reply)[0], reply_stream
            )
        )


class EngineClient:
    """Makes the requests of the start. The answer is None if the server does not know the path."""

    def __init__(self, settings: ServerSettings, endpoint: Endpoint) -> None:
        self._root = make_root_url(endpoint)
        self._headers = merge_headers(make_headers(endpoint), {**settings.headers, **endpoint.headers})
        self._client = Client(timeouts=settings.timeouts, connections=1, proxy=endpoint.proxy)
        self.model = settings.name

    async def __aenter__(self) -> "EngineClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def get(self, path: str) -> Any:
        return await self._request("GET", path, b"")

    async def post(self, path: str, body: JsonObject) -> Any:
        return await self._request("POST", path, to_json(body))

    async def _request(self, method: str, path: str, body: bytes) -> Any:
        url = self._root + path
        try:
            response = await self._client.request(method, url, self._headers, body)
        except HttpError as error:
            raise ModelError(f"{error}. Is the engine running, and is base_url right?") from error
        if response.status in (404, 405, 501):
            return None
        if response.status in (401, 403):
            raise ModelError(f"{mask_url(url)}: status {response.status}: the key is not accepted", retryable=False)
        try:
            return msgspec.json.decode(response.body) if response.status == 200 else None
        except (ValueError, RecursionError):
            return None


def make_root_url(endpoint: Endpoint) -> str:
    """The address of the server, without the `/v1` that chat clients need."""
    return endpoint.base_url.rstrip("/").removesuffix("/v1").rstrip("/")


def make_headers(endpoint: Endpoint) -> dict[str, str]:
    """The headers of a request to an engine, with the key."""
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    return headers | ({"Authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {})


def _refuse_chat(*_: object) -> NoReturn:
    raise AssertionError("an engine gets no chat requests")


# ---- reading ------------------------------------------------------------------------------------------------------


def convert_or_none(value: Any, kind: type[T]) -> T | None:
    """An answer of an engine as a `kind`; None if it is something else."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return None


def parse_finish(value: Any) -> Finish:
    """The finish reason of an engine: a word, or an object with a `type`."""
    if isinstance(value, dict):
        value = value.get("type")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    known = {
        "stop": Finish.STOP,
        "eos": Finish.STOP,
        "word": Finish.STOP,
        "length": Finish.LENGTH,
        "limit": Finish.LENGTH,
    }
    return known.get(value, Finish.OTHER) if isinstance(value, str) else Finish.OTHER


def parse_logprob(value: Any) -> float | None:
    """A logprob; None if the value is no finite number."""
    if type(value) is float and NO_PROBABILITY < value < math.inf:
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and value > NO_PROBABILITY else None


def parse_logprobs(values: list[Any]) -> tuple[float | None, ...]:
    """All values as logprobs. Fast if all are ordinary numbers, as in nearly every reply."""
    if set(map(type, values)) == {float} and min(values) > NO_PROBABILITY and math.isfinite(sum(values)):
        return tuple(values)
    return tuple([parse_logprob(value) for value in values])


def make_ids_error(engine: str, fix: str) -> ServerFault:
    return ServerFault(f"{engine} returned no token ids. {fix}", retryable=False)


def make_logprobs_error(engine: str, fix: str) -> ServerFault:
    return ServerFault(f"{engine} returned no logprobs of the sampled tokens. {fix}", retryable=False)
