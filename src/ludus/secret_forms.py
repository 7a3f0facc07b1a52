"""What secrets look like in a text: keys of providers by their form, and values that are assigned to a telling name.

A key of a provider is told by its prefix, a password by where it stands: in an address, after a name such as
`DB_PASSWORD=`, after a flag. Values of code are not secrets: variables, types, calls, placeholders. Texts are those of
an adversary: every pattern takes time linear in the text. Pure.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

AT_START = r"(?:(?<=\\[nrt])|(?<![A-Za-z0-9_])(?!(?<=\\)[nrt]))"
"""Where a value may begin: after no letter, or after the escape of a line end in JSON text."""


class Span(NamedTuple):
    """A place in a text, and what is there."""

    start: int
    end: int
    kind: str


# ---- keys by their form -------------------------------------------------------------------------------------------

_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_KEY_END = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_KEY_LINE = re.compile(
    r"(?:\\[nrt]|\s)+(?:\d{1,6}[\t→|:] ?)?(?:[A-Za-z0-9+/]{16,200}={0,2}|[A-Z][\w-]{2,20}: [^\n\\]{1,200})"
)
_KEY_CHARS = 20_000

_KEYS = (
    r"(?:sk|pk|rk)-(?=[a-z_-]{0,60}[A-Z0-9])[A-Za-z0-9_-]{20,300}",  # OpenAI, Anthropic, OpenRouter, DeepSeek, …
    r"(?:[srp]k|rk)_(?:live|test)_[A-Za-z0-9]{10,200}",  # Stripe
    r"whsec_[A-Za-z0-9+/=]{16,200}",
    r"(?:AKIA|ASIA|AGPA|AIDA|AROA|ABIA|ACCA)[0-9A-Z]{16}(?![0-9A-Za-z])",  # AWS
    r"gh[pousr]_[A-Za-z0-9]{30,255}",
    r"github_pat_[A-Za-z0-9_]{30,255}",
    r"gl(?:pat|dt|rt|ptt|cbt|soat|oas|agent)-[A-Za-z0-9_-]{20,200}",
    r"(?:xox[abceoprs]|xapp)-[A-Za-z0-9-]{10,300}",  # Slack
    r"(?:AIza[0-9A-Za-z_-]{30,60}|ya29\.[0-9A-Za-z_-]{20,2000}|GOCSPX-[0-9A-Za-z_-]{20,60})",  # Google
    r"hf_[A-Za-z0-9]{30,60}",
    r"npm_[A-Za-z0-9]{36}",
    r"pypi-[A-Za-z0-9_-]{50,400}",
    r"SG\.[A-Za-z0-9_-]{16,64}\.[A-Za-z0-9_-]{16,100}",  # SendGrid
    r"(?:SK|AC)[0-9a-f]{32}(?![0-9A-Za-z])",  # Twilio
    r"(?:dop|doo|dor)_v1_[0-9a-f]{40,80}",
    r"(?:gsk_|xai-|pplx-|r8_|fw_|figd_|sntrys_|phx_|lin_api_|ntn_|rubygems_|sbp_)[A-Za-z0-9_-]{20,300}",
    r"(?:tvly-|nvapi-|PMAK-|hvs\.|hvb\.|dp\.(?:pt|st|ct)\.)[A-Za-z0-9_-]{20,300}",
    r"dapi[0-9a-f]{32}",
    r"shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}",
    r"sq0(?:atp|csp|idp)-[A-Za-z0-9_-]{20,60}",
    r"ATATT3[A-Za-z0-9_=-]{50,300}",
    r"AGE-SECRET-KEY-1[0-9A-Z]{50,60}",
    r"\d{8,10}:AA[A-Za-z0-9_-]{32,34}(?![A-Za-z0-9_-])",  # Telegram
    r"key-[0-9a-f]{32}(?![0-9A-Za-z])",  # Mailgun
    r"[0-9a-f]{32}-us\d{1,2}(?!\d)",  # Mailchimp
    r"(?:EAA[A-Za-z0-9]{60,300})",  # Meta
)
KEY = re.compile(AT_START + "(?:" + "|".join(_KEYS) + ")")
_TOKEN = re.compile(AT_START + r"eyJ[A-Za-z0-9_-]{8,8000}\.[A-Za-z0-9_-]{8,8000}(?:\.[A-Za-z0-9_-]{0,8000}){0,3}")
_HOOK = re.compile(
    r"(?:hooks\.slack\.com/(?:services|workflows|triggers)/|discord(?:app)?\.com/api/webhooks/)"
    r"([A-Za-z0-9_/-]{16,300})"
)


def find_keys(text: str) -> Iterator[Span]:
    """Keys, tokens and private keys that are told by their form."""
    if "PRIVATE KEY" in text:
        for found in _PRIVATE_KEY.finditer(text):
            yield Span(found.start(), _find_key_end(text, found.end()), "PRIVATE_KEY")
    for found in KEY.finditer(text):
        yield Span(*found.span(), "KEY")
    if "eyJ" in text:
        for found in _TOKEN.finditer(text):
            yield Span(*found.span(), "TOKEN")
    if "webhooks/" in text or "hooks.slack" in text:
        for found in _HOOK.finditer(text):
            yield Span(*found.span(1), "TOKEN")


def _find_key_end(text: str, start: int) -> int:
    """The end of a private key: its last line, or where its text ends if that was cut off."""
    end = _KEY_END.search(text, start, start + _KEY_CHARS)
    other = _PRIVATE_KEY.search(text, start, end.start() if end else start)
    if end and not other:
        return end.end()
    while (line := _KEY_LINE.match(text, start)) and line.end() > start:
        start = line.end()
    return start


# ---- values by their place ----------------------------------------------------------------------------------------

_WORDS = (
    r"pass(?:word|wd|phrase|code)?|pwd|secret|token|api[ _-]?key|access[ _-]?(?:key|token)|private[_-]?key|secret[_-]?key|"
    r"account[_-]?key|encryption[_-]?key|signing[_-]?key|auth[_-]?key|client[_-]?key|ssh[_-]?key|authorization|"
    r"credentials?|cookie|session[_-]?id|sessionid|csrf|jwt|bearer|salt|license[_-]?key|webhook[_-]?url"
)
_NAMED = re.compile(
    rf"(?i)({_WORDS})([\w-]{{0,40}}?)"
    r"(\\{0,3}[\"'`]?\]?[ \t]{0,20}(?::=|=>|==?|:)[ \t]{0,20}|[ \t]{1,4}is[ \t]{1,4}|[ \t]{1,4})"
    r"(\\{0,3}[\"'`])?"
)
_BARE = re.compile(r"[^\s\"'`,;<>(){}\[\]\\&|]{3,300}")
_WIDE = re.compile(r"[^\s\"'`\\]{3,300}")
_LEFT = re.compile(r"[\w.-]{0,60}$")
_NOT_SECRET_NAME = re.compile(
    r"(?i)(?:tokens|_?(?:var|vars|variable|file|path|dir|name|names|url|uri|type|kind|limit|count|length|len|size|id|ids|"
    r"field|fields|index|class|pattern|regex|prefix|env|env_var|hash|ttl|expiry|expires|policy|required|min|max|usage|"
    r"manager|provider|store|header|form|format|forms))$"
)
_MAYBE_ID = re.compile(r"(?i)(?:session[_-]?id|sessionid|secret[_-]?id)$")
_PLAIN_WORDS = frozenset(
    "password passwd passphrase pass secret token string str text none null nil true false undefined unset empty hidden"
    " required optional changeme change-me placeholder redacted masked test testing dummy fake example sample value key"
    " apikey api-key api_key number integer int float bool boolean bytes any object array list dict default basic bearer"
    " digest cookie type env admin root user username guest foo bar baz secretstr password123".split()
)
_REFERENCE = re.compile(
    r"^(?:[<{]|\$[A-Za-z_{(]|%[A-Za-z_({]|\*+$)|\.{3}|…|\*{3}"
    r"|(?i:x{4,}|your|example|placeholder|redacted|os\.environ|getenv|process\.env|secrets\.|https?://|^sha\d+[:-])"
)
"""What stands for a secret, or names where it is kept."""
_CODE = re.compile(
    r"[A-Za-z_][\w.]*(?:\(|\[|->|=>|::)|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+$|[A-Za-z_]+(?:[_-][A-Za-z]+)*$|[-+]?[\d.,_:]+$|[./~]"
)


def find_named(text: str) -> Iterator[Span]:
    """Values that stand after a telling name: in assignments, YAML, JSON, flags, and `the password is …`."""
    for found in _NAMED.finditer(text):
        name = _LEFT.search(text, max(0, found.start() - 60), found.start())
        left = name[0] if name else ""
        start, end, quoted = _find_value(text, found, left)
        if start < end and _is_given(text, found, left, start, quoted, text[start:end]):
            yield Span(start, end, _name_kind(found[1]))


def is_secret_value(name: str, value: str) -> bool:
    """Whether a value is a secret, because of the name of its field."""
    found = _NAMED.search(f"{name}: ")
    return bool(found) and _is_secret(name, found[1], value, quoted=True, loose=False)  # pyright: ignore[reportOptionalSubscript]


def name_secret(name: str) -> str:
    """The kind of a secret value of a field."""
    found = _NAMED.search(f"{name}: ")
    return _name_kind(found[1]) if found else "SECRET"


def _name_kind(word: str) -> str:
    word = word.lower()
    if word.startswith(("pass", "pwd")):
        return "PASSWORD"
    return "KEY" if "key" in word else "TOKEN" if word in ("token", "jwt", "bearer", "authorization") else "SECRET"


def _find_value(text: str, found: re.Match[str], left: str) -> tuple[int, int, bool]:
    """Where the value is, and whether it is in quotation marks."""
    start = found.end()
    if quote := found[4]:
        line = text.find("\n", start, start + 400)
        limit = line if line >= 0 else min(len(text), start + 400)
        end = text.find(quote, start, limit)
        while end > start and len(quote) == 1 and text[end - 1] == "\\":
            end = text.find(quote, end + 1, limit)
        return start, end if end >= 0 else limit, True
    name = left + found[1] + found[2]
    wide = found[3] == "=" and name == name.upper()
    value = (_WIDE if wide else _BARE).match(text, start)
    return (start, value.end(), False) if value else (start, start, False)


def _is_given(text: str, found: re.Match[str], left: str, start: int, quoted: bool, value: str) -> bool:
    """Whether a value after a name is a secret."""
    link = found[3].strip()
    name = left + found[1] + found[2]
    if not link:  # only a flag has its value after a space
        flag = re.search(r"(?:^|\s|[\"'`])--?[\w-]{0,60}$", text[max(0, found.start() - 70) : found.start()])
        if not flag or value.startswith("-"):
            return False
        return _is_secret(name, found[1], value, quoted=True, loose=False)
    if link == "is":
        return not quoted and _is_odd(value.rstrip(".!?"))
    upper = name == name.upper() and any(letter.isalpha() for letter in name)
    return _is_secret(name, found[1], value, quoted=quoted or (upper and found[3] == "="), loose=not quoted)


def _is_secret(name: str, word: str, value: str, *, quoted: bool, loose: bool) -> bool:
    """Whether a value is a secret. `quoted`: it is a text and no code. `loose`: it may have marks around it."""
    value = value.strip()
    if loose:
        value = value.rstrip(".,;:")
    if len(value) < 4 or value.lower() in _PLAIN_WORDS or _REFERENCE.search(value[:300]):
        return False
    if _NOT_SECRET_NAME.search(name) and not _MAYBE_ID.search(name):
        return False
    if word.lower().startswith(("pass", "pwd")):
        if quoted:
            return " " not in value or "phrase" in word.lower()
        return _is_odd(value)
    if " " in value and word.lower() not in ("cookie", "authorization"):
        return False
    if quoted and name == name.upper() and len(value) >= 8:
        return not _CODE.match(value) or (value.isalpha() and measure_entropy(value) > 3.0)
    return looks_random(value)


def _is_odd(value: str) -> bool:
    """Whether a bare word is more likely a password than a word of a text or of code."""
    if len(value) < 6 or _CODE.match(value) or _REFERENCE.search(value):
        return False
    return any(letter.isdigit() or letter in "!@#$%^&*?~" for letter in value) and any(map(str.isalpha, value))


def looks_random(value: str) -> bool:
    """Whether a value is no word and no name."""
    if len(value) < 8 or _CODE.match(value):
        return False
    digits = sum(letter.isdigit() for letter in value)
    return measure_entropy(value) >= (2.5 if digits >= 2 else 3.5) and (digits > 0 or len(value) >= 20)


def measure_entropy(text: str) -> float:
    """Bits per character."""
    counts = Counter(text)
    return -sum(n / len(text) * math.log2(n / len(text)) for n in counts.values())


_IN_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{1,20}://([^\s/:@\"'<>\\]{0,200})(?::([^\s/\"'<>\\]{1,300}))?@")
_AFTER_LOGIN = re.compile(r"login[ \t]+\S{1,200}\s{1,4}password[ \t]+(\S{3,300})")
_AFTER_USER = re.compile(r"(?:^|\s)(?:-u|--user)[ =]?[\"']?[^\s:\"'/]{1,100}:([^\s\"'\\]{3,300})")
_AFTER_P = re.compile(r"(?:mysql\w{0,20}|mariadb|sshpass)\b[^\n|;&]{0,200}?\s-p ?[\"']?([^\s\"'\\-][^\s\"'\\]{2,200})")
_AFTER_SCHEME = re.compile(r"(?i)\b(?:bearer|basic|token|apikey)[ \t]{1,4}([A-Za-z0-9._~+/=-]{12,4000})")
_IN_QUERY = re.compile(
    r"(?i)[?&](?:key|sig|signature|code|x-amz-signature|x-goog-signature)=([A-Za-z0-9%._~+/=-]{16,600})"
)
_ASSIGNED = re.compile(
    r"([A-Za-z_][\w.-]{0,60})\\{0,3}[\"']?[ \t]?[=:][ \t]?\\{0,3}[\"']?([A-Za-z0-9+/_-]{28,400}={0,2})"
)
_NOT_RANDOM_NAME = re.compile(
    r"(?i)(?:sha\d*|hash|digest|checksum|integrity|commit|uuid|guid|etag|rev|ref|path|url|data|content|image|signature|src|fingerprint|id|name)$"
)


def find_placed(text: str) -> Iterator[Span]:
    """Secrets that are told by where they stand: in addresses, headers and flags, or by being random."""
    if "://" in text:
        for found in _IN_ADDRESS.finditer(text):
            yield from _find_in_address(found)
        for found in _IN_QUERY.finditer(text):
            if looks_random(found[1]):
                yield Span(*found.span(1), "TOKEN")
    for form in (_AFTER_LOGIN, _AFTER_USER, _AFTER_P):
        for found in form.finditer(text):
            if not _REFERENCE.search(found[1]) and found[1].lower() not in _PLAIN_WORDS:
                yield Span(*found.span(1), "PASSWORD")
    for found in _AFTER_SCHEME.finditer(text):
        if looks_random(found[1]) and not _REFERENCE.search(found[1][:200]):
            yield Span(*found.span(1), "TOKEN")
    for found in _ASSIGNED.finditer(text):
        if not _NOT_RANDOM_NAME.search(found[1]) and _is_mixed(found[2]):
            yield Span(*found.span(2), "SECRET")


def _find_in_address(found: re.Match[str]) -> Iterator[Span]:
    password = found[2]
    if password is not None:
        if not _REFERENCE.search(password) and password.lower() not in _PLAIN_WORDS:
            yield Span(*found.span(2), "PASSWORD")
    elif len(found[1]) >= 16 and looks_random(found[1]):
        yield Span(*found.span(1), "TOKEN")


def _is_mixed(value: str) -> bool:
    """Whether a long value has letters of both cases and digits, as random ones do and words and hashes do not."""
    kinds = (any(map(str.isupper, value)), any(map(str.islower, value)), sum(map(str.isdigit, value)) >= 2)
    return all(kinds) and "/" not in value[:1] and value.count("/") < 4 and measure_entropy(value) >= 4.2


def find_secrets(text: str) -> Iterator[Span]:
    """All of them. Spans may overlap."""
    yield from find_keys(text)
    yield from find_named(text)
    yield from find_placed(text)
