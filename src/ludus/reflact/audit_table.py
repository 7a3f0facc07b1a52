"""The result of `ludus audit-skill` on a terminal."""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ludus.command.terminal import format_number, make_console, make_text
from ludus.errors import StoreError
from ludus.reflact.gate import METRICS

REPORT = "audit.json"
_COLOURS = {"helps": "green", "hurts": "red"}
_SHOWN = 160
"""The characters of a passage that are shown; the report has all of it."""


def print_audit(found: Mapping[str, Any] | None, out: Path) -> None:
    """Print each passage with its sentence, the harmful ones first; nothing if there is no result yet."""
    if found is None:
        return
    console = make_console()
    order = ("hurts", "helps", "small", "not told")
    for each in sorted(found["passages"], key=lambda each: (order.index(each["verdict"]), each["effect"] or 0.0)):
        text = " ".join(each["text"].split())
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
        console.print(make_text(f"{each['id']}  {each['sentence']}", _COLOURS.get(each["verdict"], "")), soft_wrap=True)
        console.print(make_text(f"    {shown}", "dim"), soft_wrap=True)
    failed = f", {found['failed']} without a score" if found["failed"] else ""
    mean = f", mean {_name_metric(found)} {format_number(found['score'])}"
    console.print(make_text(f"\n{found['rollouts']} rollouts on {found['tasks']} tasks{failed}{mean}", "dim"))
    console.print(make_text(found["summary"], "bold"), soft_wrap=True)
    console.print(make_text(f"\n{out / REPORT}   all numbers and the whole passages", "dim"), soft_wrap=True)
    console.print(make_text(f"  ludus show {shlex.quote(str(out))} TASK prints a transcript", "dim"), soft_wrap=True)


def _name_metric(found: Mapping[str, Any]) -> str:
    """What was compared. Reports of earlier versions compared passes."""
    metric = found.get("metric", "hard")
    return "pass rate" if metric == "hard" else METRICS[metric]


def show_audit(path: Path, state: str = "", *, as_json: bool) -> None:
    """Print an audit again. `state`: how it goes, if it is not finished."""
    try:
        found = json.loads((path / REPORT).read_text("utf-8"))
    except FileNotFoundError:
        now = f"not finished ({state})" if state else "not finished"
        raise StoreError(f"{path}: the run is {now}; ludus audit-skill --resume --out {path}") from None
    if as_json:
        print(json.dumps({"run": str(path), "audit": found}))
    else:
        print_audit(found, path)
