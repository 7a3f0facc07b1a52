"""What the gateway needs of an API: read a request, and write replies, streams and errors.

There are four APIs (`chat_api`, `completions_api`, `responses_api`, `messages_api`). Their modules contain wire formats
only. All of them read into a `ParsedRequest`, which belongs to no API, and write from an `Answer`. Features that Ludus
does not have (images, audio, tools that the provider runs) are refused with the name of the field if leaving them out
would change the prompt. Otherwise they are listed in `ParsedRequest.ignored`.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, cast

import msgspec

from ludus.types import Completion, Message, Sampling, ToolSpec

Api = Literal["chat", "completions", "responses", "messages"]
T = TypeVar("T")


class BadRequest(Exception):
    """A request that cannot be served. The message names the field."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class ParsedRequest:
    """A request of any API."""

    messages: Sequence[Message]
    tools: Sequence[ToolSpec] = ()
    sampling: Sampling = Sampling(temperature=None)
    """The client's sampling. The session's sampling replaces it, if there is one."""
    n: int = 1
    stream: bool = False
    usage: bool = True
    """Whether a stream ends with the usage."""
    thinking: bool = True
    """Whether the reply includes the reasoning."""
    prompt: str | Sequence[int] | None = None
    """For raw completions: the prompt in place of a conversation."""
    echo: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fields of the request that the reply repeats."""
    kinds: Mapping[str, str] = field(default_factory=dict[str, str])
    """Tools that are not plain functions in this API: name → how a call is written."""
    previous: str = ""
    """The id of the answer that the conversation continues, if the request names one."""
    ignored: tuple[str, ...] = ()
    """What was requested and left out."""


@dataclass(frozen=True)
class Answer:
    """The replies to one request, to be written."""

    id: str
    """A unique id. APIs put their prefix before it."""
    model: str
    created: int
    request: ParsedRequest
    completions: Sequence[Completion]


@dataclass(frozen=True)
class ErrorReply:
    """Why a request gets no reply."""

    status: int
    message: str
    kind: Literal["request", "key", "budget", "context", "model", "missing", "closed"]

    @property
    def may_retry(self) -> bool:
        """Whether the client should retry. Most clients retry by themselves unless an error says not to."""
        return self.kind == "closed"


@dataclass(frozen=True)
class Dialect:
    """One API."""

    api: Api
    read: "Callable[[bytes, ReadCache], ParsedRequest]"
    write: Callable[[Answer], bytes]
    """The reply as one JSON body."""
    stream: Callable[[Answer], bytes]
    """The reply as server-sent events."""
    write_error: Callable[[ErrorReply], bytes]
    """An error as a JSON body."""
    write_late_error: Callable[[ErrorReply], bytes]
    """An error as an event, for a stream whose status is already sent."""
    ping: bytes
    """Keeps a stream open while the model works."""
    model_error_status: int = 502
    """The status if the model failed."""


# ---- reading ------------------------------------------------------------------------------------------------------

_PLACE = re.compile(r" - at `\$\.?([^`]*)`$")
_MISSING = re.compile(r"Object missing required field `(\w+)`")


def decode(decoder: msgspec.json.Decoder[T], body: bytes, where: str = "") -> T:
    """Decode the body, or the field `where` of it.

    Raises:
        BadRequest: it has another form. The message names the field.
    """
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise BadRequest(_locate_error(str(error), where)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {error}" if body else "the body is empty") from None


def _locate_error(message: str, where: str) -> str:
    """msgspec's message, with the field in front."""
    found = _PLACE.search(message)
    place = where + (found.group(1) if found else "")
    what = message[: found.start()] if found else message
    if missing := _MISSING.fullmatch(what):
        return f"{place}{'.' if place else ''}{missing.group(1)}: this field is needed"
    return f"{place or 'the body'}: {what[0].lower()}{what[1:]}".replace("`", "")


class ReadCache:
    """Results of the last reads, by their bytes. An agent sends the same tools with every request."""

    def __init__(self, size: int = 64) -> None:
        self._size = size
        self._results: dict[tuple[Any, bytes], Any] = {}

    def get(self, read: Callable[[bytes], T], raw: bytes) -> T:
        found = self._results.get((read, raw))
        if found is None:
            found = read(raw)
            if len(self._results) >= self._size:
                del self._results[next(iter(self._results))]
            self._results[read, raw] = found
        return found


def read_text(content: Any, where: str, kinds: Collection[str] = ("text",)) -> str:
    """Read content as text: a string, null, or a list of text parts.

    Raises:
        BadRequest: a part is not text.
    """
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if not isinstance(content, list):
        raise BadRequest(f"{where}: expected a text or a list of parts, got {type(content).__name__}")
    return "".join(_read_part(part, f"{where}[{i}]", kinds) for i, part in enumerate(cast(list[Any], content)))


def _read_part(part: Any, where: str, kinds: Collection[str]) -> str:
    fields = cast(dict[str, Any], part) if isinstance(part, dict) else {}
    kind = fields.get("type")
    if kind not in kinds and kind != "refusal":
        raise BadRequest(f"{where}: only text can be sent to this model, not '{kind}'")
    text = fields.get("refusal" if kind == "refusal" else "text")
    if not isinstance(text, str):
        raise BadRequest(f"{where}.text: expected str")
    return text


def drop_unset(**values: Any) -> dict[str, Any]:
    """The values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


# ---- writing ------------------------------------------------------------------------------------------------------


def write_event(data: bytes, name: str = "") -> bytes:
    """One server-sent event."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data) if name else b"data: %b\n\n" % data
