"""What a training run did, in words and numbers, for tables and files. Pure."""

from collections.abc import Sequence

from ludus.reflact.records import Fate, Product, Record, Summary
from ludus.stats import PairedStats


def name_products(summary: Summary) -> dict[str, Product]:
    """The skills that a run ends with. The best one on the selection split is named if another one is shipped."""
    products = {"initial": summary.initial, "best": summary.best, "final": summary.final}
    best = summary.best_on_selection
    if best is not None and best.skill not in [product.skill for product in products.values()]:
        products["best on selection"] = best
    return products


def has_fresh_scores(summary: Summary) -> bool:
    """Whether the scores on the selection split were measured for shipping. Else the best one was chosen for its."""
    return summary.shipment is not None and summary.shipment.fresh and bool(summary.shipment.initial.marks)


def is_applied(fate: Fate) -> bool:
    """Whether the item is part of the candidate."""
    return fate.status.startswith("applied") or fate.status == "used"


def sum_times(records: Sequence[Record]) -> dict[str, float]:
    """The seconds of each stage, over all records."""
    sums: dict[str, float] = {}
    for record in records:
        for stage, seconds in record.seconds.items():
            sums[stage] = sums.get(stage, 0.0) + seconds
    return sums


def format_difference(paired: PairedStats) -> str:
    """The difference in points, with its 95 % interval."""
    low, high = format_points(paired.interval.low), format_points(paired.interval.high)
    return f"{format_points(paired.difference)} [{low}, {high}]"


def format_points(value: float) -> str:
    """A difference of scores in points, with its sign."""
    points = round(100 * value)
    return f"+{points}" if points > 0 else f"−{-points}" if points < 0 else "0"
