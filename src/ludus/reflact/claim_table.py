"""The arms of a claim on a terminal: one small table, and what it says in words."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ludus.command.terminal import format_count, make_table, make_text
from ludus.reflact.records import Product, Summary, TransferArm
from ludus.reflact.shipping import format_points
from ludus.stats import Interval

if TYPE_CHECKING:  # importing rich takes a while, and most commands do not draw
    from rich.console import Console


def print_arms(summary: Summary, console: "Console") -> None:
    """Print the table of the arms, and their sentence. Nothing if there are none."""
    if summary.arms is None:
        return
    table = make_table("arm", "passes", "tasks", "rollouts", "tokens", whole=(0,))
    for row in list_arm_rows(summary):
        table.add_row(*map(make_text, row))
    if table.row_count:
        console.print(table)
    console.print(make_text(f"{summary.arms.sentence}\n"), soft_wrap=True)


def list_arm_rows(summary: Summary) -> Iterator[tuple[str, str, str, str, str]]:
    """The rows: what was compared, its result, and what it took. The rollouts of a skill are those of its training."""
    arms = summary.arms
    if arms is None or (arms.best_of is None and not arms.transfers):
        return
    took = (str(arms.training_rollouts), format_count(arms.training_tokens))
    yield ("new skill, 1 try", *_describe_test(summary.best), *took)
    yield ("initial skill, 1 try", *_describe_test(summary.initial), "0", "0")
    if (best := arms.best_of) is not None:
        name = f"initial skill, best of {best.samples} (the verifier chooses)"
        spent = (str(best.rollouts), format_count(best.tokens))
        yield (name, _format_share(best.passed, best.interval), str(best.tasks), *spent)
    for arm in arms.transfers:
        yield (_name_transfer(arm), _format_change(arm), str(arm.tasks), str(arm.rollouts), format_count(arm.tokens))


def _describe_test(product: Product) -> tuple[str, str]:
    if product.test is None:
        return "not tested", ""
    bucket = product.test.overall
    return _format_share(bucket.hard, bucket.interval), str(bucket.scored)


def _format_share(share: float | None, interval: Interval | None) -> str:
    band = f" [{100 * interval.low:.0f}, {100 * interval.high:.0f}]" if interval else ""
    return "no result" if share is None else f"{share:.0%}{band}"


def _name_transfer(arm: TransferArm) -> str:
    return f"new skill on held-out tasks: {arm.name}" if arm.what == "tasks" else f"new skill with the model {arm.name}"


def _format_change(arm: TransferArm) -> str:
    if arm.initial is None or arm.shipped is None or arm.difference is None or arm.interval is None:
        return "no result"
    band = f"[{format_points(arm.interval.low)}, {format_points(arm.interval.high)}]"
    return f"{arm.initial:.0%} → {arm.shipped:.0%}: {format_points(arm.difference)} {band}"
