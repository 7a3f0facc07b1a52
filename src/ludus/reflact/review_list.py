"""The changes of a skill on the terminal, each with its evidence and with what was decided about it."""

import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ludus.command.terminal import count_things, make_console, make_text
from ludus.models.token_estimate import estimate_text
from ludus.reflact.line_list import list_rollouts
from ludus.reflact.review import ReviewDecision, ReviewState
from ludus.reflact.review_changes import ChangeEvidence, SkillChange
from ludus.reflact.shipping import format_points

if TYPE_CHECKING:
    from rich.console import Console

_TASKS = 5
"""The number of tasks that are named. --json has all of them."""


def print_changes(state: ReviewState, *, left_out: bool) -> None:
    """Print the changes of a version; with `left_out` also those that are not in it."""
    console = make_console()
    listed = state.listed
    shown = listed.changes if left_out else listed.included
    for change in shown:
        print_change(console, change, state.decisions.get(change.id))
    rest = len(listed.changes) - len(shown)
    words = f"{count_things(len(listed.included), 'change')} in '{listed.version}' ({listed.skill.hash})"
    words += f", {len(state.undecided)} undecided" if listed.included else ""
    words += f"; {count_things(rest, 'more proposal')} not in it (--all)" if rest else ""
    console.print(make_text(words, "dim"), soft_wrap=True)


def print_change(console: "Console", change: SkillChange, decision: ReviewDecision | None, head: str = "") -> None:
    """Print one change."""
    place = f"line {change.line}" if change.included else f"not in the text: {change.why}"
    saved = estimate_text(change.before) if change.op == "remove" else 0
    size = f"saves about {saved} tokens" if saved else f"about {change.tokens} tokens"
    title = f"{head}{change.id}  {change.path}, {place}  ({size})"
    console.print(make_text(title, "bold"), soft_wrap=True)
    for mark, text, colour in (("-", change.before, "red"), ("+", change.text, "green")):
        if text:
            console.print(make_text(textwrap.indent(text, f"  {mark} ", lambda _: True), colour), soft_wrap=True)
    if change.previous.strip() not in ("", change.before.strip()):
        console.print(make_text(textwrap.indent(f"before the last change: {change.previous}", "    "), "dim"))
    for line in list_facts(change.evidence):
        console.print(make_text(f"    {line}"), soft_wrap=True)
    if decision is not None:
        console.print(make_text(f"    decided    {describe_decision(decision)}", "yellow"), soft_wrap=True)
    console.print()


def list_facts(found: ChangeEvidence) -> Iterator[str]:
    """What is known about a change, line by line."""
    if found.passage:
        yield f"passage    {found.passage}"
        yield f"left out   {f'in step {found.step}' if found.step else 'by training'}"
    elif found.epoch:
        yield f"written    after epoch {found.epoch}"
    elif found.step:
        yield f"written    in step {found.step}"
    if found.situation:
        yield f"situation  {found.situation}"
    if found.learned_from:
        count = found.support or len(found.learned_from)
        yield f"from       {count_things(count, f'{found.source} rollout')}: {_name(found.learned_from)}"
    if found.evidence_for or found.evidence_against or found.suspected:
        if not found.passage:
            yield f"for        {list_rollouts(found.evidence_for)}"
            yield f"against    {list_rollouts(found.evidence_against)}"
        yield f"suspected  {list_rollouts(found.suspected)}"
    if found.rollouts:
        yield f"rollouts   {found.passed} of {found.rollouts} with it passed"
    if found.difference is not None and not found.passage:
        yield f"worth      {_describe_worth(found)}"
    if found.decision:
        yield f"training   {found.decision.replace('_', ' ')}"


def _describe_worth(found: ChangeEvidence) -> str:
    assert found.difference is not None
    words = f"{format_points(found.difference)} points"
    if found.interval is not None:
        words += f" [{format_points(found.interval.low)}, {format_points(found.interval.high)}]"
    if found.certainty is not None:
        words += f", helps with {found.certainty:.0%}"
    return words + ("" if found.alone else " (with the other changes of its step)")


def _name(tasks: Sequence[str]) -> str:
    more = f" and {len(tasks) - _TASKS} more" if len(tasks) > _TASKS else ""
    return ", ".join(tasks[:_TASKS]) + more


def describe_decision(decision: ReviewDecision) -> str:
    """A decision in words."""
    who = f" by {decision.who}" if decision.who else ""
    reason = f": {decision.reason}" if decision.reason else ""
    text = f" → {decision.text}" if decision.text else ""
    return f"{decision.action}{who}{reason}{text}"
