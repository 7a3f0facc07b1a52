"""What an API is to the gateway: how to read a request of it, and how to write replies, streams and errors.

Four APIs are spoken (`chat`, `completions`, `responses`, `messages`), each in a module of its own with nothing but
wire formats in it. They all read into `Asked`, which is in nobody's dialect, and write from `Answer`. What an API
offers that Ludus has no word for (pictures, sound, tools that a provider runs itself) is refused with the field's name
where leaving it out would change what the model is asked, and listed in `Asked.ignored` where it would not.
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
    """A request that cannot be served as it is. The words name the field."""

    def __init__(self, words: str, status: int = 400) -> None:
        super().__init__(words)
        self.status = status


@dataclass(frozen=True)
class Asked:
    """A request, read."""

    messages: Sequence[Message]
    tools: Sequence[ToolSpec] = ()
    sampling: Sampling = Sampling(temperature=None)
    """What the client asks for; a session's own settings overrule it."""
    n: int = 1
    stream: bool = False
    usage: bool = True
    """Whether a stream ends with what it took."""
    thinking: bool = True
    """Whether the client wants to see reasoning."""
    prompt: str | Sequence[int] | None = None
    """For raw completions: the prompt, instead of a conversation."""
    echo: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fields of the request that the reply has to repeat."""
    kinds: Mapping[str, str] = field(default_factory=dict[str, str])
    """Tools that are no plain functions in this API, by name: how a call of them is written."""
    previous: str = ""
    """The reply that this conversation goes on from, by its id, where the API allows to name it."""
    ignored: tuple[str, ...] = ()
    """What was asked for and left out."""


@dataclass(frozen=True)
class Answer:
    """What is to be written: the replies to one request."""

    id: str
    """A word that no other answer has; APIs put their prefix before it."""
    model: str
    created: int
    asked: Asked
    completions: Sequence[Completion]


@dataclass(frozen=True)
class Trouble:
    """Why there is no answer."""

    status: int
    words: str
    kind: Literal["request", "key", "budget", "context", "model", "missing", "closed"]

    @property
    def again(self) -> bool:
        """Whether the client does well to try again. Clients are told, because most of them would by themselves."""
        return self.kind == "closed"


@dataclass(frozen=True)
class Dialect:
    """One API."""

    api: Api
    read: "Callable[[bytes, Known], Asked]"
    write: Callable[[Answer], bytes]
    """The reply as one JSON body."""
    stream: Callable[[Answer], bytes]
    """The reply as server-sent events."""
    error: Callable[[Trouble], bytes]
    """An error as a JSON body."""
    late_error: Callable[[Trouble], bytes]
    """An error as an event, for a stream whose status is already sent."""
    ping: bytes
    """What keeps a stream alive while the model is at work."""
    failed: int = 502
    """The status for a model that broke."""


# ---- reading ------------------------------------------------------------------------------------------------------

_PLACE = re.compile(r" - at `\$\.?([^`]*)`$")
_MISSING = re.compile(r"Object missing required field `(\w+)`")


def decode(decoder: msgspec.json.Decoder[T], body: bytes, where: str = "") -> T:
    """The body, or the field `where` of it, as the type that the decoder knows.

    Raises:
        BadRequest: it is not; the words name the field.
    """
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise BadRequest(_placed(str(error), where)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {error}" if body else "the body is empty") from None


def _placed(words: str, where: str) -> str:
    """msgspec's words, with the field in front."""
    found = _PLACE.search(words)
    place = where + (found.group(1) if found else "")
    what = words[: found.start()] if found else words
    if missing := _MISSING.fullmatch(what):
        return f"{place}{'.' if place else ''}{missing.group(1)}: this field is needed"
    return f"{place or 'the body'}: {what[0].lower()}{what[1:]}".replace("`", "")


class Known:
    """The last few things that were read, by their bytes: an agent sends the same tools with every request."""

    def __init__(self, size: int = 64) -> None:
        self._size = size
        self._known: dict[tuple[Any, bytes], Any] = {}

    def get(self, read: Callable[[bytes], T], raw: bytes) -> T:
        found = self._known.get((read, raw))
        if found is None:
            found = read(raw)
            if len(self._known) >= self._size:
                del self._known[next(iter(self._known))]
            self._known[read, raw] = found
        return found


def text_of(content: Any, where: str, kinds: Collection[str] = ("text",)) -> str:
    """Content as text: a string, null, or a list of parts that are all text.

    Raises:
        BadRequest: a part is something else.
    """
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if not isinstance(content, list):
        raise BadRequest(f"{where}: expected a text or a list of parts, got {type(content).__name__}")
    return "".join(_part(part, f"{where}[{i}]", kinds) for i, part in enumerate(cast(list[Any], content)))


def _part(part: Any, where: str, kinds: Collection[str]) -> str:
    fields = cast(dict[str, Any], part) if isinstance(part, dict) else {}
    kind = fields.get("type")
    if kind not in kinds and kind != "refusal":
        raise BadRequest(f"{where}: only text can be sent to this model, not '{kind}'")
    text = fields.get("refusal" if kind == "refusal" else "text")
    if not isinstance(text, str):
        raise BadRequest(f"{where}.text: expected str")
    return text


def given(**values: Any) -> dict[str, Any]:
    """Those that are set."""
    return {name: value for name, value in values.items() if value is not None}


# ---- writing ------------------------------------------------------------------------------------------------------


def event(data: bytes, name: str = "") -> bytes:
    """One server-sent event."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data) if name else b"data: %b\n\n" % data
