"""How many planted secrets the masking of past sessions finds, and how much of ordinary text it takes for one.

    python bench/masking.py                # the table
    python bench/masking.py --missed       # an example of each form that is missed
    python bench/masking.py --json
    python bench/masking.py --peer PYTHON  # detect-secrets 1.5.0 beside it, in an environment that has it

A form is a secret and the text around it. Each is drawn anew for every plant, and planted in four fields of a session:
a message of the user, an argument of a tool call, the result of a tool, the name of a file. It is found if no part of
it of eight characters is left in the session, in the arguments, or in what JSON makes of them.

Ordinary text is the standard library of this Python (its tests are left out: they hold passwords), and the pages and
the source of this project. What is masked there is no secret, or nearly never.
"""

import argparse
import base64
import json
import random
import string
import subprocess
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ludus.encoding import to_json
from ludus.transcripts.masking import list_spans, mask_session
from ludus.transcripts.past_session import PastSession
from ludus.types import Call, Message

LETTERS = string.ascii_letters + string.digits
HEX = "0123456789abcdef"
UPPER = string.ascii_uppercase + string.digits
PLANTS = 25
"""Plants of each form."""
PIECE = 8
ROOT = Path(__file__).parent.parent


class Plant(NamedTuple):
    """A secret, as it stands in a text."""

    secret: str
    text: str


Draw = Callable[[random.Random], Plant]


def draw(chance: random.Random, length: int, letters: str = LETTERS) -> str:
    """A random text with a letter, and a digit at its end."""
    return "".join(chance.choice(letters) for _ in range(length - 1)) + chance.choice("0123456789")


def make_form(frame: str, length: int, letters: str = LETTERS, prefix: str = "") -> Draw:
    """A form with a random value in a frame."""

    def plant(chance: random.Random) -> Plant:
        secret = prefix + draw(chance, length, letters)
        return Plant(secret, frame.replace("{}", secret))

    return plant


def make_keys() -> dict[str, Draw]:
    """Keys of providers by themselves: nothing but their form tells."""
    known = {
        "OpenAI": ("sk-proj-", 48, LETTERS + "_-"),
        "Anthropic": ("sk-ant-api03-", 80, LETTERS + "_-"),
        "OpenRouter": ("sk-or-v1-", 64, HEX),
        "AWS id": ("AKIA", 16, UPPER),
        "GitHub": ("ghp_", 36, LETTERS),
        "GitHub, fine": ("github_pat_", 82, LETTERS + "_"),
        "GitLab": ("glpat-", 20, LETTERS),
        "GitLab runner": ("glrt-", 20, LETTERS),
        "Slack": ("xoxb-", 40, LETTERS + "-"),
        "Google": ("AIza", 35, LETTERS),
        "Stripe": ("sk_live_", 24, LETTERS),
        "Hugging Face": ("hf_", 34, LETTERS),
        "npm": ("npm_", 36, LETTERS),
        "PyPI": ("pypi-AgEIcHlwaS5vcmc", 120, LETTERS + "_-"),
        "Groq": ("gsk_", 52, LETTERS),
        "xAI": ("xai-", 80, LETTERS),
        "Perplexity": ("pplx-", 48, LETTERS),
        "Replicate": ("r8_", 37, LETTERS),
        "Databricks": ("dapi", 32, HEX),
        "DigitalOcean": ("dop_v1_", 64, HEX),
        "Twilio": ("SK", 32, HEX),
        "SendGrid": ("SG.", 22, LETTERS),
        "Docker Hub": ("dckr_pat_", 27, LETTERS + "_-"),
        "Notion": ("ntn_", 46, LETTERS),
        "Notion, old": ("secret_", 43, LETTERS),
        "Airtable": ("pat", 14, LETTERS),
        "New Relic": ("NRAK-", 27, UPPER),
        "PlanetScale": ("pscale_tkn_", 43, LETTERS + "_-"),
        "Netlify": ("nfp_", 36, LETTERS),
        "Grafana": ("glsa_", 32, LETTERS),
        "Grafana cloud": ("glc_", 80, LETTERS),
        "Fly": ("fm2_", 120, LETTERS + "+/"),
        "Heroku": ("HRKU-", 36, LETTERS + "_-"),
        "Terraform": ("", 14, LETTERS),
        "Linear": ("lin_api_", 40, LETTERS),
        "Vault": ("hvs.", 90, LETTERS + "_-"),
        "Doppler": ("dp.pt.", 43, LETTERS),
        "Pulumi": ("pul-", 40, HEX),
        "Cloudflare": ("v1.0-", 24, HEX),
        "Resend": ("re_", 32, LETTERS),
        "LangSmith": ("lsv2_pt_", 32, HEX),
        "Age": ("AGE-SECRET-KEY-1", 58, UPPER),
        "Square": ("EAAA", 60, LETTERS),
        "Facebook": ("EAA", 100, LETTERS),
        "Cerebras": ("csk-", 48, LETTERS),
        "Fireworks": ("fw_", 24, LETTERS),
        "NVIDIA": ("nvapi-", 64, LETTERS + "_-"),
        "Tavily": ("tvly-", 32, LETTERS),
        "Weights & Biases": ("wandb_v1_", 77, LETTERS + "_"),
    }
    forms = {
        name: make_form("it was {} before", length, letters, prefix)
        for name, (prefix, length, letters) in known.items()
    }
    forms["Terraform"] = _join("it was {} before", (14, ".atlasv1.", 67))
    forms["SendGrid"] = _join("it was {} before", ("SG.", 22, ".", 43))
    forms["Airtable"] = _join("it was {} before", ("pat", 14, ".", 64))
    forms["Cloudflare"] = _join("it was {} before", ("v1.0-", 24, "-", 146))
    forms["JWT"] = _join("it was {} before", ("eyJ", 20, ".eyJ", 60, ".", 43))
    forms["Discord"] = _join("it was {} before", ("M", 23, ".", 6, ".", 38))
    forms["Telegram"] = lambda c: _frame("it was {} before", f"{c.randrange(10**8, 10**9)}:AA{draw(c, 33)}")
    return forms


def _frame(frame: str, secret: str) -> Plant:
    return Plant(secret, frame.replace("{}", secret))


def _join(frame: str, parts: tuple[str | int, ...]) -> Draw:
    """A form of fixed texts and of random ones of a length."""

    def plant(chance: random.Random) -> Plant:
        return _frame(frame, "".join(draw(chance, each) if isinstance(each, int) else each for each in parts))

    return plant


ODD = LETTERS + "!#%^*-_~"

PLACES: dict[str, Draw] = {
    "env file": make_form("DB_PASSWORD={}", 12, ODD),
    "env file, letters": make_form("DB_PASSWORD=correct{}", 6),
    "export": make_form('export API_SECRET="{}"', 14, ODD),
    "PowerShell": make_form('$env:API_KEY = "{}"', 24),
    "JSON": make_form('{"user": "app", "password": "{}"}', 12, ODD),
    "YAML": make_form("db:\n  password: {}\n", 12),
    "TOML": make_form('client_secret = "{}"', 24),
    "properties": make_form("spring.datasource.password={}", 12),
    "XML": make_form("<password>{}</password>", 12),
    "connection string": make_form("Server=db;User Id=app;Password={};Encrypt=true", 12),
    "Azure storage": make_form("AccountName=x;AccountKey={}==;EndpointSuffix=core", 86, LETTERS + "+/"),
    "SAS address": make_form("https://x.blob/c?sv=2024&sig={}%3D", 42),
    "address": make_form("postgres://app:{}@db.internal:5432/x", 14, LETTERS + "!*-_~"),
    "address, no user": make_form("redis://:{}@cache:6379/0", 16),
    "address with %": make_form("mysql://app:a%40{}@db/x", 12),
    "Sentry": make_form("https://{}@o123.ingest.sentry.io/45", 32, HEX),
    "token in a query": make_form("GET /x?access_token={}&a=1", 32),
    "password in a query": make_form("GET /x?user=app&password={}&a=1", 12),
    "Bearer": make_form("curl -H 'Authorization: Bearer {}' x", 32),
    "Basic": make_form("Authorization: Basic {}==", 22),
    "X-Api-Key": make_form("-H 'X-Api-Key: {}'", 32, HEX),
    "Cookie": make_form("Cookie: theme=dark; sessionid={}; csrftoken=x", 32),
    "Set-Cookie": make_form("Set-Cookie: sid={}; HttpOnly; Path=/", 32),
    "curl -b": make_form("curl -b 'session={}' https://x.internal", 32),
    ".netrc": make_form("machine x.io login app password {}", 12),
    ".pgpass": make_form("db.internal:5432:shop:app:{}", 14, ODD),
    ".npmrc": make_form("//registry.internal/:_auth={}==", 30),
    "docker config": make_form('{"auths": {"r.io": {"auth": "{}="}}}', 35),
    "kube config": make_form("    client-key-data: LS0tLS1CRUdJTiB{}", 200),
    "shadow": make_form("app:$6$saltsalt${}:19000:0:99999:7:::", 86, LETTERS + "./"),
    "htpasswd": make_form("app:$apr1$xyzxyzxy${}", 22, LETTERS + "./"),
    "Rails": make_form("secret_key_base: {}", 128, HEX),
    "Django": make_form("SECRET_KEY = 'django-insecure-{}'", 40, ODD),
    "Datadog": make_form("DD_API_KEY={}", 32, HEX),
    "Ethereum": make_form("PRIVATE_KEY=0x{}", 64, HEX),
    "words": make_form("the password is {}", 12),
    "words, colon": make_form("Here is my password: {} please log in", 12),
    "words, German": make_form("Das Passwort ist {}", 12),
    "German field": make_form("Passwort: {}", 12),
    "Spanish field": make_form("contraseña: {}", 12),
    "French field": make_form("mot de passe : {}", 12),
    "pw": make_form("user app, pw {}", 12),
}  # fmt: skip

COMMANDS: dict[str, Draw] = {
    "curl -u": make_form("curl -u app:{} https://x.internal", 12),
    "--password": make_form("login --user app --password {}", 12),
    "--token=": make_form("tool --token={}", 32),
    "mysql -p": make_form("mysql -u app -p{} shop", 12),
    "PGPASSWORD": make_form("PGPASSWORD={} psql -U app", 12),
    "sshpass": make_form("sshpass -p '{}' ssh app@host", 12),
    "redis-cli -a": make_form("redis-cli -h cache -a {} ping", 16),
    "docker login -p": make_form("docker login -u app -p {} r.io", 16),
    "openssl pass:": make_form("openssl rsa -passin pass:{} -in k.pem", 12),
    "sudo -S": make_form("echo '{}' | sudo -S apt update", 12),
    "htpasswd -b": make_form("htpasswd -b .htpasswd app {}", 12),
    "aws configure": make_form("aws configure set aws_secret_access_key {}", 40, LETTERS + "+/"),
    "gh auth": make_form("gh auth login --with-token <<< {}", 40, LETTERS),
    "here string": make_form("docker login --password-stdin <<< {}", 16),
    "kubectl": make_form("kubectl create secret generic x --from-literal=password={}", 12),
    "setx": make_form('setx OPENAI_API_KEY "{}"', 32),
    "PowerShell secure": make_form('ConvertTo-SecureString "{}" -AsPlainText', 12),
    "git remote": make_form("git clone https://oauth2:{}@git.internal/x.git", 20),
    "psql address": make_form("psql 'host=db user=app password={}'", 12),
    "wget": make_form("wget --http-password={} https://x.internal", 12),
}  # fmt: skip


def _plant_block(chance: random.Random) -> Plant:
    lines = "\n".join(draw(chance, 64, LETTERS + "+/") for _ in range(5))
    return Plant(lines, f"-----BEGIN RSA PRIVATE KEY-----\n{lines}\n-----END RSA PRIVATE KEY-----")


def _plant_escaped_block(chance: random.Random) -> Plant:
    lines = "\\n".join(draw(chance, 64, LETTERS + "+/") for _ in range(5))
    text = f'{{"private_key": "-----BEGIN PRIVATE KEY-----\\n{lines}\\n-----END PRIVATE KEY-----\\n"}}'
    return Plant(lines, text)


def _plant_cut_block(chance: random.Random) -> Plant:
    lines = "\n".join(draw(chance, 64, LETTERS + "+/") for _ in range(5))
    return Plant(lines, f"-----BEGIN OPENSSH PRIVATE KEY-----\n{lines}\n")


def _plant_putty(chance: random.Random) -> Plant:
    lines = "\n".join(draw(chance, 64, LETTERS + "+/") for _ in range(3))
    return Plant(
        lines, f"PuTTY-User-Key-File-3: ssh-ed25519\nEncryption: none\nPrivate-Lines: 3\n{lines}\nPrivate-MAC: 1"
    )


def _wrap(width: int, between: str) -> Draw:
    """A key that a terminal, an editor or a mail has broken into lines."""

    def plant(chance: random.Random) -> Plant:
        key = f"sk-proj-{draw(chance, 88)}"
        pieces = [key[place : place + width] for place in range(0, len(key), width)]
        return Plant("\n".join(pieces), f"the key: {between.join(pieces)}")

    return plant


def _add_pieces(chance: random.Random) -> Plant:
    one, two = f"ghp_{draw(chance, 16)}", draw(chance, 20)
    return Plant(f"{one}\n{two}", f'token = "{one}" + "{two}"')


def _encode(text: str, *, wrap: int = 0) -> Draw:
    """A file with a secret in it, in base64."""

    def plant(chance: random.Random) -> Plant:
        coded = base64.b64encode(text.replace("{}", draw(chance, 20)).encode()).decode()
        lines = [coded[place : place + wrap] for place in range(0, len(coded), wrap)] if wrap else [coded]
        return Plant("\n".join(lines), "$ base64 .env\n" + "\n".join(lines))

    return plant


def _hide(change: Callable[[str], str]) -> Draw:
    def plant(chance: random.Random) -> Plant:
        secret = change(f"ghp_{draw(chance, 36)}")
        return Plant(secret, f"it was {secret} before")

    return plant


_ENV = "DB_HOST=db.internal\nDB_USER=app\nDB_PASSWORD={}\nDEBUG=false\n"
ENCODED: dict[str, Draw] = {
    "private key": _plant_block,
    "private key in JSON": _plant_escaped_block,
    "private key, cut off": _plant_cut_block,
    "PuTTY key": _plant_putty,
    "key over lines": _wrap(40, "\n"),
    "key over lines, indented": _wrap(40, "\n    "),
    "key over lines, continued": _wrap(40, "\\\n"),
    "key in pieces of code": _add_pieces,
    "env file in base64": _encode(_ENV),
    "env file in base64, lines": _encode(_ENV, wrap=76),
    "login in base64": _encode("app:{}"),
    "in an address, %": _hide(lambda key: key.replace("_", "%5F")),
    "zero-width space": _hide(lambda key: key[:14] + "\u200b" + key[14:]),
    "colours of a terminal": _hide(lambda key: f"\x1b[31m{key}\x1b[0m"),
    "colours inside": _hide(lambda key: f"{key[:4]}\x1b[31m{key[4:]}\x1b[0m"),
    "UTF-16": _hide(lambda key: "\0".join(key)),
    "HTML": _hide(lambda key: key.replace("_", "&#95;")),
}


def _name(chance: random.Random) -> str:
    return "".join(chance.choice("bcdfgklmnprst") + chance.choice("aeiou") for _ in range(3)).title()


def _count(chance: random.Random, low: int, high: int) -> int:
    return chance.randrange(low, high)


def _person(frame: str) -> Draw:
    return lambda c: _frame(frame, f"{_name(c)} {_name(c)}ski")


PERSONAL: dict[str, Draw] = {
    "e-mail": lambda c: _frame("write to {}.", f"{_name(c)}.{_name(c)}@{_name(c)}.io".lower()),
    "e-mail, umlaut": lambda c: _frame("write to {}.", f"{_name(c)}.{_name(c)}ü@{_name(c)}.de".lower()),
    "e-mail (at)": lambda c: _frame("write to {}.", f"{_name(c)}.{_name(c)} (at) {_name(c)} (dot) io".lower()),
    "phone, +": lambda c: _frame("call {}", f"+49 30 {c.randrange(10**6, 10**7)}"),
    "phone, US": lambda c: _frame("call {}", f"({_count(c, 201, 990)}) {_count(c, 200, 999)}-{_count(c, 1000, 9999)}"),
    "phone, named": lambda c: _frame("phone: {}", f"0176 {c.randrange(10**6, 10**7)}"),
    "phone, bare": lambda c: _frame("call {}", f"0176 {c.randrange(10**6, 10**7)}"),
    "social security": lambda c: _frame("SSN {}", f"{_count(c, 100, 665)}-{_count(c, 10, 99)}-{_count(c, 1000, 9999)}"),
    "home folder": lambda c: _frame("ls /home/{}/shop", f"{_name(c)}{_name(c)}".lower()),
    "author": _person("Author: {} <dev@corp.io>"),
    "git config": _person('git config user.name "{}"'),
    "JSON name": _person('{"first_name": "x", "full_name": "{}"}'),
    "salutation": _person("Dear {},\nyour order is late."),
    "signature": _person("Best regards,\n{}\n"),
    "ls -l": lambda c: _frame("-rw-r--r-- 1 {} staff 12 Nov 3 09:00 a.csv", f"{_name(c)}{_name(c)}".lower()),
    "prompt": lambda c: _frame("{}@laptop:~/shop$ ls", f"{_name(c)}{_name(c)}".lower()),
    "IPv4": lambda c: _frame("ssh 10.{}", f"{c.randrange(100, 256)}.{c.randrange(100, 256)}.{c.randrange(100, 255)}"),
    "MAC": lambda c: _frame("ether {}", ":".join(f"{c.randrange(256):02x}" for _ in range(6))),
}  # fmt: skip

FAMILIES: dict[str, dict[str, Draw]] = {
    "keys of providers": make_keys(),
    "told by the place": PLACES,
    "in commands": COMMANDS,
    "over lines, encoded": ENCODED,
    "personal data": PERSONAL,
}


# ---- recall ---------------------------------------------------------------------------------------------------------


def make_session(plant: Plant, field: int) -> PastSession:
    """A session with a plant in one of its fields, and ordinary words in the others."""
    texts = ["Fix the report, please.", "It has 3 rows.", "ok", "notes.txt"]
    texts[field] = f"see docs\n{plant.text}\nthe test fails on line 42"
    messages = (
        Message("user", texts[0]),
        Message("assistant", "I look.", (Call("c1", "bash", json.dumps({"command": texts[1]})),)),
        Message("tool", texts[2], call_id="c1"),
    )
    return PastSession(id="s", format="openai", path="p", messages=messages, request=texts[0], files=(texts[3],))


def is_hidden(plant: Plant, field: int) -> bool:
    """Whether nothing of a plant is left in the masked session."""
    masked, _ = mask_session(make_session(plant, field))
    call = masked.messages[1].calls[0].arguments
    said = (message.content for message in masked.messages)
    left = "\n".join((to_json(masked).decode(), *said, *masked.files, call, *_decode(call)))
    pieces = (
        line[place : place + PIECE]
        for line in plant.secret.split("\n")
        for place in range(max(1, len(line) - PIECE + 1))
    )
    return not any(piece in left for piece in pieces)


def _decode(arguments: str) -> list[str]:
    """The arguments as a tool gets them."""
    try:
        return [*json.loads(arguments).values()]
    except ValueError:
        raise AssertionError(f"masking broke the arguments of a call: {arguments}") from None


def measure_recall(forms: dict[str, Draw]) -> dict[str, float]:
    """The share of plants that is found, for each form."""
    found: dict[str, float] = {}
    for name, form in forms.items():
        plants = [form(random.Random(f"{name} {number}")) for number in range(PLANTS)]
        found[name] = sum(is_hidden(plant, number % 4) for number, plant in enumerate(plants)) / PLANTS
    return found


# ---- ordinary text --------------------------------------------------------------------------------------------------


def list_ordinary() -> dict[str, Iterator[Path]]:
    library = Path(sysconfig.get_paths()["stdlib"])
    own = {"site-packages", "test", "tests", "idle_test", "__pycache__"}
    return {
        "standard library": (path for path in sorted(library.rglob("*.py")) if not own & set(path.parts)),
        "docs of Ludus": iter(sorted((ROOT / "docs").glob("*.md"))),
        "source of Ludus": iter(sorted((ROOT / "src").rglob("*.py"))),
    }


PERSONS = frozenset({"EMAIL", "NAME", "USER", "IP", "PHONE", "ID", "CARD", "IBAN"})
"""Kinds that are no secrets. A peer for secrets is not asked for them."""


def ask_peer(python: str) -> tuple[dict[str, float], dict[str, int]]:
    """For detect-secrets: the share of plants found in each family, and the lines it reports of ordinary texts."""
    plants = {
        family: [form(random.Random(f"{name} {number}")) for name, form in forms.items() for number in range(PLANTS)]
        for family, forms in FAMILIES.items()
    }
    texts = {name: [path.read_text(errors="replace") for path in paths] for name, paths in list_ordinary().items()}
    rows: list[Any] = [(plant.text, plant.secret.split("\n")) for found in plants.values() for plant in found]
    rows += [(text, ()) for found in texts.values() for text in found]
    words = [python, str(ROOT / "bench" / "peers" / "run_detect_secrets.py")]
    done = subprocess.run(words, input="\n".join(map(json.dumps, rows)), capture_output=True, text=True, check=True)
    counts = iter(map(int, done.stdout.split()))
    share = {family: sum(next(counts) > 0 for _ in found) / len(found) for family, found in plants.items()}
    return share, {name: sum(next(counts) for _ in found) for name, found in texts.items()}


def measure_ordinary(paths: Iterator[Path]) -> tuple[int, int, int, list[str]]:
    """How many characters there are, how many of them are masked, as what is no person's, and what was masked."""
    total, masked, secret, shown = 0, 0, 0, list[str]()
    for path in paths:
        text = path.read_text(errors="replace")
        spans = list_spans(text)
        total += len(text)
        masked += sum(span.end - span.start for span in spans)
        secret += len({text.count("\n", 0, span.start) for span in spans if span.kind not in PERSONS})
        shown += [f"{path.name}: {span.kind} {text[span.start : span.end]!r}" for span in spans]
    return total, masked, secret, shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--missed", action="store_true", help="show each form that is missed, and what is masked of ordinary text"
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--peer", metavar="PYTHON", help="the Python of an environment with detect-secrets")
    options = parser.parse_args()
    recall = {family: measure_recall(forms) for family, forms in FAMILIES.items()}
    ordinary = {name: measure_ordinary(paths) for name, paths in list_ordinary().items()}
    if options.json:
        print(json.dumps({"recall": recall, "ordinary": {name: found[:3] for name, found in ordinary.items()}}))
        return
    shares, lines = ask_peer(options.peer) if options.peer else ({}, {})
    print("| family | forms | plants | found | detect-secrets | missed |\n|---|---|---|---|---|---|")
    for family, found in recall.items():
        missed = ", ".join(f"{name} {share:.2f}" if share else name for name, share in found.items() if share < 1)
        other = f"{shares[family]:.3f}" if shares and family != "personal data" else "–"
        share = sum(found.values()) / len(found)
        print(f"| {family} | {len(found)} | {len(found) * PLANTS} | {share:.3f} | {other} | {missed or '–'} |")
    print("\n| ordinary text | characters | masked | lines with a secret | detect-secrets |\n|---|---|---|---|---|")
    for name, (total, masked, secret, _) in ordinary.items():
        print(f"| {name} | {total:,} | {masked:,} | {secret} | {lines.get(name, '–')} |")
    for family, forms in FAMILIES.items() if options.missed else ():
        for name, form in forms.items():
            if recall[family][name] < 1:
                print(f"{family}: {name}: {form(random.Random(0)).text!r}")
    for name, (*_, shown) in ordinary.items() if options.missed else ():
        print("\n".join([f"{name}:", *shown]))


if __name__ == "__main__":
    main()
