"""One HTML page of a run's trajectories, for looking at them.

The page is a single file that opens from disk, asks the network for nothing and needs no framework: `page.html` with
the rows of `groups.jsonl` put into it as JSON. Cards are made when they are opened, so some thousand rollouts stay
quick; what would make the page too large to open is left out, and the page says how much.

Everything in a row was written by a model or a tool and may be hostile. It reaches the browser as JSON in which no `<`
is left, the script puts it on the page as text only, and a content security policy lets no other script run and no
request go out.
"""

import base64
import hashlib
import html
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ludus.stats import RunSummary
from ludus.types import to_json

TEMPLATE = Path(__file__).with_name("trajectory_page.html")
LARGEST = 64_000_000
"""Bytes of rows in one page."""


def render_page(
    title: str, facts: Mapping[str, str], summary: RunSummary, rows: Iterable[bytes], largest: int = LARGEST
) -> Iterator[bytes]:
    """The page, piece by piece. Rows are JSON of `GroupRow`s; `facts` are shown beneath the title."""
    template = TEMPLATE.read_text(encoding="utf-8")
    about = to_json({"facts": dict(facts), "summary": summary})
    values = {"POLICY": _build_policy(template), "TITLE": html.escape(title), "ABOUT": escape_markup(about).decode()}
    before, rest = template.split("@ROWS@")
    between, after = rest.split("@END@")
    yield re.sub("@(POLICY|TITLE|ABOUT)@", lambda marker: values[marker[1]], before).encode()
    size = left_out = 0
    for row in rows:
        size += len(row)
        if size > largest:
            left_out += 1
        else:
            yield b"\n" + escape_markup(row)
    yield b"\n" + between.encode() + to_json({"left_out": left_out}) + after.encode()


def escape_markup(json: bytes) -> bytes:
    """The same JSON, without a character that could end or begin an element. `<` occurs in strings only."""
    return json.replace(b"<", b"\\u003c")


def _build_policy(template: str) -> str:
    """Only the page's own script and style may act."""
    return (
        f"default-src 'none'; script-src {_hash_element(template, 'script')}; style-src {_hash_element(template, 'style')}; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash_element(template: str, element: str) -> str:
    (text,) = re.findall(f"<{element}>(.*?)</{element}>", template, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
