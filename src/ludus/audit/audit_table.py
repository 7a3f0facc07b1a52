"""What `ludus audit` prints."""

from pathlib import Path

from ludus.audit.findings import AuditReport, TaskAudit

SHOWN = 20
"""Tasks that are printed."""


def format_report(report: AuditReport, out: Path | None = None) -> str:
    """The findings in words: unsound tasks first, then what to change."""
    unsound = [task for task in report.tasks if not task.sound]
    lines = [
        f"{report.env} (version {report.version}), split {report.split}: {len(report.tasks)} tasks, "
        f"{len(report.attacks)} attacks",
        *(f"note: {note}" for note in report.notes),
        *(f"validate: {check}" for check in report.checks),
    ]
    for task in unsound[:SHOWN]:
        lines += _describe_task(task)
    if len(unsound) > SHOWN:
        lines.append(f"… and {len(unsound) - SHOWN} more tasks{f': see {out}' if out else ''}")
    lines += _describe_guess(report)
    lines += _list_counts_on(report)
    lines.append(report.words)
    return "\n".join(lines)


def _describe_task(task: TaskAudit) -> list[str]:
    paid = ", ".join(f"{each.attack} ({each.value:g})" for each in task.paid)
    lines = [f"  {task.task}"]
    if paid:
        lines.append(f"    paid: {paid}")
    if task.noticed:
        lines.append(f"    noticed: {', '.join(task.noticed)}")
    return [*lines, *(f"    {problem}" for problem in task.problems)]


def _describe_guess(report: AuditReport) -> list[str]:
    guess = report.guess
    if guess is None or guess.mean == 0:
        return []
    problem = ": too many tasks have this answer; leave them out, or ask for more" if report.is_guessable else ""
    return [f"the best constant answer, '{guess.answer}', earns {guess.mean:.2f} of 1{problem}"]


def _list_counts_on(report: AuditReport) -> list[str]:
    paid = {each.attack: each.counts_on for task in report.tasks for each in task.paid if each.counts_on}
    return ["what the paid attacks count on:", *(f"  {attack}: {why}" for attack, why in paid.items())] if paid else []
