"""Personal data in a text, by its form: addresses, numbers, and the names of people where a program wrote them down.

What is reserved for examples, or is nobody's, is left: `user@example.com`, `git@`, loopback, `/home/user`. Pure, and
linear in the text.
"""

import ipaddress
import re
from collections.abc import Iterator

from ludus.secret_forms import PrivateSpan, begins, find_all, lower_ascii

# ---- e-mail -------------------------------------------------------------------------------------------------------

_LOCAL = re.compile(r"[\w.%+-]{1,64}$")
_DOMAIN = re.compile(r"((?:[^\W_](?:[^\W_-]|-(?=[^\W_]|-)){0,62}\.){1,6}[A-Za-z]{2,24})(?![A-Za-z0-9_(])")
_NOBODY = re.compile(r"(?i)(?:git|noreply|no-reply|donotreply|user|you|your[\w.-]*|name|email|someone|me)@")
_RESERVED = re.compile(r"(?i)(?:^|\.)(?:example(?:\.(?:com|org|net|edu))?|test|invalid|localhost|local)$")
_NOT_A_DOMAIN = re.compile(
    r"(?i)\.(?:service|socket|timer|target|mount|png|jpe?g|gif|svg|webp|js|mjs|ts|json|html?|css|txt|ya?ml|toml|lock|"
    r"setter|getter|deleter|register|fixture|mark|overload)$"
)
_SENDER = re.compile(r"((?:[A-Z][\w'’.-]{0,30} ){1,3}[A-Z][\w'’.-]{1,30}) ?\\?<$")
_AUTHOR = re.compile(
    r"(?:Author|Commit|Committer|Co-authored-by|Signed-off-by|Reviewed-by|From): {1,4}([^\n<>:]{2,60}?) ?\\?<$", re.I
)


_IN_LOGIN = re.compile(r"://[^\s/@\"']{0,60}:[^\s@/\"']{0,60}$")


def _find_emails(text: str) -> Iterator[PrivateSpan]:
    at = text.find("@")
    while at >= 0:
        yield from _find_email(text, at)
        at = text.find("@", at + 1)


def _find_email(text: str, at: int) -> Iterator[PrivateSpan]:
    """The address around an `@`, and the name before it."""
    local, domain = _LOCAL.search(text, max(0, at - 64), at), _DOMAIN.match(text, at + 1)
    if not local or not domain or _RESERVED.search(domain[1]) or _NOT_A_DOMAIN.search(domain[1]):
        return
    start = local.start()
    while start < at and (not begins(text, start) or text[start] in ".%+-"):
        start += 1
    before = text[max(0, start - 100) : start]
    if _IN_LOGIN.search(before):  # the password of an address on the web, and its host
        return
    nobody = _NOBODY.match(text, start)
    if not (nobody and "reply" in nobody[0]) and (who := _AUTHOR.search(before) or _SENDER.search(before)):
        yield PrivateSpan(who.start(1) + start - len(before), who.end(1) + start - len(before), "NAME")
    if start < at and not nobody:
        yield PrivateSpan(start, domain.end(), "EMAIL")


# ---- numbers ------------------------------------------------------------------------------------------------------

_PHONE = re.compile(
    r"[+(2-9](?<![\w.+/=-].)(?:(?<=\+)[1-9]\d{0,2}[ .-]?(?:\(\d{1,4}\)[ .-]?)?\d{1,4}(?:[ .-]?\d{2,4}){1,4}"
    r"|(?<=\()[2-9]\d{2}\) ?[2-9]\d{2}-\d{4}|(?<=[2-9])\d{2}([.-])[2-9]\d{2}\1\d{4})(?![\w-]|\.\d)"
)
_LABELLED = re.compile(
    r"(?i)(?:phone|telephone|tel|mobile|cell|fax|whatsapp)(?:[ _-]?(?:number|no\.?))?\\?[\"']?\s{0,2}[:=]\s{0,2}"
    r"\\?[\"']?(\+?[\d(][\d ()./-]{5,20}\d)(?!\d)"
)
_LABELS = ("phone", "tel", "mobile", "cell", "fax", "whatsapp")
_CARD = re.compile(
    r"[2-6](?<![\w.+-].)(?:\d{3}(?:[ -]?\d{4}){2}[ -]?\d{1,7}|(?<=3)[47]\d{2}[ -]?\d{6}[ -]?\d{5})(?![\w-]|\.\d)"
)
_IBAN = re.compile(r"[A-Z](?<![A-Za-z0-9].)[A-Z]\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?(?![A-Za-z0-9])")
_IBAN_LENGTHS = {
    int(length): countries.split()
    for length, countries in (
        row.split(":")
        for row in (
            "15:NO", "16:BE BI", "18:DK FI FO GL NL SD", "19:MK SI", "20:AT BA EE KZ LT LU XK", "21:CH CR HR LI LV",
            "22:BG BH DE GB GE IE ME RS", "23:AE GI IL IQ OM SO TL", "24:AD CZ ES MD PK RO SA SE SK TN VG",
            "25:LY PT ST", "26:IS TR", "27:FR GR IT MC MR SM", "28:AL AZ BY CY DO GT HU LB NI PL SV",
            "29:BR EG PS QA UA", "30:JO KW MU", "31:MT SC", "33:LC RU",
        )
    )
}  # fmt: skip
_LENGTH = {country: length for length, countries in _IBAN_LENGTHS.items() for country in countries}


def _find_numbers(text: str) -> Iterator[PrivateSpan]:
    for found in _CARD.finditer(text):
        if passes_luhn(found[0]):
            yield PrivateSpan(*found.span(), "CARD")
    for found in _IBAN.finditer(text):
        if end := _find_iban_end(found[0]):
            yield PrivateSpan(found.start(), found.start() + end, "IBAN")
    for found in _PHONE.finditer(text):
        if 8 <= sum(map(str.isdigit, found[0])) <= 15:
            yield PrivateSpan(*found.span(), "PHONE")
    for found in _SOCIAL.finditer(text):
        yield PrivateSpan(*found.span(1), "ID")
    lower = lower_ascii(text)
    for place in (place for label in _LABELS for place in find_all(lower, label)):
        if found := _LABELLED.match(text, place):
            yield PrivateSpan(*found.span(1), "PHONE")


_SOCIAL = re.compile(
    r"(?i)(?:(?<![A-Za-z0-9])|(?<=\\n))(?:ssn|social[ _-]security)[^\n\d]{0,24}"
    r"((?!000|666|9)\d{3}[- ](?!00)\d{2}[- ](?!0000)\d{4})(?![\w-])"
)


def passes_luhn(text: str) -> bool:
    """Whether the digits of a text have the check digit of a card, and are as many as a card has."""
    digits = [int(digit) for digit in text if digit.isdigit()]
    if not 13 <= len(digits) <= 19 or len(set(digits)) < 2:
        return False
    doubled = (sum(divmod(2 * digit, 10)) for digit in digits[-2::-2])
    return (sum(doubled) + sum(digits[-1::-2])) % 10 == 0


def _find_iban_end(text: str) -> int:
    """The length of the account number at the start of a text; 0 if there is none. Words may follow it."""
    wanted = _LENGTH.get(text[:2], 0)
    places = [place for place, letter in enumerate(text) if letter != " "]
    if not wanted or len(places) < wanted:
        return 0
    end = places[wanted - 1] + 1
    plain = text[:end].replace(" ", "")
    return end if int("".join(str(int(letter, 36)) for letter in plain[4:] + plain[:4])) % 97 == 1 else 0


# ---- addresses of machines ----------------------------------------------------------------------------------------

_IPV4 = re.compile(r"\d(?<![\w.].)\d{0,2}\.(?:\d{1,3}\.){2}\d{1,3}(?![\w]|\.\d)")
_IPV6 = re.compile(
    r"[0-9A-Fa-f](?<![\w:.].)[0-9A-Fa-f]{0,3}:{1,2}(?:[0-9A-Fa-f]{1,4}:{1,2}){0,6}(?:[0-9A-Fa-f]{1,4}|(?:\d{1,3}\.){3}\d{1,3})?(?![\w:])"
)
_VERSION_BEFORE = re.compile(
    r"(?i)(?:(?:==|>=|<=|~=|\bv|version[\"': ]{1,4}|section[- ])|(?:Chrome|Chromium|Edge?|Version|Safari|OPR)/)$"
)
_EXAMPLES = [
    ipaddress.ip_network(net) for net in ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32")
]


def _find_machines(text: str) -> Iterator[PrivateSpan]:
    for found in _IPV4.finditer(text):
        if _is_somebody(found[0]) and not _VERSION_BEFORE.search(text[max(0, found.start() - 12) : found.start()]):
            yield PrivateSpan(*found.span(), "IP")
    if "::" in text or text.count(":") >= 7:
        for found in _IPV6.finditer(text):
            if _is_long(found[0]) and _is_somebody(found[0]):
                yield PrivateSpan(*found.span(), "IP")


def _is_long(text: str) -> bool:
    """Whether a text is more than a slice or a name with `::` in it."""
    first = text.partition(":")[0]
    return text.count(":") >= 4 or (len(first) >= 3 and any(map(str.isdigit, text)) and first[0] in "23fF")


def _is_somebody(text: str) -> bool:
    """Whether an address is one of a machine, and no mask or example."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    if address.is_loopback or address.is_unspecified or address.is_multicast or text.startswith(("255.", "0.")):
        return False
    return not any(address in net for net in _EXAMPLES if net.version == address.version)


# ---- people -------------------------------------------------------------------------------------------------------

_END = r"(?=[^\w.-]|\.?$|\.\s)"
_PROMPT = re.compile(
    r"(?m)(?:^|\\n|[\s(\"'])[ \t\[]{0,3}([a-z][a-z0-9_.-]{1,31})@[\w.-]{1,60}[: ](?:~|/)[^\s$#%]{0,200}\]?[$#%] "
)
"""`user@machine:~/project$ `, as a terminal shows it."""
_LISTED = re.compile(
    r"(?m)(?:^|\\n|[ \t\"'])[-dlbcps][-r][-w][-xsS][-rwxsS]{3}[-rwxtT]{3}[.+@]?[ \t]+"
    r"\d{1,6}[ \t]+([A-Za-z_][\w.-]{0,31})(?=[ \t])"
)
"""The owner in a line of `ls -l`."""
_HOMES = (
    ("/home/", re.compile(rf"/home/([A-Za-z0-9][\w.-]{{0,63}}?){_END}")),
    ("/Users/", re.compile(rf"/Users/([A-Za-z0-9][\w.-]{{0,63}}?){_END}")),
    ("Users\\", re.compile(rf":\\{{1,4}}Users\\{{1,4}}([A-Za-z0-9][\w.-]{{0,63}}?){_END}")),
    ("projects/-", re.compile(r"projects/-(?:home|Users)-([A-Za-z0-9_.]{1,64})")),
    ("USER=", re.compile(r"(?<![A-Z])(?:SUDO_)?USER=[\"']?([A-Za-z0-9][\w.-]{0,63})")),
    ("@", _PROMPT),
    ("rw", _LISTED),
    ("LOGNAME=", re.compile(r"LOGNAME=[\"']?([A-Za-z0-9][\w.-]{0,63})")),
    ("USERNAME=", re.compile(r"(?<![A-Z_])USERNAME=[\"']?([A-Za-z0-9][\w.-]{0,63})")),
)
_WHO = r"([^\W\d_][^\n\"'\\<>{}()=;]{1,60}?)(?=[\n\"'\\<>;]|$)"
_REAL_NAMES = (
    ("user.name", re.compile(rf"user\.name[\"']?(?:[ \t]{{1,4}}|[ \t]?=[ \t]?)\\{{0,3}}[\"']?{_WHO}")),
    ("_NAME=", re.compile(rf"GIT_(?:AUTHOR|COMMITTER)_NAME=\\{{0,3}}[\"']?{_WHO}")),
    ("Git user: ", re.compile(rf"Git user: {_WHO}")),
    ("name", re.compile(
        r"\"(?i:full_?name|display_?name|given_?name|family_?name|first_?name|last_?name|user_?full_?name)"
        rf"\\{{0,3}}\"\s?:\s?\\{{0,3}}\"{_WHO}"
    )),
)  # fmt: skip
_NAMES_OF_NOBODY = """
user users username yourname your-name you me root admin administrator ubuntu debian runner runneradmin node app
agent shared public guest default vagrant circleci travis jovyan vscode codespace gitpod build builder worker
docker container sandbox nobody ci linuxbrew someone name foo bar jenkins deploy ec2-user
ftp daemon mail www-data nginx mysql postgres redis bin sys staff wheel
"""
NO_PERSON = frozenset(_NAMES_OF_NOBODY.split())
"""Names of accounts that are nobody's name."""


def _find_people(text: str) -> Iterator[PrivateSpan]:
    for kind, forms in (("USER", _HOMES), ("NAME", _REAL_NAMES)):
        for hint, form in forms:
            for found in form.finditer(text) if hint in text else ():
                if (name := found[1].rstrip()).lower() not in NO_PERSON:
                    yield PrivateSpan(found.start(1), found.start(1) + len(name), kind)


def find_personal_data(text: str) -> Iterator[PrivateSpan]:
    """All of it. Spans may overlap."""
    if "@" in text:
        yield from _find_emails(text)
    yield from _find_numbers(text)
    yield from _find_machines(text)
    yield from _find_people(text)
