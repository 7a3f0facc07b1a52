"""What is read out of a model's reply: `Parser`, `ThinkParser`, `MaybeThinkParser`, `XMLParser`."""

# Values of foreign code have no types.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

END_OF_THOUGHT = "</think>"


def extract_boxed_answer(text: str, strict: bool = False) -> str:
    r"""What is in the last `\boxed{}`. Without one: the text itself, or nothing if `strict`."""
    start = text.rfind("\\boxed{")
    begin, depth = start + len("\\boxed{"), 1
    for end in range(begin, len(text)) if start >= 0 else ():
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if not depth:
            return text[begin:end]
    return "" if strict else text


def extract_hash_answer(text: str) -> str:
    """What follows the first `####`; the text itself if there is none."""
    return text.split("####")[1].strip() if "####" in text else text


def get_field(message: Any, name: str, default: Any = None) -> Any:
    return message.get(name, default) if isinstance(message, Mapping) else getattr(message, name, default)


def read_text(content: Any) -> str:
    """The text of a message's content, which may have parts."""
    if isinstance(content, str):
        return content
    texts = (_read_part(part) for part in content) if isinstance(content, list) else ()
    return " ".join(text for text in texts if isinstance(text, str)).strip()


def _read_part(part: Any) -> Any:
    if isinstance(part, Mapping):
        return part.get("text") if part.get("type") == "text" else None
    return getattr(part, "text", None)


class Parser:
    """The whole last reply."""

    def __init__(self, extract_fn: Callable[[str], Any] = lambda text: text) -> None:
        self.logger = logging.getLogger(f"verifiers.parsers.{type(self).__name__}")
        self.extract_fn = extract_fn

    def parse(self, text: str) -> Any:
        return self.extract_fn(text)

    def get_assistant_messages(self, completion: Sequence[Any]) -> list[Any]:
        return self._list_role(completion, "assistant")

    def get_system_messages(self, completion: Sequence[Any]) -> list[Any]:
        return self._list_role(completion, "system")

    def get_user_messages(self, completion: Sequence[Any]) -> list[Any]:
        return self._list_role(completion, "user")

    def get_tool_messages(self, completion: Sequence[Any]) -> list[Any]:
        return self._list_role(completion, "tool")

    def parse_answer(self, completion: Any) -> Any:
        if isinstance(completion, str):
            return self.parse(completion)
        texts = list(self._list_texts(completion))
        return self.parse(texts[-1]) if texts else None

    def get_format_reward_func(self) -> Callable[..., float]:
        def format_reward_func(completion: Any, **kwargs: Any) -> float:
            return 1.0

        return format_reward_func

    def _list_role(self, completion: Sequence[Any], role: str) -> list[Any]:
        return [message for message in completion if get_field(message, "role") == role]

    def _list_texts(self, completion: Sequence[Any]) -> Iterator[str]:
        """The texts of the model's messages."""
        messages = self.get_assistant_messages(completion)
        return (read_text(get_field(message, "content", "") or "") for message in messages)

    def _make_format_func(self, rate: Callable[[str], float]) -> Callable[..., float]:
        """A reward: the mean of what `rate` gives to the model's messages."""

        def format_reward_func(completion: Any, **kwargs: Any) -> float:
            rates = [rate(text) for text in self._list_texts(completion)]
            return sum(rates) / len(rates) if rates else 0.0

        return format_reward_func


class ThinkParser(Parser):
    """What follows the thoughts. A reply without their end has no answer."""

    def parse(self, text: str) -> Any:
        return self.extract_fn(text.rpartition(END_OF_THOUGHT)[2].strip() if END_OF_THOUGHT in text else "")

    def get_format_reward_func(self) -> Callable[..., float]:
        return self._make_format_func(_rate_thoughts)


def _rate_thoughts(text: str) -> float:
    counts = (text.count("<think>"), text.count(END_OF_THOUGHT))
    begins = text.strip().startswith("<think>")
    return float(begins and counts == (1, 1) and not text.endswith(END_OF_THOUGHT))


class MaybeThinkParser(Parser):
    """What follows the thoughts, if there are any."""

    def parse(self, text: str) -> Any:
        return self.extract_fn(text.rpartition(END_OF_THOUGHT)[2].strip())


class XMLParser(Parser):
    """The contents of tags. A field with several names is a tuple, and the first is its own."""

    def __init__(
        self,
        fields: Sequence[str | tuple[str, ...]],
        answer_field: str = "answer",
        extract_fn: Callable[[str], Any] = lambda text: text,
    ) -> None:
        super().__init__(extract_fn=extract_fn)
        self.answer_field = answer_field
        self._fields = [_read_names(field) for field in fields]
        own = [names[0] for names in self._fields]
        for name in own:
            if own.count(name) > 1:
                raise ValueError(f"two fields have the name '{name}'")

    def parse(self, text: str, strip: bool = True, last: bool = False) -> Any:
        found: dict[str, str | None] = {}
        for name in (name for names in self._fields for name in names):
            matches = re.findall(rf"<{name}>\s*(.*?)\s*</{name}>", text, re.DOTALL)
            chosen = (matches[-1] if last else matches[0]) if matches else None
            found[name] = chosen.strip() if chosen is not None and strip else chosen
        return SimpleNamespace(**found)

    def parse_answer(self, completion: Any) -> Any:
        """The answer in the last message that has one."""
        if isinstance(completion, str):
            return getattr(self.parse(completion, last=True), self.answer_field, None)
        answers = (getattr(self.parse(text), self.answer_field, None) for text in self._list_texts(completion))
        return next((answer for answer in reversed(list(answers)) if answer is not None), None)

    def get_fields(self) -> list[str]:
        return [names[0] for names in self._fields]

    def get_format_str(self) -> str:
        tags = (names[0] if len(names) == 1 else f"[ {' | '.join(names)} ]" for names in self._fields)
        return "\n".join(f"<{tag}>\n...\n</{tag}>" for tag in tags)

    def format(self, **values: Any) -> str:
        """The tags with these values."""
        return "\n".join(self._format_field(names, values) for names in self._fields)

    def _format_field(self, names: tuple[str, ...], values: Mapping[str, Any]) -> str:
        given = next((values[name] for name in names if name in values), None)
        if given is None:
            raise ValueError(f"the field '{names[0]}' has no value")
        return f"<{names[0]}>\n{given}\n</{names[0]}>"

    def get_format_reward_func(self) -> Callable[..., float]:
        rate = self._make_format_func(self._rate_format)

        def format_reward_func(completion: Any) -> float:
            return rate(completion)

        return format_reward_func

    def _rate_format(self, text: str) -> float:
        """0.4 for the share of fields, if one can be read; 0.2 always; 0.2 each for the first at the beginning and the
        last at the end."""
        parsed, said = vars(self.parse(text)), text.strip()
        is_read = any(value is not None for value in parsed.values())
        present = [
            names
            for names in self._fields
            if any(parsed[name] is not None or f"<{name}>" in text or f"</{name}>" in text for name in names)
        ]
        score = 0.4 * len(present) / len(self._fields) if is_read else 0.0
        score += 0.2
        score += 0.2 * any(said.startswith(f"<{name}>") for name in self._fields[0])
        return score + 0.2 * any(said.endswith(f"</{name}>") for name in self._fields[-1])


def _read_names(field: Any) -> tuple[str, ...]:
    names = (field,) if isinstance(field, str) else field
    if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
        raise TypeError("a field of XMLParser is a text, or a tuple of texts")
    if not names:
        raise ValueError("a field of XMLParser has no names")
    return names
