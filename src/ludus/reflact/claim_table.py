"""The arms of a claim on a terminal: one small table, and what it says in words."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec import UNSET
from msgspec.structs import replace

from ludus.command.terminal import format_count, make_table, make_text
from ludus.reflact.gate import METRICS, Gate, format_result
from ludus.reflact.records import ClaimArms, Product, Summary, TransferArm, project_bucket
from ludus.reflact.shipping import format_points
from ludus.stats import Interval

if TYPE_CHECKING:  # importing rich takes a while, and most commands do not draw
    from rich.console import Console


def print_arms(summary: Summary, console: "Console", gate: Gate) -> None:
    """Print the table of the arms, and their sentence. Nothing if there are none. `gate`: that of the run, with the
    metric that it used."""
    if summary.arms is None:
        return
    gate = _find_metric(summary.arms, gate)
    result = "passes" if gate.metric == "hard" else METRICS[gate.metric]
    table = make_table("arm", result, "tasks", "rollouts", "tokens", whole=(1, 2, 3, 4))
    for row in list_arm_rows(summary, gate):
        table.add_row(*map(make_text, row))
    if table.row_count:
        console.print(table)
    console.print(make_text(f"{summary.arms.sentence}\n"), soft_wrap=True)


def _find_metric(arms: ClaimArms, gate: Gate) -> Gate:
    """The gate with the metric of the arms. Those of earlier versions are about passed tasks."""
    return replace(gate, metric="hard") if arms.metric is UNSET else gate


def list_arm_rows(summary: Summary, gate: Gate) -> Iterator[tuple[str, str, str, str, str]]:
    """The rows: what was compared, its result, and what it took. The rollouts of a skill are those of its training."""
    arms = summary.arms
    if arms is None or (arms.best_of is None and not arms.transfers):
        return
    took = (str(arms.training_rollouts), format_count(arms.training_tokens))
    yield ("new skill, 1 try", *_describe_test(summary.best, gate), *took)
    yield ("initial skill, 1 try", *_describe_test(summary.initial, gate), "0", "0")
    if (best := arms.best_of) is not None:
        name = f"initial skill, best of {best.samples} tries"
        spent = (str(best.rollouts), format_count(best.tokens))
        yield (name, _format_share(best.passed, best.interval, gate), str(best.tasks), *spent)
    for arm in arms.transfers:
        yield (
            _name_transfer(arm),
            _format_change(arm, gate),
            str(arm.tasks),
            str(arm.rollouts),
            format_count(arm.tokens),
        )


def _describe_test(product: Product, gate: Gate) -> tuple[str, str]:
    if product.test is None:
        return "not tested", ""
    bucket = product.test.overall
    interval = bucket.interval if gate.metric == "hard" else None  # its interval is that of passed tasks
    return _format_share(project_bucket(gate, bucket), interval, gate), str(bucket.scored)


def _format_share(share: float | None, interval: Interval | None, gate: Gate) -> str:
    if share is None:
        return "no result"
    result = format_result(share, gate.metric)
    if interval is None:
        return result
    low, high = (f"{100 * end:.0f}" if gate.metric == "hard" else f"{end:.2f}" for end in (interval.low, interval.high))
    return f"{result} [{low}, {high}]"


def _name_transfer(arm: TransferArm) -> str:
    return f"new skill on held-out tasks: {arm.name}" if arm.what == "tasks" else f"new skill with the model {arm.name}"


def _format_change(arm: TransferArm, gate: Gate) -> str:
    if arm.initial is None or arm.shipped is None or arm.difference is None or arm.interval is None:
        return "no result"
    band = f"[{format_points(arm.interval.low)}, {format_points(arm.interval.high)}]"
    old, new = (format_result(share, gate.metric) for share in (arm.initial, arm.shipped))
    return f"{old} → {new}: {format_points(arm.difference)} {band}"
