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


class PrivateSpan(NamedTuple):
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
    # prefix, and what follows it; OpenAI, Anthropic, OpenRouter, DeepSeek, …
    *((start, r"(?=[a-z_-]{0,60}[A-Z0-9])[A-Za-z0-9_-]{20,300}") for start in ("sk-", "pk-", "rk-")),
    *((start, r"(?:live|test)_[A-Za-z0-9]{10,200}") for start in ("sk_", "rk_", "pk_")),  # Stripe
    ("whsec_", r"[A-Za-z0-9+/=]{16,200}"),
    *((start, r"[0-9A-Z]{16}(?![0-9A-Za-z])") for start in ("AKIA", "ASIA", "AGPA", "AIDA", "AROA", "ABIA")),  # AWS
    ("gh", r"[pousr]_[A-Za-z0-9]{30,255}"),
    ("github_pat_", r"[A-Za-z0-9_]{30,255}"),
    ("gl", r"(?:pat|dt|rt|ptt|cbt|soat|oas|agent)-[A-Za-z0-9_-]{20,200}"),
    ("xox", r"[abceoprs]-[A-Za-z0-9-]{10,300}"),  # Slack
    ("xapp-", r"[A-Za-z0-9-]{10,300}"),
    ("AIza", r"[0-9A-Za-z_-]{30,60}"),  # Google
    ("ya29.", r"[0-9A-Za-z_-]{20,2000}"),
    ("GOCSPX-", r"[0-9A-Za-z_-]{20,60}"),
    ("hf_", r"[A-Za-z0-9]{30,60}"),
    ("npm_", r"[A-Za-z0-9]{36}"),
    ("pypi-", r"[A-Za-z0-9_-]{50,400}"),
    ("SG.", r"[A-Za-z0-9_-]{16,64}\.[A-Za-z0-9_-]{16,100}"),  # SendGrid
    *((start, r"[0-9a-f]{32}(?![0-9A-Za-z])") for start in ("SK", "AC", "key-", "dapi")),  # Twilio, Mailgun, Databricks
    *((start, r"[0-9a-f]{40,80}") for start in ("dop_v1_", "doo_v1_", "dor_v1_")),
    *(
        (start, r"[A-Za-z0-9_-]{20,300}")
        for start in (
            "gsk_", "xai-", "pplx-", "r8_", "fw_", "figd_", "sntrys_", "phx_", "lin_api_", "ntn_", "rubygems_", "sbp_",
            "tvly-", "nvapi-", "PMAK-", "hvs.", "hvb.", "dp.pt.", "dp.st.", "dp.ct.", "sq0atp-", "sq0csp-", "sq0idp-",
            "dckr_pat_", "dckr_oat_", "pscale_tkn_", "pscale_pw_", "glsa_", "glc_", "HRKU-", "csk-", "wandb_v1_",
            "nfp_",
        )
    ),
    ("shp", r"(?:at|ca|pa|ss)_[0-9a-fA-F]{32}"),
    ("ATATT3", r"[A-Za-z0-9_=-]{50,300}"),
    ("AGE-SECRET-KEY-1", r"[0-9A-Z]{50,60}"),
    ("EAA", r"[A-Za-z0-9]{60,300}"),  # Meta
    *((start, r"[A-Z0-9]{20,40}") for start in ("NRAK-", "NRII-")),  # New Relic
    *((start, r"[0-9a-f]{32,64}") for start in ("lsv2_pt_", "lsv2_sk_", "pul-")),
    ("secret_", r"[A-Za-z0-9]{43}(?![0-9A-Za-z])"),  # Notion
    ("pat", r"[A-Za-z0-9]{14}\.[A-Za-z0-9]{40,80}"),  # Airtable
    ("v1.0-", r"[0-9A-Za-z]{24}-[0-9A-Za-z]{100,200}"),  # Cloudflare
    ("re_", r"(?=[A-Za-z0-9_]{0,30}\d)(?=[A-Za-z0-9_]{0,30}[A-Z])[A-Za-z0-9]{8,30}(?:_[A-Za-z0-9]{20,30})?"),  # Resend
)  # fmt: skip
_KEY_FORMS = [(prefix, re.compile(re.escape(prefix) + rest)) for prefix, rest in _KEYS]
_BOT_KEY = re.compile(r":AA[A-Za-z0-9_-]{32,34}(?![A-Za-z0-9_-])")  # Telegram
_LIST_KEY = re.compile(r"-us\d{1,2}(?!\d)")  # Mailchimp
_OTHER_KEYS = (
    (".atlasv1.", re.compile(r"(?<![\w.])[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=-]{60,70}")),  # Terraform
    (".", re.compile(r"(?<![\w.-])[MNO][\w-]{23,27}\.[\w-]{6}\.[\w-]{27,40}(?![\w.-])")),  # Discord
    ("fm", re.compile(r"(?<![\w.-])fm[12][a-z]?_[A-Za-z0-9+/]{40,4000}={0,2}")),  # Fly
    ("_", re.compile(r"(?<![\w./+=-])[A-Za-z]{2,12}_(?:[A-Za-z0-9]{1,8}_)?([A-Za-z0-9]{30,200})(?![\w.(=-])")),
)
"""The last one is for those that are not known: a short prefix, and many random letters."""
_HASHED = re.compile(
    r"\$(?:1|2[abxy]?|5|6|7|y|apr1|argon2id?|scrypt)\$(?:[^\s$:'\"]{1,60}\$){0,3}[./A-Za-z0-9+]{20,120}"
)
"""A password as systems keep it: `/etc/shadow`, `.htpasswd`."""
_PUTTY = re.compile(r"Private-Lines: \d{1,3}((?:(?:\r?\n|\\r?\\?n)[A-Za-z0-9+/]{8,80}={0,2}){1,100})")
_MORE = re.compile(r"(?:\\?\r?\n|\\{1,2}n)[ \t]{0,20}([A-Za-z0-9_-]{6,200})(?![A-Za-z0-9_.(:=/-])")
_MOST_LINES = 8
_TOKEN = re.compile(r"eyJ[A-Za-z0-9_-]{8,8000}\.[A-Za-z0-9_-]{8,8000}(?:\.[A-Za-z0-9_-]{0,8000}){0,3}")
_HOOK = re.compile(
    r"(?:hooks\.slack\.com/(?:services|workflows|triggers)/|discord(?:app)?\.com/api/webhooks/)"
    r"([A-Za-z0-9_/-]{16,300})"
)


_COLOUR = re.compile(r"(?i:\\u001b|\\x1b|\\033|\\e|\x1b)\[[\d;]{0,12}[mK]$")
"""A sign of a terminal before a value, as text of JSON or of a shell has it."""


def begins(text: str, start: int) -> bool:
    """Whether a value may begin at a place: after no letter, or after the escape of a line end in JSON text."""
    before = text[start - 1 : start]
    if before.isalnum() or before == "_":
        return text[max(0, start - 2) : start] in ("\\n", "\\r", "\\t") or bool(
            _COLOUR.search(text, max(0, start - 24), start)
        )
    return not (before == "\\" and text[start] in "nrt")


def find_keys(text: str) -> Iterator[PrivateSpan]:
    """Keys, tokens and private keys that are told by their form."""
    if "PRIVATE KEY" in text:
        for found in _PRIVATE_KEY.finditer(text):
            yield PrivateSpan(found.start(), _find_key_end(text, found.end()), "PRIVATE_KEY")
    for prefix, form in _KEY_FORMS:
        if prefix in text:
            for found in form.finditer(text):
                if begins(text, found.start()):
                    yield PrivateSpan(found.start(), _find_last_line(text, found.end()), "KEY")
    for hint, form in _OTHER_KEYS:
        for found in form.finditer(text) if hint in text else ():
            if found.lastindex is None or _is_mixed(found[1]):
                yield PrivateSpan(_skip_escape(text, found.start()), found.end(), "KEY")
    if "$" in text:
        for found in _HASHED.finditer(text):
            yield PrivateSpan(*found.span(), "SECRET")
    if "Private-Lines" in text:
        for found in _PUTTY.finditer(text):
            yield PrivateSpan(*found.span(1), "PRIVATE_KEY")
    for form, before, chars in ((_BOT_KEY, "0123456789", 10), (_LIST_KEY, "0123456789abcdef", 32)):
        for found in form.finditer(text):
            start = found.start()
            length = len(text[max(0, start - chars) : start]) - len(text[max(0, start - chars) : start].rstrip(before))
            if length == chars or (form is _BOT_KEY and length >= 8):
                yield PrivateSpan(start - length, found.end(), "KEY")
    if "eyJ" in text:
        for place in find_all(text, "eyJ"):
            if begins(text, place) and (found := _TOKEN.match(text, place)):
                yield PrivateSpan(*found.span(), "TOKEN")
    if "webhooks/" in text or "hooks.slack" in text:
        for found in _HOOK.finditer(text):
            yield PrivateSpan(*found.span(1), "TOKEN")


def _skip_escape(text: str, start: int) -> int:
    """Where a value begins: the `n` of an escaped line end before it is no part of it."""
    return start + (text[max(0, start - 1) : start + 1] in ("\\n", "\\r", "\\t"))


def _find_last_line(text: str, end: int) -> int:
    """The end of a key that a terminal or a mail has broken into lines: lines of random letters belong to it."""
    for _ in range(_MOST_LINES):
        more = _MORE.match(text, end)
        if not more or not _is_rest(more[1]):
            break
        end = more.end()
    return end


def _is_rest(line: str) -> bool:
    """Whether a line after a key is a part of it."""
    kinds = any(map(str.isupper, line)), any(map(str.islower, line)), any(map(str.isdigit, line))
    return all(kinds) and measure_entropy(line) >= 2.5


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
    r"pass(?:word|wort|wd|phrase|code)?|kennwort|contrase(?:ñ|\\u00f1|n)a|mot de passe|senha|pwd|pw|"
    r"secret|token|api[ _-]?key|access[ _-]?(?:key|token)|private[_-]?key|"
    r"secret[_-]?key|account[_-]?key|encryption[_-]?key|signing[_-]?key|auth[_-]?key|client[_-]?key|ssh[_-]?key|"
    r"authorization|credentials?|cookie|session[_-]?id|sessionid|csrf|jwt|bearer|salt|license[_-]?key"
)
_FIRST = (
    "pass", "kennwort", "contrase", "mot de passe", "senha", "pwd", "pw",
    "secret", "token", "api", "access", "private", "account", "encryption", "signing", "auth", "client",
    "ssh", "credential", "cookie", "session", "csrf", "jwt", "bearer", "salt", "license",
)  # fmt: skip
"""How those words begin."""
_NAMED = re.compile(
    rf"(?i)({_WORDS})([\w-]{{0,40}}?)"
    r"(\\{0,3}[\"'`]?\]?[ \t]{0,20}(?::=|=>|==?|:)[ \t]{0,20}|[ \t]{1,4}(?:is|ist|es|est)[ \t]{1,4}|[ \t]{1,4})"
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
_STAND_INS = """
password passwd passphrase pass secret token string str text none null nil true false undefined unset empty hidden
required optional changeme change-me placeholder redacted masked test testing dummy fake example sample value key
apikey api-key api_key number integer int float bool boolean bytes any object array list dict default basic bearer
digest cookie type env admin root user username guest foo bar baz secretstr password123
"""
_PLAIN_WORDS = frozenset(_STAND_INS.split())
_REFERENCE = re.compile(
    r"^(?:\+?[<{]|\[[\"']|\$(?:[A-Za-z_]\w*(?:$|/)|[{(])|%(?:[sdr]$|[({]|[A-Z_]+%$)|\*+$)|\.{3}|…|\*{3}"
    r"|(?i:x{4,}|your|example|placeholder|redacted|os\.environ|getenv|process\.env|secrets\.|https?://|^sha\d+[:-])"
)
"""What stands for a secret, or names where it is kept."""
_CODE = re.compile(
    r"[A-Za-z_][\w.]*(?:\(|\[|->|=>|::)|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+$|[A-Za-z_]+(?:[_-][A-Za-z]+)*$|_?[a-z]+(?:_[a-z]+)+\d{0,2}$|[-+]?[\d.,_:]+$|[./~]"
)


def find_named(text: str) -> Iterator[PrivateSpan]:
    """Values that stand after a telling name: in assignments, YAML, JSON, flags, and `the password is …`."""
    for found in _find_names(text):
        left = _find_left(text, found.start())
        start, end, quoted = _find_value(text, found, left)
        if start < end and _is_given(text, found, left, start, quoted, text[start:end]):
            yield PrivateSpan(start, end, _name_kind(found[1]))


def lower_ascii(text: str) -> str:
    """The text in lower case, with every character at its place."""
    lower = text.lower()
    return lower if len(lower) == len(text) else "".join(each.lower() if each.isascii() else each for each in text)


def _find_names(text: str) -> Iterator[re.Match[str]]:
    """The telling names in a text. To look for words first is twenty times as fast as the pattern alone."""
    lower, end = lower_ascii(text), 0
    places = sorted({found for word in _FIRST for found in find_all(lower, word)})
    for place in places:
        if place >= end and (found := _NAMED.match(text, place)):
            end = found.end(2)
            yield found


def find_all(text: str, word: str) -> Iterator[int]:
    """Every place of a word in a text."""
    place = text.find(word)
    while place >= 0:
        yield place
        place = text.find(word, place + 1)


def _find_left(text: str, end: int) -> str:
    """The part of a name before the word that tells."""
    found = _LEFT.search(text, max(0, end - 60), end)
    left = found[0] if found else ""
    escaped = left[:1] in ("n", "r", "t") and text[max(0, end - len(left) - 1) : end - len(left)] == "\\"
    return left[1:] if escaped else left


def is_secret_value(name: str, value: str) -> bool:
    """Whether a value is a secret, because of the name of its field."""
    found = _NAMED.search(f"{name}: ")
    return bool(found) and _is_secret(name, found[1], value, quoted=True, loose=False)  # pyright: ignore[reportOptionalSubscript]


def name_secret(name: str) -> str:
    """The kind of a secret value of a field."""
    found = _NAMED.search(f"{name}: ")
    return _name_kind(found[1]) if found else "SECRET"


def _names_password(word: str) -> bool:
    return word.lower().startswith(("pass", "kennwort", "contrase", "mot de passe", "senha", "pw"))


def _name_kind(word: str) -> str:
    word = word.lower()
    if _names_password(word):
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
    if found[1].lower() == "pass" and _PASS_IN_A_WORD.search(left):
        return False
    if found[1].lower() == "pw" and left[-1:].isalpha():
        return False
    if _continues(text, found.end(1)) or text[max(0, found.start() - 1) : found.start()] == "/":  # another word; a path
        return False
    link = found[3].strip()
    name = left + found[1] + found[2]
    if not link:  # only a flag has its value after a space
        flag = re.search(r"(?:^|\s|[\"'`])--?[\w-]{0,60}$", text[max(0, found.start() - 70) : found.start()])
        if not flag or value.startswith("-"):
            return False
        return _is_secret(name, found[1], value, quoted=True, loose=False)
    if link in ("is", "ist", "es", "est"):
        return not quoted and _is_odd(value.rstrip(".!?"))
    upper = name == name.upper() and any(letter.isalpha() for letter in name)
    return _is_secret(name, found[1], value, quoted=quoted or (upper and found[3] == "="), loose=not quoted)


_PASS_IN_A_WORD = re.compile(r"(?i)(?:com|by|tres|sur|over|under|im)$")


def _continues(text: str, end: int) -> bool:
    """Whether a word goes on, as `PASS` does in `PASSED`. A plural is the same word."""
    last, after = text[end - 1 : end], text[end : end + 1]
    return after.isalpha() and after.isupper() == last.isupper() and after not in ("s", "S")


def _is_secret(name: str, word: str, value: str, *, quoted: bool, loose: bool) -> bool:
    """Whether a value is a secret. `quoted`: it is a text and no code. `loose`: it may have marks around it."""
    value = value.strip()
    if loose:
        value = value.rstrip(".,;:")
    if len(value) < 4 or is_stand_in(value):
        return False
    if name in ("PWD", "OLDPWD") or (_NOT_SECRET_NAME.search(name) and not _MAYBE_ID.search(name)):
        return False
    if _names_password(word):
        if quoted:
            return " " not in value or "phrase" in word.lower()
        return _is_odd(value)
    upper = quoted and name == name.upper()
    if " " in value and word.lower() not in ("cookie", "authorization") and not (upper and _is_odd(value)):
        return False
    if upper and len(value) >= 8:
        return not _CODE.match(value) or (value.isalpha() and measure_entropy(value) > 3.0)
    return looks_random(value)


def _is_odd(value: str) -> bool:
    """Whether a bare word is more likely a password than a word of a text or of code."""
    if len(value) < 6 or _CODE.match(value) or _REFERENCE.search(value):
        return False
    return any(letter.isdigit() or letter in "!@#$%^&*?~" for letter in value) and any(map(str.isalpha, value))


def looks_random(value: str) -> bool:
    """Whether a value is no word and no name."""
    if len(value) < 8 or (_CODE.match(value) and not _is_base64(value)):
        return False
    digits = sum(letter.isdigit() for letter in value)
    if digits >= 2 or (digits and not value.islower() and not value.isupper()):
        return measure_entropy(value) >= 2.5
    return measure_entropy(value) >= (3.0 if digits else 3.5) and (digits > 0 or len(value) >= 20)


def _is_base64(value: str) -> bool:
    """Whether a value that begins as a path does is random letters of base64."""
    kinds = any(map(str.isupper, value)), any(map(str.islower, value)), any(map(str.isdigit, value))
    return len(value) >= 32 and all(kinds) and not set(value) & set("._~-") and measure_entropy(value) >= 4.2


def measure_entropy(text: str) -> float:
    """Bits per character."""
    counts = Counter(text)
    return -sum(n / len(text) * math.log2(n / len(text)) for n in counts.values())


_IN_ADDRESS = re.compile(r"://([^\s/:@\"'<>\\]{0,200})(?::([^\s/\"'<>\\]{1,300}))?@")
_AFTER_LOGIN = re.compile(r"login[ \t]+\S{1,200}\s{1,4}password[ \t]+(\S{3,300})")
_AFTER_USER = re.compile(r"-(?:u|-user)[ =]?[\"']?[^\s:\"'/]{1,100}:([^\s\"'\\]{3,300})")
_AFTER_P = re.compile(
    r"(?:\bmysql\w*|mariadb|sshpass|mongo(?:sh|dump|restore|export|import)?|"
    r"(?:docker|podman|helm|oras|az|oc) [\w ]{0,20}login)\b"
    r"[^\n|;&]{0,200}?\s-p ?[\"']?([^\s\"'\\-][^\s\"'\\]{2,200})"
)
_WORD = r"[\"']?([^\s\"'\\|]{3,300})"
_IN_COMMAND = (
    ("redis-cli", re.compile(rf"redis-cli\b[^\n|;&]{{0,200}}?\s(?:-a|--pass)[ \t]{_WORD}")),
    ("htpasswd", re.compile(
        rf"htpasswd[ \t]+-\w*b\w*(?:[ \t]+-\w+){{0,3}}[ \t]+(?:[^\s|;&]{{1,200}}[ \t]+){{1,2}}{_WORD}"
    )),
    ("<<<", re.compile(rf"(?:stdin|with-token|-S\b[^\n<]{{0,100}})[ \t]?<<<[ \t]?{_WORD}")),
    ("echo", re.compile(
        rf"(?:\b|(?<=\\n))echo[ \t]+(?:-\w+[ \t]+)?{_WORD}\\?[\"']?[ \t]*\|[^\n|]{{0,200}}?"
        r"(?:\bsudo\b[^\n|]{0,40}? -S\b|stdin\b|--with-token\b)"
    )),
    ("SecureString", re.compile(rf"ConvertTo-SecureString[ \t]+(?:-String[ \t]+)?\\?{_WORD}")),
)  # fmt: skip
_SET = re.compile(
    r"(?:\b|(?<=\\n))(?:set|setx|add|put)[ \t]+(?:-\w+[ \t]+)?([A-Za-z][\w.-]{2,60})[ \t]+\\?[\"']?([^\s\"'\\|]{8,300})"
)
"""`aws configure set NAME VALUE`, `setx NAME VALUE`."""
_ELEMENT = re.compile(r"<([A-Za-z][\w.:-]{1,60})(?: [^<>\n]{0,100})?>([^<>\s]{4,300})</")
_PGPASS = re.compile(r"(?<![^\s\"'])[\w.*-]{1,80}:\d{2,5}:[\w*-]{1,60}:[\w.*-]{1,60}:([^\s\"'\\]{6,100})(?![^\s\"'\\])")
_AFTER_SCHEME = re.compile(r"(?i)(?:bearer|basic|token|apikey)[ \t]{1,4}([A-Za-z0-9._~+/=-]{12,4000})")
_IN_QUERY = re.compile(
    r"[?&](?i:key|sig|signature|code|x-amz-signature|x-goog-signature)=([A-Za-z0-9%._~+/=-]{16,600})"
)
_ASSIGNED = re.compile(r"[=:][ \t]?\\{0,3}[\"']?([A-Za-z0-9+/_-]{28,400}={0,2})")
_LEFT_NAME = re.compile(r"([A-Za-z_][\w.-]{0,60})\\{0,3}[\"']?[ \t]?$")
_NOT_RANDOM_NAME = re.compile(
    r"(?i)(?:sha\d*|hash|digest|checksum|integrity|commit|uuid|guid|etag|rev|ref|path|url|data|content|image|signature|"
    r"src|fingerprint|id|name|repo|model)$"
)


def find_placed(text: str) -> Iterator[PrivateSpan]:
    """Secrets that are told by where they stand: in addresses, headers and flags, or by being random."""
    if "://" in text:
        for found in _IN_ADDRESS.finditer(text):
            yield from _find_in_address(found)
        for found in _IN_QUERY.finditer(text):
            if looks_random(found[1]):
                yield PrivateSpan(*found.span(1), "TOKEN")
    for hint, form in (("login", _AFTER_LOGIN), ("-u", _AFTER_USER), ("-p", _AFTER_P)):
        for found in form.finditer(text) if hint in text else ():
            before = text[max(0, found.start() - 1) : found.start()]
            if not (before.isalnum() or before == "-" or is_stand_in(found[1])):
                yield PrivateSpan(*found.span(1), "PASSWORD")
    for hint, form in _IN_COMMAND:
        for found in form.finditer(text) if hint in text else ():
            if not is_stand_in(found[1]):
                yield PrivateSpan(*found.span(1), "PASSWORD")
    for hint, form in (("</", _ELEMENT), (" ", _SET)):
        for found in form.finditer(text) if hint in text else ():
            if is_secret_value(found[1], found[2]) and (hint == "</" or looks_random(found[2])):
                yield PrivateSpan(*found.span(2), name_secret(found[1]))
    for found in _PGPASS.finditer(text):
        if _is_odd(found[1]):
            yield PrivateSpan(*found.span(1), "PASSWORD")
    lower = lower_ascii(text)
    for word in ("bearer ", "basic ", "token ", "apikey "):
        for place in find_all(lower, word):
            if (found := _AFTER_SCHEME.match(text, place)) and begins(text, place) and looks_random(found[1]):
                yield PrivateSpan(*found.span(1), "TOKEN")
    for found in _ASSIGNED.finditer(text):
        name = _LEFT_NAME.search(text, max(0, found.start() - 66), found.start())
        if name and not _NOT_RANDOM_NAME.search(name[1]) and _is_mixed(found[1]):
            yield PrivateSpan(*found.span(1), "SECRET")


def is_stand_in(value: str) -> bool:
    """Whether a value only stands for a secret: a variable, or a word such as `changeme`."""
    return bool(_REFERENCE.search(value[:300])) or value.lower() in _PLAIN_WORDS


def _find_in_address(found: re.Match[str]) -> Iterator[PrivateSpan]:
    password = found[2]
    if password is not None:
        if not is_stand_in(password):
            yield PrivateSpan(*found.span(2), "PASSWORD")
    elif len(found[1]) >= 16 and looks_random(found[1]):
        yield PrivateSpan(*found.span(1), "TOKEN")


_PICTURES = ("iVBORw0KGgo", "/9j/", "R0lGOD", "UklGR")
"""How pictures begin in base64."""


def _is_mixed(value: str) -> bool:
    """Whether a long value has letters of both cases and digits, as random ones do and words and hashes do not."""
    kinds = (any(map(str.isupper, value)), any(map(str.islower, value)), sum(map(str.isdigit, value)) >= 2)
    if value.startswith(_PICTURES):
        return False
    return all(kinds) and "/" not in value[:1] and value.count("/") < 4 and measure_entropy(value) >= 4.2


def find_secrets(text: str) -> Iterator[PrivateSpan]:
    """All of them. Spans may overlap."""
    yield from find_keys(text)
    yield from find_named(text)
    yield from find_placed(text)
