"""What the gateway needs of an API: read a request, and write replies, streams and errors.

There are four APIs (`chat_api`, `completions_api`, `responses_api`, `messages_api`). Their modules contain wire formats
only. All of them read into a `ParsedRequest`, which belongs to no API, and write from an `Answer`. Features that Ludus
does not have (audio, files, tools that the provider runs) are refused with the name of the field if leaving them out
would change the prompt. Otherwise they are listed in `ParsedRequest.ignored`.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeVar, cast

import msgspec
from msgspec import Struct

from ludus.chat_form import get_image_url
from ludus.images import describe_bad_url
from ludus.models.reply_pieces import Piece
from ludus.types import Completion, Image, Message, Sampling, ToolSpec

Api = Literal["chat", "completions", "responses", "messages"]
T = TypeVar("T")


class BadRequest(Exception):
    """A request that cannot be served. The message names the field."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class ParsedRequest(Struct, frozen=True):
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
    echo: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])
    """Fields of the request that the reply repeats."""
    kinds: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    """Tools that are not plain functions in this API: name → how a call is written."""
    previous: str = ""
    """The id of the answer that the conversation continues, if the request names one."""
    ignored: tuple[str, ...] = ()
    """What was requested and left out."""
    parallel_calls: bool | None = None
    """Whether a reply may have several calls; None: as the model likes."""
    logprobs: int | None = None
    """How many of the most likely tokens are wanted beside each sampled one; None: no logprobs are wanted."""


class Answer(Struct, frozen=True):
    """The answer to one request, to be written. A stream begins before there are completions."""

    id: str
    """A unique id. APIs put their prefix before it."""
    model: str
    created: int
    request: ParsedRequest
    completions: Sequence[Completion] = ()
    logprobs: Sequence[list[Any] | None] = ()
    """For each completion, the logprobs of its tokens in the form of the chat API, if the client asked for them."""


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
    open_stream: "Callable[[Answer], StreamWriter]"
    """Writes the reply as server-sent events."""
    write_error: Callable[[ErrorReply], bytes]
    """An error as a JSON body."""
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


_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def decode_known(
    strict: msgspec.json.Decoder[T], lenient: msgspec.json.Decoder[Any], body: bytes
) -> tuple[T, tuple[str, ...]]:
    """Decode the body, and list the fields that `strict` does not know. Most requests have none, and are decoded once.

    Raises:
        BadRequest: it has another form. The message names the field.
    """
    try:
        return strict.decode(body), ()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        wire: T = decode(lenient, body)
    known = {field.encode_name for field in msgspec.structs.fields(type(wire))}  # pyright: ignore[reportArgumentType]
    return wire, tuple(
        f"{name}: unknown" for name, value in _FIELDS.decode(body).items() if name not in known and value != b"null"
    )


@dataclass(frozen=True)
class FieldRules:
    """What happens to the fields of an API that the gateway cannot honour."""

    refused: Mapping[str, str] = field(default_factory=dict[str, str])
    """Field → why a request with it is refused: leaving it out would change what the client asked for."""
    ignored: tuple[str, ...] = ()
    """Fields that do not change the reply."""

    def apply(self, wire: Any) -> tuple[str, ...]:
        """The fields of a request that are left out.

        Raises:
            BadRequest: the request has a field that is refused.
        """
        for name, why in self.refused.items():
            if getattr(wire, name) is not None:
                raise BadRequest(f"{name}: {why}")
        return tuple([name for name in self.ignored if getattr(wire, name) is not None])


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


def read_content(content: Any, where: str, kinds: Collection[str] = ("text",)) -> tuple[str, tuple[Image, ...]]:
    """Read content as text and pictures: a string, null, or a list of parts.

    Raises:
        BadRequest: a part is neither, or a picture cannot be used.
    """
    if not isinstance(content, list):
        return read_text(content, where, kinds), ()
    text = ""
    images: list[Image] = []
    for index, part in enumerate(cast(list[Any], content)):
        place = f"{where}[{index}]"
        if isinstance(part, dict) and cast(dict[str, Any], part).get("type") in _IMAGE_PARTS:
            url = check_image(get_image_url(cast(dict[str, Any], part)), f"{place}.image_url")
            images.append(Image(url, len(text)))
        else:
            text += _read_part(part, place, kinds)
    return text, tuple(images)


_IMAGE_PARTS = ("image_url", "input_image")
"""Pictures in the chat API and in the responses API."""


def check_image(url: Any, where: str) -> str:
    """The URL of a picture.

    Raises:
        BadRequest: it cannot be used.
    """
    if not isinstance(url, str):
        raise BadRequest(f"{where}: expected the picture as a URL; uploaded files are not kept here")
    if why := describe_bad_url(url):
        raise BadRequest(f"{where}: {why}")
    return url


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


class SentReply:
    """What a stream has written of one reply."""

    __slots__ = ("_calls", "_texts", "_thoughts")

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._calls: dict[int, list[str]] = {}
        """The arguments of each call, by its number."""

    def note(self, piece: Piece) -> None:
        if piece.text:
            self._texts.append(piece.text)
        elif piece.thought:
            self._thoughts.append(piece.thought)
        else:
            self._calls.setdefault(piece.call, []).append(piece.arguments)

    def list_rest(self, message: Message) -> list[Piece]:
        """What is missing of the whole message. A part that was written in another form is left as it is."""
        rest: list[Piece] = []
        if message.reasoning is not None and not self._texts:
            thought = _find_rest(message.reasoning.text, self._thoughts)
            rest += [Piece(thought=thought)] if thought else []
        text = _find_rest(message.content, self._texts)
        rest += [Piece(text)] if text else []
        for number, call in enumerate(message.calls):
            written = self._calls.get(number)
            if written is None:
                rest.append(Piece("", "", number, call.id, call.name, call.arguments, True))
            elif more := _find_rest(call.arguments, written):
                rest.append(Piece(call=number, arguments=more))
        return rest


def _find_rest(whole: str, parts: list[str]) -> str:
    if not parts:
        return whole
    written = "".join(parts)
    return whole[len(written) :] if whole.startswith(written) else ""


class CallOrder:
    """Passes on the parts of one call after the other, for APIs whose calls cannot overlap. Servers may mix them."""

    __slots__ = ("_arguments", "_call", "_held")

    def __init__(self) -> None:
        self._call = -1
        """The call that is being written."""
        self._arguments = ""
        self._held: list[Piece] = []
        """Pieces that come after the call."""

    def take(self, piece: Piece) -> list[Piece]:
        """The pieces that can be written now."""
        if self._call >= 0 and piece.call != self._call and not self._is_complete():
            self._held.append(piece)
            return []
        if piece.call < 0:
            return [piece]
        if piece.call != self._call:
            self._call, self._arguments = piece.call, ""
        self._arguments += piece.arguments
        return [piece, *self._release()] if self._held and self._is_complete() else [piece]

    def take_rest(self) -> list[Piece]:
        """What is held at the end. A call that is not complete by then will not be."""
        held, self._held = self._held, []
        return held

    def _release(self) -> list[Piece]:
        return [piece for held in self.take_rest() for piece in self.take(held)]

    def _is_complete(self) -> bool:
        try:
            msgspec.json.decode(self._arguments)
        except (ValueError, RecursionError):
            return False
        return True


class StreamWriter(ABC):
    """Writes an answer as server-sent events while its replies are sampled. `start` comes first, then any number of
    `write` and `ping`, at the end `finish` or `fail`. All return bytes to send."""

    overlap: ClassVar[bool] = True
    """Whether calls may be written at the same time."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self._sent = [SentReply() for _ in range(answer.request.n)]
        self._order = None if self.overlap else CallOrder()

    @abstractmethod
    def start(self) -> bytes:
        """The events before any piece."""

    @abstractmethod
    def ping(self) -> bytes:
        """An event that says nothing. Clients count it as a sign of life; many do not count comments."""

    @abstractmethod
    def fail(self, error: ErrorReply) -> bytes:
        """The events of an error, in place of the rest."""

    def write(self, index: int, pieces: Sequence[Piece]) -> bytes:
        """The events of new pieces of one reply."""
        out: list[bytes] = []
        for piece in pieces:
            self._sent[index].note(piece)
            self._add_in_order(index, piece, out)
        return b"".join(out)

    def finish(self, answer: Answer) -> bytes:
        """The events of everything that is missing, and the end. `answer` is the whole answer."""
        self.answer = answer
        out: list[bytes] = []
        for index, completion in enumerate(answer.completions):
            for piece in self._sent[index].list_rest(self._view(completion)):
                self._add_in_order(index, piece, out)
            for piece in self._order.take_rest() if self._order is not None else ():
                self._add(index, piece, out)
            self._end_reply(index, completion, out)
        self._end(out)
        return b"".join(out)

    def _add_in_order(self, index: int, piece: Piece, out: list[bytes]) -> None:
        if self._order is None:
            self._add(index, piece, out)
            return
        for each in self._order.take(piece):
            self._add(index, each, out)

    def _view(self, completion: Completion) -> Message:
        """The message that the client sees."""
        return completion.message

    @abstractmethod
    def _add(self, index: int, piece: Piece, out: list[bytes]) -> None:
        """Add the events of a piece."""

    @abstractmethod
    def _end_reply(self, index: int, completion: Completion, out: list[bytes]) -> None:
        """Add the end of one reply."""

    @abstractmethod
    def _end(self, out: list[bytes]) -> None:
        """Add the end of the stream."""
