"""An HTML page that shows the trajectories of a run.

The page is a single file that opens from disk, needs no network and no framework. It is `trajectory_page.html` with the
rows of `groups.jsonl` inserted as JSON. The script makes a card when it is opened, so the page stays fast with some
thousand rollouts. Rows that would make the page too large to open are left out, and the page says how many.

The texts in a row were written by models and tools and may be hostile. They reach the browser as JSON without any `<`.
The script puts them on the page only as text, and a content security policy blocks all other scripts and all requests
but those for pictures in the run directory.
"""

import base64
import hashlib
import html
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ludus.encoding import to_json
from ludus.stats import RunSummary, warn_of_exclusions

TEMPLATE = Path(__file__).with_name("trajectory_page.html")
LARGEST = 64_000_000
"""The maximum size of the rows in one page, in bytes."""


def render_page(
    title: str,
    facts: Mapping[str, str],
    summary: RunSummary | None,
    rows: Iterable[bytes],
    largest: int = LARGEST,
    *,
    report: str = "",
) -> Iterator[bytes]:
    """Render the page, piece by piece.

    `rows` are `GroupRow`s as JSON. They may also have a `part` of the run, by which they can be filtered, and a `role`
    in it. `facts` are shown below the title, `summary` above the rows. `report` is a page beside this one to link to.
    """
    template = TEMPLATE.read_text(encoding="utf-8")
    warning = warn_of_exclusions(summary.overall.excluded, summary.overall.rollouts) if summary else ""
    about = to_json({"facts": dict(facts), "summary": summary, "warning": warning, "report": report})
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
    """Escape every `<`, which begins and ends HTML elements. In JSON it occurs only in strings."""
    return json.replace(b"<", b"\\u003c")


def _build_policy(template: str) -> str:
    """A content security policy that allows only the page's own script and style, and pictures beside it."""
    script, style = _hash_element(template, "script"), _hash_element(template, "style")
    allowed = f"script-src {script}; style-src {style}; img-src 'self' file:"
    return f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"


def _hash_element(template: str, element: str) -> str:
    (text,) = re.findall(f"<{element}>(.*?)</{element}>", template, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
