"""One model server: one attempt to get a `Completion` for a conversation. It raises `ServerFault` if that fails.

A dialect (`openai`, `anthropic`) is two pure functions, `encode` and `parse`. Everything else is here and the same for
all servers: the request, what a status means, and the error text. `server_pool` decides about retries from the fields
of the fault.

Every error text names the URL and the status, quotes the server's message or the first 200 characters of the body, and
says what to check. The key never appears in it, even if the server echoes it.
"""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from time import time
from typing import Any, ClassVar, Literal, Protocol, TypeVar, runtime_checkable

import msgspec
from msgspec import Struct, field

from ludus.errors import ModelError
from ludus.http_client import (
    Client,
    ClientClosed,
    ConnectFailed,
    HttpError,
    NotTrusted,
    Response,
    TimedOut,
    Timeouts,
    get_shared_budget,
    read_retry_after,
)
from ludus.models.event_stream import DONE, EventReader
from ludus.models.reply_pieces import Piece, PieceStream
from ludus.settings import Settings
from ludus.types import Completion, Count, Message, Positive, Sampling, ToolSpec, Usage, Whole

Encode = Callable[[Sequence[Message], Sequence[ToolSpec], Sampling], bytes]
Parse = Callable[[bytes], Completion]
T = TypeVar("T")
Sampled = TypeVar("Sampled", covariant=True)
Streaming = tuple[Encode, Callable[[PieceStream], "StreamedReply[Completion]"]]
"""How to write the request of a streamed reply, and how to read the reply."""


class Price(Settings, frozen=True, omit_defaults=True):
    """Dollars per million tokens. A budget in dollars needs it."""

    prompt: float | None = None
    """Tokens that are sent; null: not known, 0: free."""
    completion: float | None = None
    """Tokens of the reply; null: not known, 0: free."""
    cached: float | None = None
    """Prompt tokens read from the server's cache; null: as `prompt`."""
    written: float | None = None
    """Prompt tokens written to the server's cache (Anthropic); null: as `prompt`."""
    reported: bool = False
    """The server reports what each reply costs, as some do; it is counted where `prompt` and `completion` are not
    given."""

    @property
    def is_known(self) -> bool:
        """Whether the cost of a call can be counted."""
        return self.reported or self.prompt is not None or self.completion is not None

    def compute_cost(self, prompt: int, completion: int, cached: int = 0, written: int = 0) -> float:
        """The cost of the tokens in dollars. `cached` and `written` are parts of `prompt`."""
        each = self.prompt or 0.0
        plain = (prompt - cached - written) * each
        read = cached * (each if self.cached is None else self.cached)
        write = written * (each if self.written is None else self.written)
        return (plain + read + write + completion * (self.completion or 0.0)) / 1_000_000


@runtime_checkable
class PricedModel(Protocol):
    """A model that names its price, for estimates."""

    @property
    def price(self) -> Price: ...


class Retry(Settings, frozen=True, omit_defaults=True):
    """How often and how soon a request is retried. Times are in seconds."""

    retries: Whole = 6
    """Attempts after the first."""
    first: Positive = 0.5
    """The longest wait before the first retry; it doubles each time."""
    longest: Positive = 30.0
    """The longest wait between two attempts."""
    longest_asked: Positive = 120.0
    """A `Retry-After` beyond this is cut to it."""
    failures: Count = 3
    """Failures in a row after which a server is set aside."""
    patience: Positive = 60.0
    """How long all servers may be down before the run stops. It can be resumed."""
    first_patience: Positive = 20.0
    """The same before any server has answered for the first time; from then on every request fails at once."""


class ServerSettings(Settings, frozen=True):
    """Settings that all kinds of model servers share."""

    base_url: str = ""
    """The server's address."""
    name: str = ""
    """The model's name as the server knows it."""
    api_key_var: str = ""
    """The NAME of the environment variable that holds the key; empty for a server that needs none."""
    servers: tuple[str, ...] = ()
    """Addresses of further servers of the same model; a request goes to the least loaded healthy one."""
    headers: dict[str, str] = field(default_factory=dict[str, str])
    """Sent with every request. They are recorded: no secrets here."""
    header_vars: dict[str, str] = field(default_factory=dict[str, str])
    """Headers whose values are secret: header → NAME of the environment variable."""
    omit: tuple[str, ...] = ()
    """Request fields that the server refuses, such as `seed` or `temperature`."""
    timeouts: Timeouts = Timeouts()
    """Time limits of one request, in seconds."""
    retry: Retry = Retry()
    """How often and how soon a request is repeated after a connection error, a 429 or a 5xx."""
    concurrency: Count = 256
    """Requests under way at once, per server."""
    requests_per_minute: Positive | None = None
    """Rate limit, per server; null for none."""
    tokens_per_minute: Positive | None = None
    """Rate limit, per server; null for none."""
    price: Price = Price()
    """Dollars per million tokens, for the cost in reports and for `budget.dollars`."""
    proxy: str = ""
    """Address of an HTTP proxy; empty: as HTTPS_PROXY, HTTP_PROXY and NO_PROXY say; `none`: no proxy."""

    may_change: ClassVar[tuple[str, ...]] = (
        "servers", "timeouts", "retry", "concurrency", "proxy", "api_key_var", "price", "base_url",
        "requests_per_minute", "tokens_per_minute",
    )  # fmt: skip

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of all servers of this model."""
        return tuple(address for address in (self.base_url, *self.servers) if address)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r}, base_url={mask_url(self.base_url)!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("name", self.name), ("base_url", mask_url(self.base_url))]


class Endpoint(Struct, frozen=True):
    """One server as it is reached: its address, and the secrets and the proxy for it.

    Settings name secrets, an endpoint holds them. It is never recorded, and its text form shows the address only.
    """

    base_url: str
    api_key: str = ""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Headers with secret values. They replace headers of the settings with the same name."""
    proxy: str = ""
    response_bytes: int = 64 * 1024 * 1024
    """The largest response that is read."""

    def __repr__(self) -> str:
        return f"Endpoint({mask_url(self.base_url)!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("base_url", mask_url(self.base_url))]


def make_endpoints(settings: ServerSettings) -> tuple[Endpoint, ...]:
    """One endpoint per address of the settings, without key and proxy."""
    return tuple(Endpoint(address) for address in settings.addresses)


Permanent = Literal["no", "unless_answered", "yes"]
"""Whether all other requests would fail as this one did, until the user acts. `unless_answered`: only if the server has
not yet given any reply, because the fault may also be of this request alone."""


class ServerFault(ModelError):
    """One attempt failed."""

    def __init__(
        self,
        message: str,
        *,
        retryable: bool,
        down: bool = False,
        retry_after: float | None = None,
        too_long: bool = False,
        permanent: Permanent = "no",
        brief: str = "",
    ) -> None:
        super().__init__(message, retryable=retryable)
        self.permanent: Permanent = permanent
        self.brief = brief or message
        """The URL and the reason in a few words."""
        self.too_long = too_long
        self.seen = False
        """Whether somebody has read the beginning of the reply. Another attempt would be another reply."""
        self.down = down
        """Whether the server looks unhealthy: unreachable, broken, or sending nonsense."""
        self.retry_after = retry_after
        """Seconds to wait, as the server asked (`Retry-After`)."""


class BadReply(ValueError):
    """A body that is not a completion. `status` is the error status that the body reports, if there is one."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class StreamedReply(Protocol[Sampled]):
    """Reads one reply from the events of a stream."""

    @property
    def has_sampled(self) -> bool:
        """Whether there is anything of the reply yet."""
        ...

    def take(self, event: bytes) -> list[Piece]:
        """Read the value of one event. Returns what is certain now.

        Raises:
            ValueError: it is not a part of a reply.
        """
        ...

    def finish(self, *, cut: bool = False) -> Sampled:
        """The whole reply. `cut`: there is no end, because nobody wants more.

        Raises:
            ValueError: the reply has no end.
        """
        ...


class _EventFeeder:
    """Passes the events of a response to a parser, and their pieces to the `PieceStream`."""

    def __init__(self, reader: StreamedReply[Any], reply_stream: PieceStream) -> None:
        self._reader = reader
        self._reply_stream = reply_stream
        self._events = EventReader()
        self._error: Exception | None = None
        self.has_events = False
        self.last = b""
        """The last event that was read."""

    def feed(self, data: bytes) -> None:
        self._take(self._events.feed(data))

    def finish(self) -> Any:
        self._take(self._events.finish())
        if self._error is not None:
            raise self._error
        return self._reader.finish()

    def _take(self, events: Sequence[bytes]) -> None:
        self.has_events = True
        pieces: list[Piece] = []
        for event in events:
            if self._error is not None or event == DONE:
                break
            self.last = event
            try:
                pieces += _parse_body(self._reader.take, event)
            except (ValueError, RecursionError) as error:
                self._error = error
        self._reply_stream.emit(pieces)


class ModelServer:
    """A server that speaks a dialect."""

    def __init__(
        self,
        settings: ServerSettings,
        endpoint: Endpoint,
        *,
        url: str,
        headers: Mapping[str, str],
        encode: Encode,
        parse: Parse,
        streaming: Streaming | None = None,
    ) -> None:
        """`streaming`: how replies are asked for and read as a stream; None if the dialect has no streams."""
        self.settings = settings
        self.endpoint = endpoint
        self._url = url
        self._shown = mask_url(url)
        self._headers = merge_headers(headers, {**settings.headers, **endpoint.headers})
        self._encode = encode
        self._parse = parse
        self._streaming = streaming
        self._client = Client(
            timeouts=settings.timeouts,
            connections=settings.concurrency,
            response_bytes=endpoint.response_bytes,
            proxy=endpoint.proxy,
            budget=get_shared_budget,
        )

    @property
    def display_url(self) -> str:
        """The URL for messages, without secrets."""
        return self._shown

    async def attempt(self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Completion:
        """Send one request.

        Raises:
            ServerFault: there was no completion.
        """
        return await self.exchange(self._write(self._encode, messages, tools, sampling), self._parse)

    async def attempt_stream(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling, reply_stream: PieceStream
    ) -> Completion:
        """Send one request, and pass the reply on while it comes. A server that does not stream is asked as usual.

        Raises:
            ServerFault: there was no completion.
        """
        if self._streaming is None:
            return await self.attempt(messages, tools, sampling)
        encode, make_reader = self._streaming
        body = self._write(encode, messages, tools, sampling)
        return await self.exchange_stream(body, make_reader(reply_stream), self._parse, reply_stream)

    def _write(
        self, encode: Encode, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling
    ) -> bytes:
        try:
            return encode(messages, tools, sampling)
        except (ValueError, TypeError, RecursionError) as error:  # messages contain foreign values
            raise ServerFault(f"the request cannot be written as JSON: {error}", retryable=False) from error

    async def exchange(self, body: bytes, parse: Callable[[bytes], T]) -> T:
        """Send a body once and parse the response.

        Raises:
            ServerFault: there was no response that `parse` could read.
        """
        return self._read_whole(await self._send(body), parse)

    async def exchange_stream(
        self, body: bytes, reader: "StreamedReply[T]", parse: Callable[[bytes], T], reply_stream: PieceStream
    ) -> T:
        """Send a body once. `reader` gets the events of the response, `parse` gets a response that is no stream.

        If the sampling is abandoned and the task is cancelled, the result is what has come until then.

        Raises:
            ServerFault: there was no response that could be read.
        """
        feeder = _EventFeeder(reader, reply_stream)
        try:
            response = await self._send(body, feeder.feed)
            if not feeder.has_events:
                return self._read_whole(response, parse)
            return feeder.finish()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or not reply_stream.abandoned or not reader.has_sampled or task.uncancel():
                raise
            return reader.finish(cut=True)
        except (ValueError, RecursionError) as error:
            fault = self._make_reply_fault(error, Response(200, [], feeder.last))
            fault.seen = reply_stream.begun
            raise fault from None
        except ServerFault as fault:
            fault.seen = reply_stream.begun
            raise

    async def _send(self, body: bytes, feed: Callable[[bytes], None] | None = None) -> Response:
        try:
            response = await self._client.request("POST", self._url, self._headers, body, feed=feed)
        except ClientClosed as error:
            raise ServerFault(f"{self._shown}: the model was closed", retryable=False) from error
        except HttpError as error:
            words = self._redact(str(error))
            final = isinstance(error, NotTrusted)
            raise ServerFault(
                words + _suggest_check(error),
                retryable=not final,
                down=True,
                permanent="yes" if final else "no",
                brief=words,
            ) from error
        except ValueError as error:
            raise ServerFault(f"{self._shown}: {error}", retryable=False) from None
        if not 200 <= response.status < 300:
            raise self._make_status_fault(response.status, response)
        return response

    def _read_whole(self, response: Response, parse: Callable[[bytes], T]) -> T:
        try:
            return _parse_body(parse, response.body)
        except (ValueError, RecursionError) as error:  # msgspec's errors and bad UTF-8 are ValueErrors too
            raise self._make_reply_fault(error, response) from None

    def abort(self) -> None:
        self._client.abort()

    async def close(self) -> None:
        await self._client.close()

    def _make_status_fault(self, status: int, response: Response) -> ServerFault:
        message = self._redact(find_message(response.body))
        hint = suggest_fix(status, message, response.get_header("location"), self.settings, self.endpoint)
        gap = "" if message.endswith((".", "!", "?", ")")) else "."
        text = f"{self._shown}: status {status}: {message}{f'{gap} {hint}' if hint else ''}"
        return ServerFault(
            text,
            retryable=is_retryable(status, response.body),
            down=status >= 500 or status == 408,
            retry_after=read_retry_after(response, time()),
            too_long=is_too_long(status, message),
            permanent=find_permanence(status, response.body),
            brief=f"{self._shown}: status {status}",
        )

    def _make_reply_fault(self, error: Exception, response: Response) -> ServerFault:
        if isinstance(error, BadReply) and error.status is not None:
            return self._make_status_fault(error.status, response)
        start = response.body[:200].decode(errors="replace")
        if start.lstrip()[:1] == "<":
            why = "a web page instead of a completion; check base_url, which for most servers ends in /v1"
        else:
            why = f"the body is not a completion ({error})"
        text = f"{self._shown}: status {response.status}, but {why}. It starts: {self._redact(start)!r}"
        return ServerFault(text, retryable=True, down=True, brief=f"{self._shown}: it sends no completions")

    def _redact(self, text: str) -> str:
        secrets = (self.endpoint.api_key, *self.settings.headers.values(), *self.endpoint.headers.values())
        for secret in secrets:
            text = redact(text, secret)
        return text


# ---- what a response means ----------------------------------------------------------------------------------------


def is_retryable(status: int, body: bytes) -> bool:
    """Whether the same request may succeed later. An account without credit looks like a rate limit, but is not."""
    if status == 429:
        return b"insufficient_quota" not in body
    return status >= 500 or status == 408


def find_permanence(status: int, body: bytes) -> Permanent:
    """Whether the user must act before any request can succeed. Providers also answer 403 to a single request that
    they find offensive, and 404 to a single unknown field."""
    if status in (401, 402) or (status == 429 and not is_retryable(status, body)):
        return "yes"
    return "unless_answered" if status in (403, 404) else "no"


def _parse_body(parse: Callable[[bytes], T], body: bytes) -> T:
    """Parse a body. Half a surrogate pair, which a model can write and servers escape, is read as U+FFFD."""
    try:
        return parse(body)
    except ValueError:
        repaired = _ESCAPE.sub(_replace_half, body)
        if repaired == body:
            raise
        return parse(repaired)


_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][\da-fA-F]{2}\\u[dD][c-fC-F][\da-fA-F]{2}|(u[dD][89a-fA-F][\da-fA-F]{2})|.)", re.S
)


def _replace_half(escape: re.Match[bytes]) -> bytes:
    return rb"\ufffd" if escape[1] else escape[0]


def find_message(body: bytes) -> str:
    """The message in an error body of any usual shape; otherwise the start of the body."""
    try:
        value: Any = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        value = None
    for key in ("error", "message", "detail"):
        if isinstance(value, dict) and value.get(key):  # pyright: ignore[reportUnknownMemberType]
            value = value[key]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, str):
        return value[:1000]
    start = body[:200].decode(errors="replace").strip()
    return start or "(no text)"


def suggest_fix(status: int, message: str, location: str, settings: ServerSettings, endpoint: Endpoint) -> str:
    """What the user can do about an error status; empty if there is nothing to say."""
    lower = message.lower()
    if status in (401, 403):
        return _suggest_key(settings, endpoint)
    if status == 402 or "insufficient_quota" in lower or "current quota" in lower:
        return "The account has no credit left."
    if status == 404:
        return f"Check the model name '{settings.name}' and base_url '{mask_url(endpoint.base_url)}'."
    if 300 <= status < 400:
        return f"The server redirects to '{location.partition('?')[0]}': set base_url accordingly."
    if is_too_long(status, message):
        return "The conversation is longer than the model's context: set limits.context_tokens."
    if "max_completion_tokens" in lower:
        return "Set max_tokens_field to 'max_completion_tokens' for this model."
    return ""


def is_too_long(status: int, message: str) -> bool:
    """Whether the server refuses a conversation because it is too long. Servers word this differently."""
    return status == 413 or (status in (400, 422) and any(mark in message.lower() for mark in _TOO_LONG))


_TOO_LONG = ("context length", "context_length", "maximum context", "context size", "prompt is too long")


def _suggest_key(settings: ServerSettings, endpoint: Endpoint) -> str:
    if endpoint.api_key:
        where = f"the environment variable {settings.api_key_var}" if settings.api_key_var else "api_key"
        return f"The server does not accept the key in {where}."
    return "No key was sent: name the environment variable that holds it in api_key_var."


def _suggest_check(error: HttpError) -> str:
    match error:
        case NotTrusted():
            return ""
        case ConnectFailed():
            return ". Is the server running, and is base_url right?"
        case TimedOut():
            return ". If the model needs longer, raise its timeouts."
        case _:
            return ""


def mask_url(url: str) -> str:
    """The URL for error texts, without query and login: both may hold secrets."""
    return re.sub(r"//[^/@]*@", "//", url.partition("?")[0])


def redact(text: str, secret: str) -> str:
    """Remove a secret from a text, also if the text was cut in the middle of it."""
    shortest = min(len(secret), 12)
    if shortest < 6:  # too short for a secret, and part of many words
        return text
    for length in range(len(secret), shortest - 1, -1):
        text = text.replace(secret[:length], "[redacted]")
    return text


def merge_headers(own: Mapping[str, str], extra: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Join both. A header of `extra` replaces one of `own` with the same name."""
    replaced = {name.lower() for name in extra}
    return (*((n, v) for n, v in own.items() if n.lower() not in replaced), *extra.items())


def make_usage(price: Price, prompt: int, completion: int, cached: int = 0, written: int = 0) -> Usage:
    """Token counts with their cost."""
    return Usage(prompt, completion, cached, price.compute_cost(prompt, completion, cached, written))
