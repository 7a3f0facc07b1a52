"""Messages, tools, responses and the state of a rollout.

A value can be read like an object (`message.content`) and like a dictionary (`message["content"]`), because
environments do both. It takes further fields than those that it declares.
"""

# Values of foreign code have no types.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

from ludus.chat_form import get_function, read_arguments

REQUIRED: Any = object()


class Value:
    """Fields by name."""

    defaults: ClassVar[Mapping[str, Any]] = {}
    """The declared fields. One that is `REQUIRED` must be given."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: Any) -> None: ...

    def __init_subclass__(cls, **fields: Any) -> None:
        cls.defaults = {**cls.defaults, **fields}

    def __init__(self, **fields: Any) -> None:
        missing = [name for name, value in self.defaults.items() if value is REQUIRED and name not in fields]
        if missing:
            raise TypeError(f"{type(self).__name__}: '{missing[0]}' is missing")
        self.__dict__.update({**self.defaults, **fields})

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self, name, value)

    def __contains__(self, name: str) -> bool:
        return hasattr(self, name)

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return iter(self.__dict__.items())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Value):
            return type(self) is type(other) and self.__dict__ == other.__dict__
        return self.model_dump() == dict(other) if isinstance(other, Mapping) else NotImplemented

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # it can be changed

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.__dict__.items())})"

    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self, name, default)

    def model_dump(self, *, exclude_none: bool = False, **_: Any) -> dict[str, Any]:
        return {
            name: _dump(value, exclude_none)
            for name, value in self.__dict__.items()
            if not (exclude_none and value is None)
        }

    def model_copy(self, *, update: Mapping[str, Any] | None = None, **_: Any) -> Self:
        return type(self)(**{**self.__dict__, **(update or {})})

    @classmethod
    def model_validate(cls, value: Any) -> Self:
        return value if isinstance(value, cls) else cls(**dict(value))


def _dump(value: Any, exclude_none: bool) -> Any:
    if isinstance(value, Value):
        return value.model_dump(exclude_none=exclude_none)
    return [_dump(each, exclude_none) for each in value] if isinstance(value, list) else value


# ---- messages -----------------------------------------------------------------------------------------------------


class TextMessage(Value, role="text", content=REQUIRED):
    """A text without a role."""


class SystemMessage(Value, role="system", content=REQUIRED):
    """What the model is told first."""


class UserMessage(Value, role="user", content=REQUIRED):
    """What the user says."""


class AssistantMessage(
    Value, role="assistant", content=None, reasoning_content=None, thinking_blocks=None, tool_calls=None
):
    """What the model says."""


class ToolMessage(Value, role="tool", tool_call_id=REQUIRED, content=REQUIRED):
    """The result of a call."""


class ToolCall(Value, id=REQUIRED, name=REQUIRED, arguments=REQUIRED):
    """A call, with its arguments as text."""


class TextContentPart(Value, type="text", text=REQUIRED):
    """A text in a message."""


class ImageUrlSource(Value, url=REQUIRED):
    """Where a picture is."""


class ImageUrlContentPart(Value, type="image_url", image_url=REQUIRED):
    """A picture in a message."""


Message = SystemMessage | UserMessage | AssistantMessage | ToolMessage | TextMessage
Messages = list[Message]
_ROLES: Mapping[str, type[Any]] = {
    "text": TextMessage,
    "system": SystemMessage,
    "user": UserMessage,
    "assistant": AssistantMessage,
    "tool": ToolMessage,
}


def normalize_messages(value: Any, *, field_name: str = "messages") -> list[Any]:
    """Messages of any form as values. A text is one message."""
    if isinstance(value, str):
        return [TextMessage(content=value)]
    return [_normalize_message(message, field_name) for message in value]


def _normalize_message(message: Any, field: str) -> Any:
    if isinstance(message, Mapping):
        return _read_message(dict(message))
    if hasattr(message, "role") and hasattr(message, "content"):
        return message
    raise TypeError(f"{field}: a message cannot be a {type(message).__name__}")


def _read_message(raw: dict[str, Any]) -> Any:
    if raw.get("role") not in _ROLES:
        raise ValueError(f"a message cannot have the role {raw.get('role')!r}")
    if isinstance(raw.get("content"), list):
        raw["content"] = [_read_part(part) for part in raw["content"]]
    if isinstance(raw.get("tool_calls"), list):
        raw["tool_calls"] = [_read_call(call) for call in raw["tool_calls"]]
    return _ROLES[raw["role"]](**raw)


def _read_part(part: Any) -> Any:
    if not isinstance(part, Mapping):
        return part
    if part.get("type") == "text":
        return TextContentPart(**part)
    if part.get("type") == "image_url" and isinstance(part.get("image_url"), Mapping):
        return ImageUrlContentPart(**{**part, "image_url": ImageUrlSource(**part["image_url"])})
    return dict(part)


def _read_call(call: Any) -> Any:
    if not isinstance(call, Mapping):
        return call
    function = get_function(call)
    name, arguments = str(function.get("name")), read_arguments(function.get("arguments") or {})
    return ToolCall(id=str(call.get("id") or name), name=name, arguments=arguments)


# ---- tools and responses ------------------------------------------------------------------------------------------


class Tool(Value, name=REQUIRED, description=REQUIRED, parameters=REQUIRED, strict=None):
    """What the model sees of a function."""


class Usage(Value, prompt_tokens=0, reasoning_tokens=0, completion_tokens=0, total_tokens=0):
    """Tokens of a reply."""


class ResponseMessage(AssistantMessage, finish_reason=None, is_truncated=None, tokens=None):
    """A reply, and how it ended."""


class Response(Value, id="", created=0, model="", usage=None, message=REQUIRED):
    """What a model's server returned."""


class TimeSpan(Value, start=0.0, end=0.0):
    """From when until when."""

    @property
    def duration(self) -> float:
        return max(0.0, self.end - self.start) if self.end > 0 else 0.0


class TimeSpans(Value):
    def __init__(self, **fields: Any) -> None:
        super().__init__(**{"spans": [], **fields})

    @property
    def duration(self) -> float:
        return sum(span.duration for span in self.spans)


class RolloutTiming(Value):
    """When the steps of a rollout began and ended, in seconds since 1970."""

    def __init__(self, **fields: Any) -> None:
        spans = {name: TimeSpan() for name in ("setup", "generation", "scoring")}
        super().__init__(**{"start_time": time.time(), **spans, "model": TimeSpans(), "env": TimeSpans(), **fields})

    @property
    def total(self) -> float:
        return self.scoring.end - self.generation.start if self.scoring.end > 0 else 0.0


class State(dict[str, Any]):
    """What is known of a rollout. Fields of the task's row are read and written in `input`."""

    INPUT_FIELDS = ("prompt", "answer", "info", "example_id")

    def _find_row(self, name: str) -> dict[str, Any] | None:
        row = super().get("input") if name in self.INPUT_FIELDS else None
        return row if row is not None and name in row else None

    def __getitem__(self, name: str) -> Any:
        row = self._find_row(name)
        return super().__getitem__(name) if row is None else row[name]

    def __setitem__(self, name: str, value: Any) -> None:
        row = self._find_row(name)
        if row is None:
            super().__setitem__(name, value)
        else:
            row[name] = value

    def get(self, name: str, default: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        try:
            return self[name]
        except KeyError:
            return default
