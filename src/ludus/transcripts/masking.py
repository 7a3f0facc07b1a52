"""Secrets and personal data in a session are replaced by placeholders, before a model sees it.

The same value has the same placeholder in the whole session (`<EMAIL_1>`), so that the text stays readable. A value
that was told by its place (`DB_PASSWORD=…`) or that names a person is replaced wherever else it stands, also as it is
escaped in JSON or in an address. This is repeated until nothing is found any more, so masking twice changes nothing.
Pictures are removed: what they show cannot be looked at.

A form that is not known is not found. Nor is a secret that is encoded in another way than base64 (an archive), or a
name that only a person would recognise.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast
from urllib.parse import quote

import msgspec

from ludus.secret_forms import PrivateSpan, find_secrets, is_secret_value, name_secret
from ludus.transcripts.encoded_secrets import drop_unseen, find_coded
from ludus.transcripts.past_session import Counts, PastSession
from ludus.transcripts.personal_data import NO_PERSON, find_personal_data

PICTURES = "picture"
_MARK = re.compile(r"<(?:[A-Z]+_)+\d+>")
_ROUNDS = 8
_SWEPT = frozenset({"KEY", "TOKEN", "SECRET", "PASSWORD", "PRIVATE_KEY", "EMAIL", "USER", "NAME"})
"""What is replaced where it stands without a sign, too. Numbers are told by their form everywhere."""
_WORDS = """
will mark max may june april art bill grace hope joy rose sky dev data main code test home work project src lib bin
api web app log run git python node java go rust docker linux mac windows server client system public private the
and for new old all any one two key name file path line text type list string number value true false none null
postgres mysql redis mongo password admin root user
"""
_COMMON = frozenset(_WORDS.split())
"""Words that are no sign of a person or a password by themselves."""


def mask_session(session: PastSession) -> tuple[PastSession, Counts]:
    """The session with placeholders in every field, and how many different values were replaced, by kind."""
    fields = cast(dict[str, Any], msgspec.to_builtins(session))
    pictures = _remove_pictures(fields)
    names = _Placeholders()
    names.skip_used(fields)
    for _ in range(_ROUNDS):
        before = len(names.values)
        _walk(fields, lambda text, name: names.note(text, name), keys=False)
        fields = _walk(fields, names.replace, keys=False)
        if len(names.values) == before:
            break
    counts = dict(names.counts)
    if pictures:
        counts[PICTURES] = pictures
    earlier = session.masked or {}
    fields["masked"] = dict(Counter(earlier) + Counter(counts))
    return msgspec.convert(fields, PastSession), counts


def mask_text(text: str) -> str:
    """A text of no session with placeholders."""
    names = _Placeholders()
    names.skip_used(text)
    for _ in range(_ROUNDS):
        before = len(names.values)
        names.note(text, "")
        text = names.replace(text, "")
        if len(names.values) == before:
            break
    return text


def _remove_pictures(fields: dict[str, Any]) -> int:
    """Remove the pictures of messages. Returns how many there were."""
    found = [images for message in fields.get("messages", ()) if (images := message.pop("images", ()))]
    return sum(map(len, found))


# ---- placeholders ---------------------------------------------------------------------------------------------------


class _Placeholders:
    """The values that were found in a session, and what stands for each."""

    def __init__(self) -> None:
        self.values: dict[str, tuple[str, str]] = {}
        """The kind of each value, and what stands for it."""
        self.counts = Counter[str]()
        self._last = Counter[str]()
        self._sweep: re.Pattern[str] | None = None
        self._swept: dict[str, str] = {}
        self._spans: dict[tuple[str, str], list[PrivateSpan]] = {}
        """The spans of each text: most texts are looked at again in the next round, and have not changed."""
        self._parts: dict[tuple[str, str], list[PrivateSpan]] = {}
        """The spans of a text of which some overlap: each is a value of its own where it stands elsewhere."""

    def skip_used(self, value: Any) -> None:
        """Note the placeholders that are there already: a new one must not be equal to one of them."""
        for mark in _MARK.findall(json.dumps(value, ensure_ascii=False)):
            kind, _, number = mark[1:-1].rpartition("_")
            self._last[kind] = max(self._last[kind], int(number[:9]))

    def note(self, text: str, name: str) -> str:
        """Find the values in a text. `name`: the field of an argument that it is the value of, or ""."""
        for span in self._find(text, name):
            self._get(span.kind, text[span.start : span.end])
        for span in self._parts.pop((text, name), ()):
            value = text[span.start : span.end]
            if value not in self.values:
                whole = next(each for each in self._find(text, name) if each.start <= span.start < each.end)
                self.values[value] = (span.kind, self._get(whole.kind, text[whole.start : whole.end]))
                self._sweep = None
        return text

    def _find(self, text: str, name: str) -> list[PrivateSpan]:
        found = self._spans.get((text, name))
        if found is None:
            spans = list_spans(text, name)
            found = self._spans[text, name] = join_spans(spans)
            if len(spans) > len(found):
                self._parts[text, name] = spans
        return found

    def _get(self, kind: str, value: str) -> str:
        found = self.values.get(value)
        if found is None:
            self._last[kind] += 1
            self.counts[kind.lower()] += 1
            found = self.values[value] = (kind, f"<{kind}_{self._last[kind]}>")
            self._sweep = None
        return found[1]

    def replace(self, text: str, name: str) -> str:
        """The text with placeholders."""
        parts: list[str] = []
        end = 0
        for span in self._find(text, name):
            parts += [text[end : span.start], self._get(span.kind, text[span.start : span.end])]
            end = span.end
        return self._replace_known("".join([*parts, text[end:]]))

    def _replace_known(self, text: str) -> str:
        """The text without the values that were found elsewhere."""
        if self._sweep is None:
            self._sweep, self._swept = _compile_sweep(self.values)
        if self._sweep is None:
            return text
        return self._sweep.sub(lambda found: self._swept.get(found[0], found[0]), text)


def _compile_sweep(values: Mapping[str, tuple[str, str]]) -> tuple[re.Pattern[str] | None, dict[str, str]]:
    """A pattern for all values that are replaced wherever they stand, and what stands for each."""
    swept: dict[str, str] = {}
    inside: list[str] = []
    words: list[str] = []
    for value, (kind, mark) in values.items():
        if kind not in _SWEPT or not _may_sweep(kind, value):
            continue
        for spelling in _spell(value):
            swept.setdefault(spelling, mark)
            (words if kind in ("USER", "NAME") else inside).append(spelling)
    if not swept:
        return None, {}
    longest = sorted(set(inside), key=len, reverse=True), sorted(set(words), key=len, reverse=True)
    forms = [_MARK.pattern]
    if longest[0]:
        forms.append("|".join(map(re.escape, longest[0])))
    if longest[1]:
        forms.append(rf"(?<![A-Za-z0-9<])(?:{'|'.join(map(re.escape, longest[1]))})(?![A-Za-z0-9>])")
    return re.compile("|".join(forms)), swept


def _may_sweep(kind: str, value: str) -> bool:
    if kind in ("USER", "NAME"):
        return len(value) >= 3 and value.lower() not in _COMMON and value.lower() not in NO_PERSON
    if kind == "PASSWORD":
        return len(value) >= 6 and not value.isalpha() and not value.isdigit()
    return len(value) >= 6


def _spell(value: str) -> set[str]:
    """How a value may be written: in JSON, in JSON inside JSON, and in an address."""
    once = json.dumps(value, ensure_ascii=False)[1:-1]
    return {value, once, json.dumps(once, ensure_ascii=False)[1:-1], json.dumps(value)[1:-1], quote(value, safe="")}


# ---- one text -------------------------------------------------------------------------------------------------------


def list_spans(text: str, name: str = "") -> list[PrivateSpan]:
    """The secrets and personal data in a text, in order. They may overlap. Placeholders are no part of any.

    `name`: the field of an argument that it is the value of, or "".
    """
    if len(text) < 3:
        return []
    if name and is_secret_value(name, text):
        return [PrivateSpan(0, len(text), name_secret(name))]
    marks = [found.span() for found in _MARK.finditer(text)] if "<" in text else []
    plain, places = drop_unseen(text)
    spans = (*find_secrets(plain), *find_coded(plain), *find_personal_data(plain))
    if places:
        spans = [PrivateSpan(places[start], places[end - 1] + 1, kind) for start, end, kind in spans if start < end]
    found = {
        span
        for span in spans
        if span.start < span.end and not any(start < span.end and span.start < end for start, end in marks)
    }
    return sorted(found, key=lambda span: (span.start, -span.end, span.kind))


def join_spans(spans: Iterable[PrivateSpan]) -> list[PrivateSpan]:
    """Spans that overlap become one, of the kind of the first."""
    joined: list[PrivateSpan] = []
    for span in spans:
        if joined and span.start < joined[-1].end:
            last = joined[-1]
            joined[-1] = PrivateSpan(last.start, max(last.end, span.end), last.kind)
        else:
            joined.append(span)
    return joined


# ---- all texts of a session -----------------------------------------------------------------------------------------

_Replace = Callable[[str, str], str]


def _walk(value: Any, replace: _Replace, *, keys: bool, name: str = "") -> Any:
    """A copy of a plain value with every text replaced. `keys`: names of fields are texts, too."""
    if isinstance(value, str):
        return replace(value, name)
    if isinstance(value, list | tuple):
        return _walk_list(list(cast("list[Any]", value)), replace, keys, name)
    if not isinstance(value, dict):
        return value
    fields = cast(dict[str, Any], value)
    named = fields.get("name") or fields.get("key")
    result: dict[str, Any] = {}
    for field, inner in fields.items():
        if not keys and field == "arguments" and isinstance(inner, str):
            result[field] = _mask_arguments(inner, replace)
        elif not keys and field == "parts":
            result[field] = {replace(part, ""): number for part, number in inner.items()}
        elif keys:
            about = named if field == "value" and isinstance(named, str) else field
            result[replace(field, "")] = _walk(inner, replace, keys=True, name=about)
        else:
            result[field] = _walk(inner, replace, keys=False)
    return result


_FLAG = re.compile(r"--?[A-Za-z][\w-]{0,60}")


def _walk_list(values: list[Any], replace: _Replace, keys: bool, name: str) -> list[Any]:
    """The words of a command are such a list: a flag names the word after it."""
    result: list[Any] = []
    before: Any = ""
    for each in values:
        about = before if keys and isinstance(before, str) and _FLAG.fullmatch(before) else name
        result.append(_walk(each, replace, keys=keys, name=about))
        before = each
    return result


def _mask_arguments(arguments: str, replace: _Replace) -> str:
    """The arguments of a call. They are decoded: names of fields say what values are, and escapes hide nothing."""
    try:
        decoded = msgspec.json.decode(arguments)
        masked = _walk(decoded, replace, keys=True)
        if masked != decoded:
            arguments = msgspec.json.encode(masked).decode()
    except (ValueError, RecursionError):  # it is no JSON, or nested too deeply: it is a text
        return replace(arguments, "")
    result = replace(arguments, "")
    try:
        msgspec.json.decode(result)
    except ValueError:  # a value that begins in an escape was replaced: what a tool gets is masked already
        return arguments
    return result
