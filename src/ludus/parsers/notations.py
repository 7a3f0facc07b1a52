"""The notations for the arguments of a call whose name is in the markup.

    Json     {"city": "Paris", "days": 3}
    Braces   {city:<|"|>Paris<|"|>,days:3}
    Tags     <parameter=city>Paris</parameter><parameter=days>3</parameter>
    Nested   <city>Paris</city><days>3</days>, with lists and objects as tags inside tags

Json and Braces carry types and show where they end. Tags and Nested are text: types come from the tool's schema, and a
value cannot contain its own closing tag.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, cast

from ludus.parsers.markup_reader import Spelling, TextSource, unescape
from ludus.parsers.offered_tools import as_mapping, convert_text
from ludus.parsers.values import MAX_DEPTH, GemmaLiterals, IncompleteText, MalformedText, dumps, read_json
from ludus.types import JsonObject


class Notation(Protocol):
    """Reads and writes the arguments of a call."""

    @property
    def closed(self) -> bool:
        """Whether the arguments show where they end, so that a call is complete without its closing tag."""
        ...

    def read(self, source: TextSource, at: int, tool: str, stop: str) -> tuple[Any, int]:
        """Read the arguments of `tool`. Returns them and their end. `stop` is the tag that closes the call."""
        ...

    def write(self, arguments: JsonObject) -> str: ...


class Json:
    """A JSON object."""

    closed = True

    def read(self, source: TextSource, at: int, tool: str, stop: str) -> tuple[Any, int]:
        if stop and source.text.startswith(stop, at):
            return {}, at
        if source.get_char(at) not in {"{", '"'}:
            raise IncompleteText if source.is_undecided(stop, at) else MalformedText(at, "expected a JSON object")
        return read_json(source.text, at)

    def write(self, arguments: JsonObject) -> str:
        return dumps(arguments)


@dataclass(frozen=True)
class Braces:
    """The braces of Gemma, with strings between two equal marks."""

    mark: str
    closed = True

    def read(self, source: TextSource, at: int, tool: str, stop: str) -> tuple[Any, int]:
        return GemmaLiterals(self.mark).read_value(source.text, source.expect("{", at) - 1)

    def write(self, arguments: JsonObject) -> str:
        return GemmaLiterals(self.mark).write(arguments)


@dataclass(frozen=True)
class Tags:
    """Arguments as text between tags. A newline beside `{value}` in the spelling belongs to the markup. So does a
    `type` or `string` field, which decides the type instead of the schema."""

    argument: str
    also: tuple[str, ...] = ()
    """Other spellings, which are read but not written."""
    xml: bool = False
    """Values are XML text: entities, or a CDATA section."""
    python: bool = False
    """Booleans and null are written as in Python: `True`, `False`, `None`."""
    closed = False

    @cached_property
    def _spellings(self) -> tuple["_Tag", ...]:
        return tuple(_Tag(spelled) for spelled in (self.argument, *self.also))

    @cached_property
    def _ends(self) -> re.Pattern[str]:
        """What ends a value: its own closing tag, or the next argument if the tag is missing."""
        closing = {re.escape(tag.after.opener) for tag in self._spellings}
        opening = {re.escape(tag.before.opener) for tag in self._spellings}
        return re.compile(rf"(?P<own>{'|'.join(sorted(closing))})|{'|'.join(sorted(opening))}")

    def read(self, source: TextSource, at: int, tool: str, stop: str) -> tuple[JsonObject, int]:
        arguments: JsonObject = {}
        at = source.skip_space(at)
        while not source.text.startswith(stop, at):
            fields, tag, at = self._open(source, at, stop)
            text, at = self._read_value(source, at, tag, stop)
            key = fields["key"].strip()
            arguments[key] = self._convert(source, tool, key, text, fields)
            at = source.skip_space(at)
        return arguments, at

    def _open(self, source: TextSource, at: int, stop: str) -> tuple[dict[str, str], "_Tag", int]:
        if source.is_undecided(stop, at):
            raise IncompleteText
        wrong: MalformedText | None = None
        for tag in self._spellings:
            try:
                fields, end = tag.before.read(source, at)
                return fields, tag, end
            except MalformedText as error:
                wrong = wrong or error
        raise wrong or MalformedText(at, "expected an argument")

    def _read_value(self, source: TextSource, at: int, tag: "_Tag", stop: str) -> tuple[str, int]:
        text = source.text
        if self.xml and text.startswith("<![CDATA[", at):
            end = text.find("]]>", at)
            if end < 0:
                raise IncompleteText
            return text[at + 9 : end], tag.after.close(source, end + 3)
        found = self._ends.search(text, at)
        if found and found["own"]:
            return self._trim(text[at : found.start()], tag), tag.after.close(source, found.start())
        if found is None and not source.final:
            raise IncompleteText
        limit = found.start() if found else len(text)
        end = text.find(stop, at, limit)
        if end < 0 and found is None:
            raise IncompleteText
        end = end if end >= 0 else limit
        return self._trim(text[at:end], tag), end

    def _trim(self, text: str, tag: "_Tag") -> str:
        if tag.own_line:
            text = text.removeprefix("\n").removesuffix("\n")
        return unescape(text) if self.xml else text

    def _convert(self, source: TextSource, tool: str, key: str, text: str, fields: dict[str, str]) -> Any:
        hint = fields.get("type", fields.get("string", ""))
        if hint in {"string", "true"}:
            return text
        return convert_text(text, {}, {}) if hint else source.tools.convert(source.tools.resolve(tool), key, text)

    def write(self, arguments: JsonObject) -> str:
        tag = self._spellings[0]
        return "".join(tag.write(key, self._write_value(value), value) for key, value in arguments.items())

    def _write_value(self, value: Any) -> str:
        if self.python and (value is None or isinstance(value, bool)):
            return str(value)
        text = value if isinstance(value, str) else dumps(value)
        return f"<![CDATA[{text}]]>" if self.xml and re.search(r"[<&>]|^\s|\s$", text) else text


class _Tag:
    """One spelling of an argument, split at `{value}`."""

    def __init__(self, spelled: str) -> None:
        before, _, after = spelled.partition("{value}")
        self.own_line = before.endswith("\n")
        self.before, self.after = Spelling(before.rstrip("\n")), Spelling(after)
        self.spelled = Spelling(spelled)

    def write(self, key: str, text: str, value: Any) -> str:
        string = "true" if isinstance(value, str) else "false"
        return self.spelled.write(key=key, value=text, string=string, type=_name_type(value))


def _name_type(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    if isinstance(value, str | int | float):
        return "string" if isinstance(value, str) else "number"
    return "array" if isinstance(value, list) else "object"


@dataclass(frozen=True)
class Nested:
    """A tag for each argument, named by it. Objects and lists (`<item>`) are tags inside. Every tag has a prefix."""

    prefix: str
    closed = False

    @cached_property
    def _tag(self) -> Spelling:
        return Spelling(self.prefix + "<{tag}>")

    def read(self, source: TextSource, at: int, tool: str, stop: str) -> tuple[JsonObject, int]:
        schema = source.tools.get_schema(source.tools.resolve(tool))
        children, at = self._read_children(source, at, schema, schema, 0)
        return dict(children), at

    def _read_children(
        self, source: TextSource, at: int, schema: Mapping[str, Any], root: Mapping[str, Any], depth: int
    ) -> tuple[list[tuple[str, Any]], int]:
        if depth > MAX_DEPTH:
            raise MalformedText(at, f"nested deeper than {MAX_DEPTH}")
        children: list[tuple[str, Any]] = []
        at = source.skip_space(at)
        while not source.text.startswith(f"{self.prefix}</", at):
            key, at = self._open(source, at)
            inner = schema.get("items") if key == "item" else as_mapping(schema.get("properties")).get(key)
            value, at = self._read_element(source, at, key, as_mapping(inner), root, depth)
            children.append((key, value))
            at = source.skip_space(at)
        return children, at

    def _open(self, source: TextSource, at: int) -> tuple[str, int]:
        if source.is_undecided(f"{self.prefix}</", at):
            raise IncompleteText
        fields, at = self._tag.read(source, at)
        return fields["tag"], at

    def _read_element(
        self, source: TextSource, at: int, key: str, schema: Mapping[str, Any], root: Mapping[str, Any], depth: int
    ) -> tuple[Any, int]:
        end = source.text.find(self.prefix, at)
        if end < 0 or source.is_undecided(f"{self.prefix}</", end):
            raise IncompleteText
        closing = f"{self.prefix}</{key}>"
        if source.text.startswith(f"{self.prefix}</", end):
            return convert_text(source.text[at:end], schema, root), source.expect(closing, end)
        if source.text[at:end].strip():
            raise MalformedText(at, "text beside tags")
        children, end = self._read_children(source, end, schema, root, depth + 1)
        listed = schema.get("type") == "array" or all(name == "item" for name, _ in children)
        return [value for _, value in children] if listed else dict(children), source.expect(closing, end)

    def write(self, arguments: JsonObject) -> str:
        return "".join(self._write(key, value) for key, value in arguments.items())

    def _write(self, key: str, value: Any) -> str:
        if isinstance(value, dict) and value:
            inner = self.write(cast(JsonObject, value))
        elif isinstance(value, list) and value:
            inner = "".join(self._write("item", item) for item in cast(list[Any], value))
        else:
            inner = value if isinstance(value, str) else dumps(value)
        return f"{self.prefix}<{key}>{inner}{self.prefix}</{key}>"


JSON = Json()
