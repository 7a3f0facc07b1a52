"""Runs beside each other: paired differences, a grid of tasks, settings that differ, cost for what was reached.

The statistics are those of `ludus compare` (`ludus.comparison`), which takes tasks with their scores. Here these come
from the index: no rollout is read.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ludus.comparison import ComparedRun, TaskKey, TaskScore, compare_scores
from ludus.errors import ConfigError, StoreError
from ludus.stats import compute_interval
from ludus.types import Usage
from ludus.view.facts import RunFacts
from ludus.view.model import (
    ChartCurve,
    CostPerPoint,
    GridCell,
    GridRow,
    RunCard,
    SettingDifference,
    Versus,
)
from ludus.view.overview import list_curves, measure_spread
from ludus.view.paging import DEFAULT, MOST, Parameters, read_cursor, write_cursor
from ludus.view.run_folder import RunFolder

MOST_RUNS = 8
MOST_DIFFERING = 100
"""Tasks that are listed for a pair; the grid has all."""
_TASK = (
    "split, task, max(kind), max(asked), count(*), count(score), avg(score), "
    "avg(CASE WHEN suspect = 0 THEN score END), ifnull(sum(passed), 0), sum(prompt), sum(completion), "
    "sum(dollars), min(id)"
)


class _Compared(msgspec.Struct):
    """A run as it is compared."""

    card: RunCard
    run: ComparedRun
    tasks: dict[TaskKey, tuple[Any, ...]]
    config: dict[str, Any]
    curves: tuple[ChartCurve, ...]


def compare_folder_runs(folder: RunFolder, given: Parameters) -> Versus:
    """Compare runs of a folder."""
    ids = tuple(dict.fromkeys(given.get_all("run")))
    if not 2 <= len(ids) <= MOST_RUNS:
        raise ConfigError(f"run: name 2 to {MOST_RUNS} runs, as in /api/compare?run=A&run=B")
    found, problems = list[_Compared](), list[str]()
    for id in ids:
        card = folder.get_card(id)
        try:
            with folder.facts.open(folder.find(id)) as facts:
                found.append(_read_run(facts, card))
        except StoreError as error:
            problems.append(f"{id}: {error}")
    scores = {each.card.id: _score_tasks(each.tasks) for each in found}
    pairs = list(compare_scores(scores))
    rows, total, after = _page_grid(found, ids, given)
    return Versus(
        runs=tuple(each.run for each in found),
        cards=tuple(each.card for each in found),
        pairs=tuple(
            msgspec.structs.replace(
                pair, won_tasks=pair.won_tasks[:MOST_DIFFERING], lost_tasks=pair.lost_tasks[:MOST_DIFFERING]
            )
            for pair in pairs
        ),
        grid=rows,
        total=total,
        next=after,
        settings=compare_settings([each.config for each in found]),
        curves={each.card.id: each.curves for each in found},
        costs=tuple(_find_cost(each) for each in found),
        problems=tuple(problems),
    )


def _read_run(facts: RunFacts, card: RunCard) -> _Compared:
    tasks = {(row[0], row[1]): row for row in facts.select(_TASK, "GROUP BY split, task")}
    means = [row[6] for row in tasks.values() if row[6] is not None]
    sure = [row[7] for row in tasks.values() if row[7] is not None]
    prompt, completion, dollars = facts.select_one("sum(prompt), sum(completion), sum(dollars)") or (0, 0, 0.0)
    models = [model for (model,) in facts.select("model", "GROUP BY 1 ORDER BY min(id) LIMIT 10")]
    spread = measure_spread(facts, "seconds")
    run = ComparedRun(
        name=card.id,
        model=", ".join(models),
        mean=sum(means) / len(means) if means else None,
        interval=compute_interval(means, min([0.0, *means]), max([1.0, *means])),
        tasks=len(tasks),
        rollouts=sum(row[4] for row in tasks.values()),
        excluded=sum(row[4] - row[5] for row in tasks.values()),
        suspects=card.suspects,
        mean_without_suspects=sum(sure) / len(sure) if sure and card.suspects else None,
        usage=Usage(prompt or 0, completion or 0, 0, dollars or 0.0),
        median_seconds=spread.median if spread else None,
    )
    return _Compared(card, run, tasks, dict(facts.directory.config), list_curves(facts, card.kind))


def _score_tasks(tasks: Mapping[TaskKey, tuple[Any, ...]]) -> dict[TaskKey, TaskScore]:
    return {
        key: TaskScore(key[1], key[0], row[3], row[6], row[7], Usage(row[9], row[10], 0, row[11]), row[4])
        for key, row in tasks.items()
        if row[6] is not None
    }


def _page_grid(
    found: Sequence[_Compared], ids: Sequence[str], given: Parameters
) -> tuple[tuple[GridRow, ...], int, str]:
    """A page of the grid of tasks and runs."""
    words, differs = given.get("q").lower(), given.is_set("differs")
    keys = dict.fromkeys(key for each in found for key in each.tasks if words in key[1].lower())
    rows = [_make_grid_row(key, found) for key in keys]
    if differs:
        rows = [row for row in rows if row.spread]
    sort = given.get("sort") or "-spread"
    if sort.removeprefix("-") not in ("task", "spread"):
        raise ConfigError("sort: task or spread")
    rows.sort(key=lambda row: (row.split, row.task))
    if sort.removeprefix("-") == "spread":
        rows.sort(key=lambda row: row.spread, reverse=sort.startswith("-"))
    elif sort.startswith("-"):
        rows.reverse()
    query = ("compare", tuple(ids), sort, words, differs)
    place = read_cursor(given.get("cursor"), query)
    start = int(place[0]) if place else given.get_whole("offset", 0)
    limit = given.get_whole("limit", DEFAULT, 1, MOST)
    end = start + limit
    return tuple(rows[start:end]), len(rows), write_cursor(query, end, 0) if end < len(rows) else ""


def _make_grid_row(key: TaskKey, found: Sequence[_Compared]) -> GridRow:
    rows = [each.tasks.get(key) for each in found]
    cells = tuple(
        GridCell(score=row[6], passed=row[8], scored=row[5], rollouts=row[4], rollout=row[12]) if row else GridCell()
        for row in rows
    )
    scores = [cell.score for cell in cells if cell.score is not None]
    known = [row for row in rows if row]
    return GridRow(
        task=key[1],
        split=key[0],
        kind=known[0][2],
        cells=cells,
        spread=max(scores) - min(scores) if len(scores) > 1 else 0.0,
        same=len({row[3] for row in known}) == 1,
    )


def compare_settings(configs: Sequence[Mapping[str, Any]]) -> tuple[SettingDifference, ...]:
    """The settings in which runs differ. Pure."""
    flat = [_flatten(config) for config in configs]
    keys = sorted({key for each in flat for key in each})
    rows = [(key, tuple(each.get(key, "") for each in flat)) for key in keys]
    return tuple(SettingDifference(key, values) for key, values in rows if len(set(values)) > 1)[:1000]


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            flat |= _flatten(value, f"{prefix}{name}.")  # pyright: ignore[reportUnknownArgumentType]
        else:
            flat[prefix + name] = msgspec.json.encode(value).decode()[:1000]
    return flat


def _find_cost(each: _Compared) -> CostPerPoint:
    card, points = each.card, sum(row[6] * row[5] for row in each.tasks.values() if row[6] is not None)
    dollars, tokens, rollouts = card.dollars, card.tokens, card.rollouts
    return CostPerPoint(
        run=card.id,
        dollars=dollars,
        tokens=tokens,
        rollouts=rollouts,
        score=each.run.mean,
        dollars_per_rollout=dollars / rollouts if rollouts else None,
        dollars_per_point=dollars / points if points > 0 else None,
        tokens_per_point=tokens / points if points > 0 else None,
    )
