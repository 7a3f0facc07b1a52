"""One self-contained file of a run's pages: for a pull request, a paper, or a machine without Ludus.

It holds the same modules and style as `ludus view`, joined into one script, and a snapshot: the replies of the JSON API
by their addresses, as the server would have sent them. The page asks the snapshot in place of a server. It needs no
network, opens from disk, and a content security policy allows nothing but its own script and style, by their hashes.

It is bounded in size and time. Transcripts come in the order of the list until the room is used up; how many are not in
it is said on the page.
"""

import base64
import hashlib
import html
import itertools
import os
import re
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from ludus import __version__
from ludus.encoding import to_json
from ludus.errors import ConfigError, StoreError
from ludus.images import FOLDER as IMAGES
from ludus.run_info import REPORT
from ludus.view.acting import StartedCommands
from ludus.view.forms import FormBook
from ludus.view.model import ViewSession
from ludus.view.paging import Parameters
from ludus.view.routes import ViewState, answer
from ludus.view.run_folder import RunFolder
from ludus.view.server import WEB

LARGEST = 30_000_000
"""Bytes of the snapshot that `ludus report` writes."""
SMALL, SECONDS = 8_000_000, 10.0
"""Bytes and seconds of the report that is written at the end of a run."""
ROWS = 5_000
"""Rows of a list."""
TURNS = 200
_IMAGE_BYTES = 400_000
_IMAGE = re.compile(rb'"src":"/api/runs/[^"/]+/' + IMAGES.encode() + rb'/([0-9a-f]{32}\.(png|jpeg|gif|webp))"')
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./([\w-]+\.js)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?function|const|let|class)", re.MULTILINE)


# ---- the modules in one ---------------------------------------------------------------------------------------------


def join_modules(folder: Path = WEB, first: str = "main.js") -> str:
    """The modules of the pages as one script, each after those that it imports."""
    joined: dict[str, str] = {}
    entering: list[str] = []

    def add(name: str) -> None:
        if name in joined:
            return
        if name in entering:
            raise ConfigError(f"{name}: modules import each other in a circle: {' → '.join([*entering, name])}")
        entering.append(name)
        text = (folder / name).read_text("utf-8")
        for other in _IMPORT.findall(text):
            add(other)
        entering.remove(name)
        joined[name] = f"// {name}\n" + _EXPORT.sub("", _IMPORT.sub("", text))

    add(first)
    return "\n".join(joined.values())


def render_file(title: str, snapshot: Mapping[str, bytes], folder: Path = WEB) -> Iterator[bytes]:
    """The file, piece by piece."""
    script, style = join_modules(folder), (folder / "style.css").read_text("utf-8")
    if "</script" in script or "</style" in style:
        raise ConfigError("the modules of the pages must not contain </script or </style")
    page = (folder / "index.html").read_text("utf-8")
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    page = re.sub(r'<link rel="(?:icon|stylesheet)"[^>]*>\n?|<script[^>]*src=[^>]*></script>\n?', "", page)
    page = re.sub(r"<title>.*?</title>", lambda _: f"<title>{html.escape(title)}</title>", page)
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{style}</style>\n</head>'
    page = page.replace("</head>", head, 1)
    before, after = page.split("</body>", 1)
    yield before.encode() + b'<script type="application/json" id="snapshot">{'
    for number, (path, body) in enumerate(snapshot.items()):
        yield (b"," if number else b"") + escape_markup(to_json(path) + b":" + body)
    yield b'}</script>\n<script type="module">' + script.encode() + b"</script>\n</body>" + after.encode()


def escape_markup(json: bytes) -> bytes:
    """Escape every `<`, which begins and ends HTML elements. In JSON it occurs only in strings."""
    return json.replace(b"<", b"\\u003c")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


# ---- the snapshot -------------------------------------------------------------------------------------------------


class _Snapshot:
    """The replies for one run, within bounds."""

    def __init__(self, state: ViewState, run: str, largest: int, seconds: float | None) -> None:
        self._state = state
        self._run = run
        self._largest = largest
        self._end = None if seconds is None else time.monotonic() + seconds
        self.replies: dict[str, bytes] = {}
        self._size = 0

    def is_full(self) -> bool:
        return self._size > self._largest or (self._end is not None and time.monotonic() > self._end)

    def ask(self, *parts: str, **given: str) -> dict[str, Any] | None:
        """The reply for a path below the run; None if it is not a success. It is not kept."""
        reply = answer(
            self._state, "GET", ["runs", self._run, *parts], Parameters({n: [v] for n, v in given.items()}), b""
        )
        return msgspec.json.decode(reply.body) if reply.status == 200 else None

    def keep(self, value: object, *parts: str, query: str = "") -> None:
        body = self._place_images(to_json(value))
        path = "/".join(quote(part, safe="-_.!~*'()") for part in ("runs", self._run, *parts))
        self.replies[f"/api/{path}{query}"] = body
        self._size += len(body)

    def keep_list(self, *parts: str) -> list[dict[str, Any]]:
        """Keep a list as one page. Returns its rows."""
        rows, found, cursor = list[dict[str, Any]](), None, ""
        while len(rows) < ROWS and not self.is_full():
            page = self.ask(*parts, limit="500", **({"cursor": cursor} if cursor else {}))
            if page is None:
                break
            found = found or page
            rows += page["rows"]
            cursor = page["next"]
            if not cursor:
                break
        if found is not None:
            self.keep({**found, "rows": rows, "next": ""}, *parts)
        return rows

    def _place_images(self, body: bytes) -> bytes:
        folder = self._state.folder.find(self._run) / IMAGES

        def load(found: re.Match[bytes]) -> bytes:
            try:
                data = (folder / found[1].decode()).read_bytes()
            except OSError:
                data = b""
            if not data or len(data) > _IMAGE_BYTES:
                return b'"src":""'
            return b'"src":"data:image/' + found[2] + b";base64," + base64.b64encode(data) + b'"'

        return _IMAGE.sub(load, body)


def make_snapshot(state: ViewState, run: str, largest: int = LARGEST, seconds: float | None = None) -> dict[str, bytes]:
    """The replies of the API for one run.

    Raises:
        StoreError: the run cannot be read.
    """
    overview = answer(state, "GET", ["runs", run], Parameters(), b"")
    if overview.status != 200:
        raise StoreError(msgspec.json.decode(overview.body)["error"])
    shown = msgspec.json.decode(overview.body, type=dict[str, Any])
    kept = _Snapshot(state, run, largest, seconds)
    if (settings := kept.ask("settings")) is not None:
        kept.keep(settings, "settings")
    kept.keep_list("tasks")
    if shown["has_skill"]:
        _keep_skills(kept)
    if shown["has_weights"]:
        if (weights := kept.ask("rl", limit="500", sort="-step")) is not None:
            kept.keep(weights, "rl")
        kept.keep_list("groups")
    rows = kept.keep_list("rollouts")
    held = _keep_rollouts(kept, [str(row["id"]) for row in rows])
    total = shown["card"]["rollouts"]
    if held < total:
        left = f"This report holds {held:,} of {total:,} transcripts; open the run with ludus view to see the others."
        shown["warning"] = " ".join(filter(None, [shown["warning"], left]))
    shown |= {"live": None, "can_control": False}
    kept.keep(shown)
    session = ViewSession(version=__version__, title=run, read_only=True, static=True, may_act=False, single=run)
    session = msgspec.structs.replace(session, why_not="this is a report", now=time.time())
    page: dict[str, Any] = {"rows": [shown["card"]], "total": 1, "next": "", "pending": 0, "choices": {}}
    return {"/api/session": to_json(session), "/api/runs": to_json(page), **kept.replies}


def _keep_skills(kept: _Snapshot) -> None:
    """The versions of a skill, the blame of those that count, and the differences of neighbours."""
    listed = kept.ask("skills")
    if listed is None:
        return
    kept.keep({**listed, "can_review": False, "why_not": "this is a report"}, "skills")
    hashes = [version["hash"] for version in listed["versions"]]
    for hash in hashes:
        if kept.is_full():
            return
        for parts in (("skills", hash), ("skills", hash, "blame")):
            if (found := kept.ask(*parts)) is not None:
                kept.keep({**found, "can_review": False} if "can_review" in found else found, *parts)
    pairs = set(itertools.pairwise(hashes))
    pairs |= {(listed["initial"], hash) for hash in hashes}
    for left, right in sorted(pairs):
        if not kept.is_full() and (found := kept.ask("skills", "diff", left=left, right=right)) is not None:
            kept.keep(found, "skills", "diff", query=f"?left={left}&right={right}")


def _keep_rollouts(kept: _Snapshot, ids: Iterable[str]) -> int:
    """Transcripts, until the room is used up. Returns how many."""
    held, every = 0, list(ids)
    for place, id in enumerate(every):
        if kept.is_full():
            break
        detail = kept.ask("rollouts", id, place="no")
        if detail is None:
            continue
        detail |= {"place": place + 1, "of": len(every), "before": int(every[place - 1]) if place else None}
        detail["after"] = int(every[place + 1]) if place + 1 < len(every) else None
        held += 1
        kept.keep(detail, "rollouts", id)
        turns = list(detail["page"]["turns"])
        after = detail["page"]["next"]
        while after and len(turns) < TURNS and not kept.is_full():
            page = kept.ask("rollouts", id, "turns", first=str(after), limit="100")
            if page is None:
                break
            turns, after = [*turns, *page["turns"]], page["next"]
        if len(turns) > len(detail["page"]["turns"]):
            kept.keep({**detail["page"], "turns": turns, "next": 0}, "rollouts", id, "turns")
        if detail["has_tokens"] and (tokens := kept.ask("rollouts", id, "tokens", limit="4000")) is not None:
            kept.keep({**tokens, "next": 0, "total": len(tokens["ids"])}, "rollouts", id, "tokens")
    return held


# ---- writing ------------------------------------------------------------------------------------------------------


def write_report(run: Path, out: Path, largest: int = LARGEST, seconds: float | None = None) -> Path:
    """Write the report of a run to a file, which appears when it is whole.

    Raises:
        StoreError: the run cannot be read, or the file cannot be written.
    """
    with tempfile.TemporaryDirectory() as temporary, RunFolder([run], Path(temporary)) as folder:
        ids = list(folder.scan())
        if len(ids) != 1 or folder.find(ids[0]) != run:
            raise ConfigError(f"{run} is not a run: name one run directory")
        while folder.facts.build(run):  # older rollouts
            pass
        state = ViewState(folder, FormBook(run.parent), StartedCommands(Path(temporary), run.parent))
        snapshot = make_snapshot(state, ids[0], largest, seconds)
    title = f"{run.resolve().name}: Ludus"
    beside = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        with beside.open("wb") as file:
            file.writelines(render_file(title, snapshot))
        beside.replace(out)
    except OSError as error:
        raise StoreError(f"{out} cannot be written: {error.strerror or error}") from error
    finally:
        beside.unlink(missing_ok=True)
    return out


def write_end_report(run: Path) -> Path:
    """Write the report of a run that has ended into its directory: small, and in little time."""
    return write_report(run, run / REPORT, SMALL, SECONDS)
