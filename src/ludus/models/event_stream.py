"""Server-sent events, as model servers write them: the value of an event is one line of JSON."""

DONE = b"[DONE]"
"""The value of the last event of OpenAI's streams."""


class EventReader:
    """Splits bytes that come in pieces into the values of events. Names and comments are left out: every server repeats
    the name in the value."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The values that are complete now."""
        lines = (self._rest + data if self._rest else data).split(b"\n")
        self._rest = lines.pop()
        return [value for line in lines if line and (value := _read_line(line))]

    def finish(self) -> list[bytes]:
        """The value of a last line without a line end."""
        rest, self._rest = self._rest, b""
        return [value] if (value := _read_line(rest)) else []


def _read_line(line: bytes) -> bytes:
    if line.startswith(b"data:"):
        return line[5:].strip()
    return line[6:].strip() if line.startswith(b"error:") else b""  # llama.cpp writes errors like this
