"""What to know about the splits of a run before it spends anything: how they were chosen, and whether few tasks decide.
Pure."""

from collections.abc import Iterator

from ludus.reflact.splits import FEW, USUAL_RATIO, Sizes, choose_ratio, compute_sizes, format_ratio
from ludus.reflact.train_settings import DataSettings, TrainSettings

_LARGER_RATIOS = ((1, 1, 1), (1, 2, 1))
"""Divisions with more selection tasks than the usual one."""


def list_split_hints(data: DataSettings, settings: TrainSettings, sizes: Sizes, selection: int) -> list[str]:
    """The hints on splits of these sizes, of which `selection` selection tasks are used."""
    return [*_explain_choice(data, sizes), *_explain_few(data, settings, sizes, selection)]


def _explain_choice(data: DataSettings, sizes: Sizes) -> Iterator[str]:
    chosen = choose_ratio(sizes.total)
    if is_divided(data) and not data.ratio and chosen != USUAL_RATIO:
        fewer = compute_sizes(sizes.total, USUAL_RATIO)[1]
        yield (
            f"data.ratio: {format_ratio(chosen)}, for {sizes.train} train, {sizes.selection} selection and "
            f"{sizes.test} test tasks: {format_ratio(USUAL_RATIO)} would leave {fewer} selection tasks"
        )


def _explain_few(data: DataSettings, settings: TrainSettings, sizes: Sizes, selection: int) -> Iterator[str]:
    if selection * settings.selection_replicates >= FEW:
        return
    larger = [ratio for ratio in _LARGER_RATIOS if compute_sizes(sizes.total, ratio)[1] > sizes.selection]
    ways = [f"a larger share: --data.ratio {format_ratio(larger[0])}"] if is_divided(data) and larger else []
    ways += ["all of them: --train.selection_size 0"] if selection < sizes.selection else []
    ways += ["more rollouts: --train.selection_replicates 3"] if settings.recipe == "reflact" else []
    yield (
        f"the run has {selection} selection tasks: they tell little apart (see `ludus headroom`). What helps: "
        f"{'; '.join([*ways, 'more tasks'])}"
    )


def is_divided(data: DataSettings) -> bool:
    """Whether the sizes are those of a pool that was divided by a ratio."""
    return data.mode == "ratio" and not data.limit
