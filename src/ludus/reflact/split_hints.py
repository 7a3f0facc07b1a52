"""What to know about the splits of a run before it spends anything: how they were chosen, and whether few tasks decide.
Pure."""

from collections.abc import Iterator

from ludus.reflact.paired_evidence import FEWEST_TASKS
from ludus.reflact.shipping import explain_rule
from ludus.reflact.splits import FEW, FEW_TESTS, USUAL_RATIO, Sizes, choose_ratio, compute_sizes, format_ratio
from ludus.reflact.train_settings import DataSettings, TrainSettings

_LARGER_RATIOS = ((2, 1, 1), (1, 1, 1), (1, 2, 1))
"""Divisions with more selection tasks than the usual one."""


def list_split_hints(data: DataSettings, settings: TrainSettings, sizes: Sizes, selection: int) -> list[str]:
    """The hints on splits of these sizes, of which `selection` selection tasks are used."""
    return [
        *_explain_choice(data, sizes),
        *_explain_few(data, settings, sizes, selection),
        *_explain_few_tests(settings, sizes),
    ]


def _explain_choice(data: DataSettings, sizes: Sizes) -> Iterator[str]:
    chosen = choose_ratio(sizes.total)
    if is_divided(data) and not data.ratio and chosen != USUAL_RATIO:
        fewer = compute_sizes(sizes.total, USUAL_RATIO)[1]
        yield (
            f"{sizes.total} tasks are divided {format_ratio(chosen)}: {sizes.train} to train, {sizes.selection} for "
            f"selection, {sizes.test} for the test. {format_ratio(USUAL_RATIO)}, as with many tasks, would leave "
            f"{fewer} for selection; --data.ratio sets it"
        )


def _explain_few(data: DataSettings, settings: TrainSettings, sizes: Sizes, selection: int) -> Iterator[str]:
    if warning := explain_rule(settings, selection):
        yield warning
        ways = _list_ways(data, sizes, selection, FEWEST_TASKS) if selection < FEWEST_TASKS else []
        if ways:
            yield f"for more selection tasks: {'; '.join(ways)}"
        return
    if selection * settings.selection_replicates >= FEW:
        return
    ways = _list_ways(data, sizes, selection, sizes.selection + 1)
    ways += ["more rollouts: --train.selection_replicates 3"] if settings.recipe == "reflact" else []
    count = f"{selection} selection task{'' if selection == 1 else 's'}"
    yield (
        f"the run has {count}: only a large gain shows on so few (see `ludus headroom`). What helps: "
        f"{'; '.join([*ways, 'more tasks'])}"
    )


def _list_ways(data: DataSettings, sizes: Sizes, selection: int, least: int) -> list[str]:
    """How to have more selection tasks, at least so many."""
    larger = [ratio for ratio in _LARGER_RATIOS if compute_sizes(sizes.total, ratio)[1] >= least]
    divided = is_divided(data) and data.ratio and larger  # a ratio that Ludus chose is the best that is known
    ways = [f"a larger share: --data.ratio {format_ratio(larger[0])}"] if divided else []
    return [*ways, *(["all of them: --train.selection_size 0"] if selection < sizes.selection else [])]


def _explain_few_tests(settings: TrainSettings, sizes: Sizes) -> Iterator[str]:
    tests = min(sizes.test, settings.test_size or sizes.test)
    if settings.test and 0 < tests < FEW_TESTS and settings.test_replicates == 1:
        used = f"{tests} of {sizes.test} test tasks are used" if tests < sizes.test else f"the test split has {tests}"
        used += "" if tests < sizes.test else f" task{'' if tests == 1 else 's'}"
        yield (
            f"{used}: the interval of the claim will be wide. What helps: more rollouts, --train.test_replicates 8; "
            "more tasks"
        )


def is_divided(data: DataSettings) -> bool:
    """Whether the sizes are those of a pool that was divided by a ratio."""
    return data.mode == "ratio" and not data.limit
