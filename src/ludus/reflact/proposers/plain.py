"""A proposer for small models: one short question for each sort of failed tasks, and one rule as the reply.

The analysts ask for causes, suspects and edits in one form. A model of one or two billion parameters cannot fill it: it
copies the example of the form. It can say what a few tasks of one sort have in common.

    failed tasks ──> sorts (`Task.kind`) ──> of each, a few tasks with what would have been right ──> a rule

A task whose reference is a text is shown with the reference alone, without the wrong answer: small models mix the two
up. Any other task is shown with the agent's answer and the verifier's feedback. From one or two tasks a small model
makes a rule about their names and numbers. So a sort with few failures is filled up with tasks of it that passed, where
their references say what is right.

Most rules of a small model are wrong. The recipe `ledger` finds out which ones help: rules about one sort compete, at
most one of them is in a text, and a failure of the sort speaks against the rule that was there.
"""

from collections.abc import AsyncIterator, Sequence
from typing import ClassVar

from msgspec import Struct

from ludus.reflact.items import Item, credit_item
from ludus.reflact.journal import open_task_group
from ludus.reflact.measure import is_success
from ludus.reflact.prompt_templates import PLAIN_PROMPT
from ludus.reflact.proposers import Proposer, View
from ludus.reflact.records import Pattern, Reflection, UnusableReply
from ludus.reflact.transcript import shorten
from ludus.skill import MARKED, Edit, remove_markers
from ludus.types import Rollout

SHOWN = 4
"""Tasks of one sort in a request. More do not help a small model."""
_TEXT = 600
"""Characters of a prompt, an answer or a feedback that are shown."""


class RuleReply(Struct, frozen=True):
    """The reply to a request."""

    rule: str


class PlainAnalyst(Proposer):
    """Asks for one rule per sort of failed tasks."""

    name: ClassVar[str] = "plain"
    needs_optimizer: ClassVar[bool] = True
    simulated: ClassVar[bool] = True
    version: ClassVar[str] = "2"
    own_prompts: ClassVar[tuple[str, ...]] = (PLAIN_PROMPT,)
    patterns_are_causes: ClassVar[bool] = True

    async def reflect(self, view: View, batch: int, rollouts: AsyncIterator[Rollout]) -> tuple[Reflection, ...]:
        judged = [rollout async for rollout in rollouts if rollout.score is not None]
        failed = [rollout for rollout in judged if not is_success(rollout, view.settings.success_at)]
        sorts = divide_by_sort(failed)
        passed = find_passed(judged, failed) if view.settings.show_reference else []
        most = max(1, view.settings.edit_budget)
        async with open_task_group() as group:
            asked = [
                group.create_task(_ask_for_rule(view, sort, passed, f"{view.epoch}/{view.step}/{batch}/{number}"))
                for number, sort in enumerate(sorts[:most])
            ]
        others = (_make_reflection(sort) for sort in sorts[most:])
        return (*(task.result() for task in asked), *others)


def divide_by_sort(failed: Sequence[Rollout]) -> list[list[Rollout]]:
    """The failed rollouts by the kind of their tasks, one for each task, the sort with the most tasks first."""
    sorts: dict[str, dict[str, Rollout]] = {}
    for rollout in failed:
        sorts.setdefault(rollout.task.kind, {}).setdefault(rollout.task.id, rollout)
    return [list(sort.values()) for sort in sorted(sorts.values(), key=len, reverse=True)]


def find_passed(judged: Sequence[Rollout], failed: Sequence[Rollout]) -> list[Rollout]:
    """One rollout of each task that only passed, if its reference is a text."""
    wrong = {rollout.task.id for rollout in failed}
    found = {rollout.task.id: rollout for rollout in judged if rollout.task.id not in wrong}
    return [rollout for rollout in found.values() if read_reference(rollout)]


async def _ask_for_rule(view: View, sort: Sequence[Rollout], passed: Sequence[Rollout], place: str) -> Reflection:
    shown = sort[:SHOWN]
    others = [rollout for rollout in passed if rollout.task.kind == sort[0].task.kind][: SHOWN - len(shown)]
    reply = await view.require_optimizer().ask(
        PLAIN_PROMPT,
        {"tasks": "\n\n".join(describe_failure(r, reference=view.settings.show_reference) for r in [*shown, *others])},
        RuleReply,
        stage="analyst",
        place=place,
        otherwise="these failures proposed nothing",
        check=lambda reply: "" if reply.rule.strip() else "the rule is empty",
    )
    if isinstance(reply, UnusableReply):
        return _make_reflection(sort)
    edit = Edit("append", remove_markers(reply.rule, MARKED).strip())
    return _make_reflection(sort, credit_item(edit, "failure", [rollout.task.id for rollout in shown]))


def _make_reflection(sort: Sequence[Rollout], *items: Item) -> Reflection:
    tasks, kind = tuple(rollout.task.id for rollout in sort), sort[0].task.kind
    about = f"tasks of the kind {kind} fail" if kind else "tasks fail"
    return Reflection("failure", tasks, items, (Pattern(kind or "every failure", about, tasks),))


def read_reference(rollout: Rollout) -> str:
    """The reference of the task, if it is a text."""
    return rollout.task.answer.strip() if isinstance(rollout.task.answer, str) else ""


def describe_failure(rollout: Rollout, *, reference: bool) -> str:
    """A failed task and what would have been right, as well as it is known."""
    task, score = rollout.task, rollout.score
    assert score is not None
    asked = f"Task: {shorten(task.prompt.strip(), _TEXT)}"
    if reference and (right := read_reference(rollout)):
        return f"{asked}\nRight answer: {shorten(right, _TEXT)}"
    answer = shorten(rollout.answer.strip(), _TEXT) or "(nothing)"
    return f"{asked}\nIts answer: {answer}\nWhat was wrong: {shorten(score.feedback.strip(), _TEXT) or 'not known'}"
