"""Masking: no planted secret survives, placeholders are stable, masking twice changes nothing, code is left alone."""

import base64
import json
import random
import string
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.transcripts_kit import PIXEL

from ludus.encoding import to_json
from ludus.transcripts.masking import list_spans, mask_session, mask_text
from ludus.transcripts.past_session import PastSession, PastSkill
from ludus.types import Call, Image, Message, Reasoning, Score

ROOT = Path(__file__).parent.parent.parent
LETTERS = string.ascii_letters + string.digits


def draw(chance: random.Random, length: int, letters: str = LETTERS) -> str:
    """A random text with a digit in it."""
    return "".join(chance.choice(letters) for _ in range(length - 1)) + chance.choice("0123456789")


def draw_card(chance: random.Random) -> str:
    digits = [4, *(chance.randrange(10) for _ in range(14))]
    total = sum(sum(divmod(2 * digit, 10)) if place % 2 == 0 else digit for place, digit in enumerate(digits))
    plain = "".join(map(str, [*digits, -total % 10]))
    return " ".join(plain[place : place + 4] for place in range(0, 16, 4)) if chance.random() < 0.5 else plain


def draw_iban(chance: random.Random) -> str:
    account = "".join(str(chance.randrange(10)) for _ in range(18))
    return f"DE{98 - int(account + '131400') % 97:02}{account}"


def draw_name(chance: random.Random) -> str:
    return "".join(chance.choice("bcdfgklmnprst") + chance.choice("aeiou") for _ in range(3))


def draw_key_block(chance: random.Random) -> str:
    lines = [draw(chance, 64, LETTERS + "+/") for _ in range(3)]
    return "\n".join(["-----BEGIN OPENSSH PRIVATE KEY-----", *lines, "-----END OPENSSH PRIVATE KEY-----"])


Draw = Callable[[random.Random], str]
PLANTS: dict[str, tuple[Draw, str]] = {
    "openai": (lambda c: f"sk-proj-{draw(c, 40)}", "the key is {}"),
    "anthropic": (lambda c: f"sk-ant-api03-{draw(c, 60, LETTERS + '_')}", "x-api-key: {}"),
    "aws id": (lambda c: f"AKIA{draw(c, 16, string.ascii_uppercase)}", "{}"),
    "aws secret": (lambda c: draw(c, 40, LETTERS + "+/"), "aws_secret_access_key = {}"),
    "github": (lambda c: f"ghp_{draw(c, 36)}", "git clone https://{}@github.com/x/y"),
    "github fine": (lambda c: f"github_pat_{draw(c, 60)}", "{}"),
    "gitlab": (lambda c: f"glpat-{draw(c, 20)}", "--header 'PRIVATE-TOKEN: {}'"),
    "slack": (lambda c: f"xoxb-{draw(c, 30)}", "slack {}"),
    "slack hook": (lambda c: f"T{draw(c, 8)}/B{draw(c, 8)}/{draw(c, 24)}", "https://hooks.slack.com/services/{}"),
    "google": (lambda c: f"AIza{draw(c, 35)}", "?key={}"),
    "stripe": (lambda c: f"sk_live_{draw(c, 24)}", "{}"),
    "hugging face": (lambda c: f"hf_{draw(c, 34)}", "huggingface-cli login --token {}"),
    "npm": (lambda c: f"npm_{draw(c, 36)}", "//registry/:_authToken={}"),
    "jwt": (lambda c: f"eyJ{draw(c, 20)}.eyJ{draw(c, 40)}.{draw(c, 43)}", "Authorization: Bearer {}"),
    "telegram": (lambda c: f"{c.randrange(10**8, 10**9)}:AA{draw(c, 33)}", "bot{}/getMe"),
    "private key": (draw_key_block, "cat id_ed25519\n{}"),
    "bearer": (lambda c: draw(c, 32), "curl -H 'Authorization: Bearer {}' x"),
    "basic": (lambda c: draw(c, 32), "Authorization: Basic {}"),
    "address": (lambda c: draw(c, 14, LETTERS + "!%^&*+-_~"), "postgres://app:{}@db.internal:5432/x"),
    "env": (lambda c: draw(c, 12, LETTERS + "!#%^&*+-_~"), "export DB_PASSWORD={}"),
    "env quoted": (lambda c: draw(c, 12, LETTERS + "!#%^&*+-_~ "), "API_SECRET='x{}'"),
    "json": (lambda c: draw(c, 12, LETTERS + "!#%^&*"), '{{"user": "app", "password": "{}"}}'),
    "yaml": (lambda c: draw(c, 12), "  client_secret: {}"),
    "flag": (lambda c: draw(c, 12), "login --user app --password {}"),
    "curl": (lambda c: draw(c, 12), "curl -u app:{} https://x.internal"),
    "words": (lambda c: draw(c, 12), "the password is {}"),
    "random": (lambda c: f"aB3{draw(c, 40)}", 'signing = "{}"'),
    "e-mail": (lambda c: f"{draw_name(c)}.{draw_name(c)}@{draw_name(c)}.io", "write to {}."),
    "phone": (lambda c: f"+49 30 {c.randrange(10**6, 10**7)}", "call {}"),
    "phone us": (lambda c: f"({c.randrange(201, 990)}) {c.randrange(200, 999)}-{c.randrange(1000, 9999)}", "call {}"),
    "card": (draw_card, "paid with {}"),
    "iban": (draw_iban, "to {}"),
    "ip": (lambda c: f"10.{c.randrange(256)}.{c.randrange(256)}.{c.randrange(1, 255)}", "ssh {}"),
    "ipv6": (
        lambda c: f"2a02:{c.randrange(16**3, 16**4):x}:{c.randrange(16**3, 16**4):x}::{c.randrange(1, 99)}",
        "ping {}",
    ),
    "social security": (lambda c: f"{c.randrange(100, 665)}-{c.randrange(10, 99)}-{c.randrange(1000, 9999)}", "SSN {}"),
    "docker hub": (lambda c: f"dckr_pat_{draw(c, 27)}", "{}"),
    "a provider that is not known": (lambda c: f"acme_aB3{draw(c, 40)}", "{}"),
    "coloured": (lambda c: f"ghp_{draw(c, 36)}", "\x1b[31m{}\x1b[0m"),
    "over lines": (lambda c: f"sk-proj-aB3{draw(c, 30)}\n    aB3{draw(c, 40)}\n    aB3{draw(c, 12)}", "{}"),
    "hashed": (lambda c: draw(c, 22, LETTERS + "./"), "app:$apr1$saltsalt${}"),
    "element": (lambda c: draw(c, 12), "<password>{}</password>"),
    "set": (lambda c: f"aB3{draw(c, 37)}", "aws configure set aws_secret_access_key {}"),
    "piped": (lambda c: draw(c, 12), "echo '{}' | sudo -S apt update"),
    "german": (lambda c: draw(c, 12), "Das Passwort ist {}"),
    "prompt": (lambda c: draw_name(c) + draw_name(c), "{}@laptop:~/shop$ ls"),
    "owner": (lambda c: draw_name(c) + draw_name(c), "-rw-r--r-- 1 {} staff 12 Nov 3 09:00 a.csv"),
    "home": (draw_name, "ls /home/{}/shop"),
    "mac home": (draw_name, "/Users/{}/Library"),
    "windows home": (draw_name, "C:\\Users\\{}\\Desktop"),
    "author": (lambda c: f"{draw_name(c).title()} {draw_name(c).title()}", "Author: {} <dev@corp.io>"),
    "git name": (lambda c: f"{draw_name(c).title()} {draw_name(c).title()}", 'git config user.name "{}"'),
}
TELLING = {"aws secret", "bearer", "basic", "env", "json", "yaml", "address", "flag", "curl", "words", "random", "home"}
"""Those that are told by their place, and are looked for everywhere then."""
WORDS = [
    "fix",
    "the",
    "test",
    "it",
    "fails",
    "on",
    "line",
    "42",
    "of",
    "main.py",
    "see",
    "docs",
    "(again)",
    "version 1.2.3",
]


def fill(chance: random.Random, planted: str) -> str:
    """Words around a planted text."""
    before, after = (" ".join(chance.choices(WORDS, k=chance.randrange(1, 6))) for _ in range(2))
    return f"{before}\n{planted}\n{after}"


def make_session(chance: random.Random) -> tuple[PastSession, dict[str, str]]:
    """A session with secrets in every kind of field."""
    kinds = chance.sample(list(PLANTS), 9)
    secrets = {kind: PLANTS[kind][0](chance) for kind in kinds}
    texts = [fill(chance, PLANTS[kind][1].format(secrets[kind])) for kind in kinds]
    arguments = json.dumps({"command": texts[1], "env": [{"name": "X", "value": texts[2]}]}, ensure_ascii=False)
    nested = json.dumps({"result": json.dumps({"out": texts[3]}), "text": texts[4]})
    telling = [secret for kind, secret in secrets.items() if kind in TELLING]
    again = " and ".join(telling)
    messages = (
        Message("system", texts[0]),
        Message("user", f"{texts[5]} {again}"),
        Message(
            "assistant", texts[6], (Call("c1", "bash", arguments),), reasoning=Reasoning(texts[7], "reasoning_content")
        ),
        Message("tool", nested, call_id="c1"),
    )
    session = PastSession(
        id="s",
        format="openai",
        path=f"/logs/{texts[8]}.json",
        project=texts[8],
        agent=again,
        messages=messages,
        request=texts[5],
        feedback=(texts[6], again),
        skills=(PastSkill(name="sums", path=texts[7]),),
        files=(texts[0],),
        score=Score.of(1.0, texts[1], parts={texts[2]: 1.0}),
    )
    return session, secrets


@pytest.mark.parametrize("seed", range(80))
def test_no_planted_secret_survives_in_any_field(seed: int):
    session, secrets = make_session(random.Random(seed))
    masked, counts = mask_session(session)
    left = to_json(masked).decode()
    decoded = left + str(msgspec.to_builtins(masked)) + masked.messages[2].calls[0].arguments
    for kind, secret in secrets.items():
        for spelling in (secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]):
            assert spelling not in decoded, kind
    assert sum(counts.values()) >= len(secrets)
    assert masked.masked == counts
    json.loads(masked.messages[2].calls[0].arguments)
    assert "fix" in decoded or "the" in decoded or "test" in decoded


@pytest.mark.parametrize("seed", range(40))
def test_masking_twice_changes_nothing(seed: int):
    masked, _ = mask_session(make_session(random.Random(seed))[0])
    again, counts = mask_session(masked)
    assert again == masked
    assert counts == {}


@pytest.mark.parametrize("kind", PLANTS)
def test_every_kind_is_found_at_any_place_of_a_text(kind: str):
    """Also at the start and the end, in JSON text, and twice escaped."""
    make, frame = PLANTS[kind]
    for seed in range(8):
        secret = make(random.Random(f"{kind}{seed}"))
        text = frame.format(secret)
        for around in (text, f"\n{text}\n", json.dumps(text), json.dumps(json.dumps({"a": text}))):
            masked = mask_text(around)
            for part in [secret, *secret.split("\n")]:
                assert part not in masked, (around, masked)


def test_the_same_value_has_the_same_placeholder_in_the_whole_session():
    messages = (
        Message("user", "Write to ada.king@corp.io, not to joe@corp.io. DB_PASSWORD=hunter2!"),
        Message("assistant", "ada.king@corp.io", (Call("c", "mail", '{"to": "joe@corp.io", "text": "hunter2!"}'),)),
    )
    masked, counts = mask_session(PastSession(id="s", format="openai", path="x", messages=messages))
    assert [message.content for message in masked.messages] == [
        "Write to <EMAIL_1>, not to <EMAIL_2>. DB_PASSWORD=<PASSWORD_1>",
        "<EMAIL_1>",
    ]
    assert masked.messages[1].calls[0].arguments == '{"to":"<EMAIL_2>","text":"<PASSWORD_1>"}'
    assert counts == {"email": 2, "password": 1}


def test_placeholders_that_are_there_already_are_not_used_again():
    message = Message("user", "<EMAIL_1> wrote to ada.king@corp.io about <EMAIL_7>")
    masked, _ = mask_session(PastSession(id="s", format="openai", path="x", messages=(message,)))
    assert masked.messages[0].content == "<EMAIL_1> wrote to <EMAIL_8> about <EMAIL_7>"


@pytest.mark.parametrize(
    ("arguments", "secret"),
    [
        ('{"password": "qwe\\"rty9"}', "rty9"),
        ('{"api_key": "a1b2c3d4e5f6", "api_key": "x"}', "a1b2c3d4e5f6"),
        ('{"argv": ["login", "--password", "zzTop99"]}', "zzTop99"),
        ('{"env": [{"name": "API_TOKEN", "value": "a1b2c3d4e5f6"}]}', "a1b2c3d4e5f6"),
        ('{"ada.king@corp.io": 1}', "ada.king"),
        ('{"t": "\\u0073k-ant-api03-abcdefghijklmnop1234"}', "abcdefghijklmnop1234"),
        ('{"broken": "password: qwertz77', "qwertz77"),
        ("[" * 5000 + '"password: qwertz77"' + "]" * 5000, "qwertz77"),
    ],
)
def test_arguments_of_calls_are_decoded(arguments: str, secret: str):
    call = Call("c", "bash", arguments)
    session = PastSession(id="s", format="openai", path="x", messages=(Message("assistant", "", (call,)),))
    masked, _ = mask_session(session)
    assert secret not in masked.messages[0].calls[0].arguments
    assert mask_session(masked)[0] == masked


@pytest.mark.parametrize("lines", [False, True])
@pytest.mark.parametrize("kind", ["env", "github", "private key", "json"])
def test_a_file_in_base64_with_a_secret_in_it_is_masked(kind: str, lines: bool):
    make, frame = PLANTS[kind]
    text = frame.format(make(random.Random(kind))) + "\nDEBUG=false\n"
    coded = (base64.encodebytes if lines else base64.b64encode)(text.encode()).decode()
    masked = mask_text(f"$ base64 f\n{coded}\n$ ls")
    assert not any(line in masked for line in coded.split())
    plain = base64.b64encode(b"The order of the rows does not matter here, so sort them by name.").decode()
    assert mask_text(plain) == plain


@pytest.mark.parametrize("name", ["jürgen", "jos\u00e9.garc\u00eda", "ü"])
def test_arguments_stay_json(name: str):
    arguments = json.dumps({"to": f"{name}@corp.io", "text": f'"{name}@corp.io"'})
    assert "\\u" in arguments
    call = Call("c", "mail", arguments)
    session = PastSession(id="s", format="openai", path="x", messages=(Message("assistant", "", (call,)),))
    masked, _ = mask_session(session)
    assert json.loads(masked.messages[0].calls[0].arguments) == {"to": "<EMAIL_1>", "text": '"<EMAIL_1>"'}


def test_pictures_are_removed_and_counted():
    message = Message("user", "See.", images=(Image(PIXEL), Image("https://x.internal/a.png?sig=1")))
    masked, counts = mask_session(PastSession(id="s", format="openai", path="x", messages=(message,)))
    assert masked.messages[0].images == ()
    assert counts == {"picture": 2}
    assert masked.masked == {"picture": 2}


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens=1000, token = tokens[0], password: str = field(default='')",
        'api_key=os.environ["OPENAI_API_KEY"]',
        "--agent.api_key_var OPENAI_API_KEY --tokenizer Qwen/Qwen3-8B",
        "OPENAI_API_KEY=$KEY python run.py; export TOKEN=${TOKEN}",
        "postgres://user:password@localhost:5432/db and https://user:<PASSWORD>@example.com",
        "commit 9fceb02d0ae598e95dc970b74767f19372d61af8 sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca4",
        'uuid: "123e4567-e89b-12d3-a456-426614174000"',
        "x[1::2] std::vector a::b fe80 12:34:56 2026-11-18T20:15:49",
        "numpy==1.26.4.1 Chrome/120.0.0.0 127.0.0.1:8080 0.0.0.0 ::1 255.255.255.0",
        "user@example.com git@github.com noreply@anthropic.com icon@2x.png getty@tty1.service @app.route @x.setter",
        "/home/user/x /home/$USER/y /Users/<name>/z /root/.ssh",
        "1700000000000000000 4532 12345678901234567890 3.14159265358979",
        "the secret of the token is that passwords pass; a basic understanding of bearer tokens",
        "-rw-r--r-- 1 root root 12 Nov 3 09:00 a.csv and root@host:~# ls; git log --since=1.week | grep -S x",
        "\x1b[31mFAILED\x1b[0m tests/test_a.py::test_x a\u200bb; echo done | tee log; set name value_of_it",
        "stopwatch: 12s3, pw = None; Das Passwort ist falsch; <token>word</token>; main.c:12:5: error: x1",
        "aGVsbG8gd29ybGQsIHRoaXMgaXMgYSB0ZXh0 sed 's/(a)(b)/$1$2$3$4/' test_a_name_of_a_test_with_many_words_in_it",
        "PASSED = 3, passenger: Ann, compass: north, tokenize: fast",
    ],
)
def test_ordinary_texts_are_left_as_they_are(text: str):
    assert mask_text(text) == text


def test_of_the_projects_own_pages_almost_nothing_is_masked():
    """docs/past-work.md gives the figure for the whole source, too. One page of these is on the forms themselves."""
    pages = [path for path in sorted((ROOT / "docs").glob("*.md")) if path.name not in ("past-work.md", "log.md")]
    texts = [path.read_text() for path in pages[:12]]
    masked = sum(span.end - span.start for text in texts for span in list_spans(text))
    assert masked / sum(map(len, texts)) < 0.0001


@pytest.mark.parametrize(
    "text",
    [
        "a" * 50_000,
        "a." * 25_000,
        "@" * 25_000,
        "a@" * 15_000,
        "1 " * 25_000,
        "1-" * 25_000,
        "12:" * 15_000,
        "+1 " * 15_000,
        "password" * 5000,
        "password: " * 5000,
        "login " * 7500,
        "mysql -p" * 5000,
        "eyJ" * 15_000,
        "-----BEGIN RSA PRIVATE KEY-----\n" * 1250,
        "sk-" * 15_000,
        "://" * 15_000,
        "/home/" * 7500,
        "key=" * 10_000,
        "A " * 25_000,
        "\\n" * 25_000,
        '"' * 25_000,
        "DE12 " * 7500,
        "token " * 7500,
        "-u a:" * 7500,
        ("A" * 60 + "\n") * 1000 + "-",
        "\x1b[31m" * 10_000,
        "set a " * 10_000,
        "<a>" * 15_000,
        "a:12:" * 12_000,
        "$1$" * 15_000,
        "echo a " * 8000,
        "htpasswd -b " * 5000,
        "a_" * 25_000,
        "ghp_" * 10_000,
        "a.b-" * 12_000,
        "-rw-r--r-- 1 " * 4000,
        "a@b:~/" * 8000,
        "ssn " * 12_000,
    ],
    ids=lambda text: text[:12],
)
def test_time_is_linear_in_a_hostile_text(text: str):
    """A pattern that takes quadratic time would need hours here."""
    list_spans(text)
