"""The lines of a run as cards of its report: situation, evidence with links to the transcripts, and history."""

from collections.abc import Iterable, Sequence

from ludus.reflact.report.html_tags import Html, el, join_html
from ludus.reflact.report.line_histories import (
    LineHistory,
    RolloutPlace,
    describe_event,
    describe_situation,
    describe_worth,
)
from ludus.reflact.report.transcripts_page import make_link

_SHOWN = 40
"""The number of rollouts that are listed. Further ones are only counted."""
_KINDS = {"working": "positive", "waiting": "zero", "retired": "negative"}


def render_lines(histories: Sequence[LineHistory]) -> Iterable[Html]:
    """A card for each line."""
    return (_render_line(history) for history in histories)


def _render_line(history: LineHistory) -> Html:
    line = history.line
    counts = (len(history.evidence_for), len(history.evidence_against), len(history.suspected))
    title = (
        el("span", f"chip {_KINDS[history.status]}", history.status),
        el("span", "id", line.id),
        el("span", "from", f"{describe_worth(history)} · {counts[0]} for, {counts[1]} against, {counts[2]} suspicions"),
        el("span", "line", line.edit.content or f"(delete) {line.edit.target}"),
    )
    evidence = {
        "For: its situation did not occur": history.evidence_for,
        "Against: its situation occurred": history.evidence_against,
        "Suspected of misleading the agent": history.suspected,
    }
    passed = f"{history.passed} of {history.rollouts} rollouts with it passed"
    about = join_html([line.situation, f": {describe_situation(history.situation)}"])
    origin = "a passage of the initial skill" if line.passage else "proposed from: "
    inside = [
        *(() if line.passage else _render_section("Situation", about)),
        *(part for name, places in evidence.items() for part in _render_section(name, list_places(places))),
        *_render_section("History", join_html([el("div", "", describe_event(event)) for event in history.events])),
        el("div", "from", f"{passed}; {origin}", "" if line.passage else _link_tasks(line.born, line.edit.evidence)),
    ]
    return el("details", "group", el("summary", "", *title), el("div", "inside", *inside))


def _render_section(title: str, body: Html) -> tuple[Html, Html]:
    return el("h3", "", title), el("div", "from", body)


def _link_tasks(step: int, tasks: Sequence[str]) -> Html:
    return list_places([RolloutPlace(step, task) for task in tasks])


def list_places(places: Sequence[RolloutPlace]) -> Html:
    """Rollouts as links to their transcripts."""
    if not places:
        return Html("none")
    links = [
        el("a", "", f"{place.task} (step {place.step})", href=make_link(f"step {place.step}", place.task))
        for place in places[:_SHOWN]
    ]
    more = f" and {len(places) - _SHOWN} more" if len(places) > _SHOWN else ""
    return join_html([Html(", ".join(links)), more])
