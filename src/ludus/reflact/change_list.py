"""The changes that a training run tried, with their results and the tasks they were learned from."""

import textwrap
from collections.abc import Sequence

from ludus.command.terminal import format_number
from ludus.reflact.items import Item, summarize_item
from ludus.reflact.records import Record, Step
from ludus.reflact.report.run_words import is_applied
from ludus.skill import Edit
from ludus.skill_examples import parse_examples

LINE = 100
"""The length at which a description is cut."""
MANY = 12
"""With more steps than this that tried something, only the accepted ones are listed."""


def describe_changes(records: Sequence[Record]) -> str:
    """What each step tried, whether it was accepted, and the tasks that it was learned from."""
    steps = [record for record in records if isinstance(record, Step) and record.verdict is not None]
    accepted = [step for step in steps if step.verdict and step.verdict.decision.accepted]
    listed = accepted if len(steps) > MANY else steps
    left = f"\n({len(steps) - len(listed)} that were not accepted: see the report)" if len(listed) < len(steps) else ""
    return "\n".join(_describe_step(step) for step in listed) + left


def _describe_step(step: Step) -> str:
    verdict = step.verdict
    assert verdict is not None
    before, after = ("?" if value is None else format_number(value) for value in (verdict.current, verdict.candidate))
    sign = "+" if verdict.decision.accepted else "-"
    lines = [f"step {step.number}: {verdict.decision.value.replace('_', ' ')}, {before} → {after}"]
    for item in (fate.item for fate in step.fates if is_applied(fate)):
        lines.append(f"  {sign} {_describe_item(item)}")
        lines.append(f"      from {item.support} {_name_source(item)}: {_list_tasks(item.evidence)}")
    return "\n".join(lines)


def _describe_item(item: Item) -> str:
    examples = parse_examples(item.content) if isinstance(item, Edit) else ()
    if isinstance(item, Edit) and len(examples) == 1:
        kind = "an example instead of another" if item.op == "replace" else "an example"
        return _shorten(f"{kind}: {examples[0].input} → {examples[0].output}")
    return _shorten(summarize_item(item))


def _name_source(item: Item) -> str:
    one, many = {"failure": ("failure", "failures"), "success": ("success", "successes")}.get(
        item.source, ("rollout", "rollouts")
    )
    return one if item.support == 1 else many


def _list_tasks(tasks: Sequence[str]) -> str:
    more = f" and {len(tasks) - 3} more" if len(tasks) > 3 else ""
    return _shorten(", ".join(tasks[:3])) + more


def _shorten(text: str) -> str:
    return textwrap.shorten(text, LINE, placeholder=" …")
