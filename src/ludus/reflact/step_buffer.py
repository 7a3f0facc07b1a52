"""What was tried in this epoch, so that it is not tried again. Pure.

Each step that reached the gate leaves a digest: how many tasks failed and in which patterns, which changes were
rejected, their effect on the score, and which edits could not be made. The tasks of a pattern are those that its
analyst named. Failures that no analyst named are grouped by the first words of their feedback.
"""

from collections.abc import Sequence

from ludus.reflact.gate import Decision, Verdict
from ludus.reflact.items import summarize_item
from ludus.reflact.measure import is_success
from ludus.reflact.records import Digest, Fate, Pattern, Reflection
from ludus.reflact.transcript import shorten
from ludus.types import Rollout

_LINE = 600
"""The number of characters of an item or a description that are kept."""


def make_digest(
    step: int,
    verdict: Verdict,
    rollouts: Sequence[Rollout],
    reflections: Sequence[Reflection],
    fates: Sequence[Fate],
    success_at: float | None,
) -> Digest:
    """The digest of a step."""
    judged = [rollout for rollout in rollouts if rollout.score is not None]
    failed = [rollout for rollout in judged if not is_success(rollout, success_at)]
    rejected = verdict.decision is Decision.REJECT
    tried = [fate for fate in fates if fate.status.startswith("applied") or fate.status == "used"]
    return Digest(
        step,
        verdict.decision.value,
        len(judged),
        len(failed),
        find_patterns(failed, reflections),
        verdict.current if rejected else None,
        verdict.candidate if rejected else None,
        tuple(_make_line(summarize_item(fate.item)) for fate in tried) if rejected else (),
        tuple(f"{_make_line(summarize_item(f.item))} ({f.status})" for f in fates if f.status.startswith("skipped")),
    )


def find_patterns(failed: Sequence[Rollout], reflections: Sequence[Reflection]) -> tuple[Pattern, ...]:
    """The patterns in which rollouts failed, each with its tasks."""
    ids = {rollout.task.id for rollout in failed}
    named = [
        Pattern(p.name, _make_line(p.description), tuple(task for task in p.tasks if task in ids))
        for r in reflections
        if r.source == "failure"
        for p in r.patterns
    ]
    covered = {task for pattern in named for task in pattern.tasks}
    others: dict[str, list[str]] = {}
    for rollout in failed:
        if rollout.task.id not in covered:
            reason = (rollout.score.feedback if rollout.score else "").split(":")[0].strip()
            others.setdefault(reason.splitlines()[0][:80] if reason else "no reason given", []).append(rollout.task.id)
    return (
        *(pattern for pattern in named if pattern.tasks),
        *(Pattern(reason, "", tuple(tasks)) for reason, tasks in others.items()),
    )


def describe_buffer(buffer: Sequence[Digest]) -> str:
    """The epoch so far as text for a prompt; empty if there is none."""
    return "\n\n".join(_describe_digest(digest) for digest in buffer)


def _describe_digest(digest: Digest) -> str:
    lines = [f"Step {digest.step}: {digest.decision}; {digest.failed} of {digest.tasks} tasks failed."]
    for pattern in digest.patterns:
        what = f": {pattern.description}" if pattern.description else ""
        lines.append(f"- {pattern.name}{what} ({len(pattern.tasks)} tasks: {', '.join(pattern.tasks)})")
    if digest.tried:
        lines.append(f"Tried and rejected (score {_format_number(digest.before)} → {_format_number(digest.after)}):")
        lines += [f"{number}. {item}" for number, item in enumerate(digest.tried, 1)]
    if digest.misplaced:
        lines.append("Could not be applied:")
        lines += [f"- {item}" for item in digest.misplaced]
    return "\n".join(lines)


def _format_number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.4f}"


def _make_line(text: str) -> str:
    return " ".join(shorten(text, _LINE).split())
