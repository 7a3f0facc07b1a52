"""The tasks and the rollouts of a run, in pages: sorted and filtered by SQL over the index."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ludus.outcome_facts import OutcomeFacts
from ludus.view.facts import RunFacts
from ludus.view.model import RolloutCard, RolloutPage, TaskCard, TaskPage
from ludus.view.paging import DEFAULT, MOST, Order, Parameters, choose_order, read_cursor, write_cursor

SORTS: Mapping[str, str] = {
    "id": "text:id",
    "task": "text:task",
    "score": "score",
    "turns": "turns",
    "seconds": "seconds",
    "tokens": "(prompt + completion)",
    "dollars": "dollars",
    "tool_errors": "errors",
    "began": "began",
}
TASK_SORTS: Mapping[str, str] = {
    "task": "text:task",
    "rate": "rate",
    "mean": "mean",
    "rollouts": "rollouts",
    "failed": "failed",
    "turns": "turns",
    "seconds": "seconds",
    "tokens": "tokens",
    "dollars": "dollars",
    "tool_errors": "tool_errors",
}
_RESULTS = {
    "passed": "passed = 1",
    "failed": "passed = 0",
    "unscored": "score IS NULL",
    "scored": "score IS NOT NULL",
}
_EQUAL = ("task", "kind", "stop", "failure", "model", "skill", "policy", "split")
"""Columns that a filter names with the values that they may have."""


class RowFilter(NamedTuple):
    """Which rows are listed: a condition in SQL, and its values."""

    condition: str
    values: tuple[object, ...]

    @property
    def where(self) -> str:
        return f"WHERE {self.condition}" if self.condition else ""

    def narrow(self, condition: str, *values: object) -> "RowFilter":
        joined = f"({self.condition}) AND {condition}" if self.condition else condition
        return RowFilter(joined, (*self.values, *values))


def read_filter(given: Parameters) -> RowFilter:
    """The filter that a request names."""
    found = RowFilter("", ())
    for name in _EQUAL:
        if values := given.get_all(name):
            found = found.narrow(f"{name} IN ({', '.join('?' * len(values))})", *values)
    if text := given.get("q"):
        found = found.narrow("instr(lower(task), lower(?)) > 0", text)
    if results := [condition for name, condition in _RESULTS.items() if name in given.get_all("result")]:
        found = found.narrow(f"({' OR '.join(results)})")
    if given.is_set("suspect"):
        found = found.narrow("suspect = 1")
    if given.is_set("errors"):
        found = found.narrow("errors > 0")
    return found


def list_rollouts(facts: RunFacts, given: Parameters) -> RolloutPage:
    """A page of rollouts."""
    order, chosen = choose_order(given.get("sort"), SORTS, "id"), read_filter(given)
    limit, offset = given.get_whole("limit", DEFAULT, 1, MOST), given.get_whole("offset", 0)
    query = (order.name, order.descending, chosen)
    page = chosen
    if (place := read_cursor(given.get("cursor"), query)) is not None:
        page = chosen.narrow(order.place_after(), *place)
    rows = list(
        facts.select(
            f"*, {order.expression}", f"{page.where} {order.clause} LIMIT ? OFFSET ?", (*page.values, limit + 1, offset)
        )
    )
    shown = rows[:limit]
    return RolloutPage(
        rows=tuple(make_card(OutcomeFacts(*row[:-1])) for row in shown),
        total=facts.remember(f"total {chosen}", lambda: facts.count(chosen.where, chosen.values)),
        next=write_cursor(query, shown[-1][-1], shown[-1][0]) if len(rows) > limit else "",
        indexing=facts.missing,
        choices=facts.remember("choices", lambda: count_choices(facts)),
    )


def make_card(row: OutcomeFacts) -> RolloutCard:
    """A row of the index as a page shows it."""
    return RolloutCard(
        id=row.id,
        key=row.key,
        task=row.task,
        kind=row.kind,
        split=row.split,
        replicate=row.replicate,
        attempt=row.attempt,
        score=row.score,
        passed=None if row.passed is None else bool(row.passed),
        soft=row.soft,
        stop=row.stop,
        failure=row.failure,
        turns=row.turns,
        tool_calls=row.calls,
        tool_errors=row.errors,
        prompt_tokens=row.prompt,
        completion_tokens=row.completion,
        dollars=row.dollars,
        seconds=row.seconds,
        began=row.began,
        model=row.model,
        policy=row.policy,
        skill=row.skill,
        suspect=bool(row.suspect),
        exact=bool(row.exact),
        size=row.size,
    )


def count_choices(facts: RunFacts) -> dict[str, dict[str, int]]:
    """How many rollouts have each value of the columns that are filtered by."""
    names = ("stop", "failure", "kind", "model")
    counts: dict[str, dict[str, int]] = {name: {} for name in names}
    for *values, count in facts.select(f"{', '.join(names)}, count(*)", "GROUP BY 1, 2, 3, 4"):
        for name, value in zip(names, values, strict=True):
            if value or name in ("stop", "model"):
                counts[name][value] = counts[name].get(value, 0) + count
    return {name: _cut_counts(found) for name, found in counts.items()}


def _cut_counts(counts: Mapping[str, int], most: int = 100) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda each: (-each[1], each[0]))[:most])


class ListPlace(NamedTuple):
    """Where a rollout is in a list."""

    before: int | None
    after: int | None
    place: int
    of: int


def find_place(facts: RunFacts, row: OutcomeFacts, given: Parameters) -> ListPlace:
    """Where a rollout is in the list that a request names by its sort and filter."""
    order, chosen = choose_order(given.get("sort"), SORTS, "id"), read_filter(given)
    found = facts.select_one(order.expression, "WHERE id = ?", (row.id,))
    value = found[0] if found else 0
    total = facts.remember(f"total {chosen}", lambda: facts.count(chosen.where, chosen.values))
    inside = facts.count(chosen.narrow("id = ?", row.id).where, (*chosen.values, row.id))
    ahead = chosen.narrow(order.place_before(), value, row.id)
    return ListPlace(
        _find_next(facts, order.reverse(), ahead),
        _find_next(facts, order, chosen.narrow(order.place_after(), value, row.id)),
        facts.count(ahead.where, ahead.values) + 1 if inside else 0,
        total,
    )


def _find_next(facts: RunFacts, order: Order, chosen: RowFilter) -> int | None:
    """The first row in an order whose expression is that of the list: rows without a value stay where they are."""
    found = facts.select_one("id", f"{chosen.where} {order.clause} LIMIT 1", chosen.values)
    return found[0] if found else None


# ---- tasks --------------------------------------------------------------------------------------------------------

_TASKS = """
task, split, max(kind) AS kind, count(*) AS rollouts, count(score) AS scored, ifnull(sum(passed), 0) AS passed,
avg(passed) AS rate, avg(score) AS mean, sum(score IS NULL) AS failed, sum(suspect) AS suspects, avg(turns) AS turns,
avg(seconds) AS seconds, avg(prompt + completion) AS tokens, sum(dollars) AS dollars, sum(errors) AS tool_errors,
split || char(10) || task AS id
"""
_TASK_COLUMNS = (
    *("task", "split", "kind", "rollouts", "scored", "passed", "rate", "mean", "failed", "suspects", "turns"),
    *("seconds", "tokens", "dollars", "tool_errors"),
)
FLAKY = "passed > 0 AND passed < scored"


def list_tasks(facts: RunFacts, given: Parameters) -> TaskPage:
    """A page of tasks, each over its rollouts."""
    order = choose_order(given.get("sort"), TASK_SORTS, "rate")
    chosen = read_filter(given)
    outer = RowFilter(FLAKY, ()) if given.is_set("flaky") else RowFilter("", ())
    limit, offset = given.get_whole("limit", DEFAULT, 1, MOST), given.get_whole("offset", 0)
    query = ("tasks", order.name, order.descending, chosen, outer)
    page = outer
    if (place := read_cursor(given.get("cursor"), query)) is not None:
        page = outer.narrow(order.place_after(), *place)
    inner = f"(SELECT {_TASKS} FROM {facts.source} {chosen.where} GROUP BY split, task)"
    sql = f"SELECT *, {order.expression} FROM {inner} {page.where} {order.clause} LIMIT ? OFFSET ?"
    rows = list(facts.directory.query(sql, (*chosen.values, *page.values, limit + 1, offset)))

    def count() -> int:
        return next(
            facts.directory.query(f"SELECT count(*) FROM {inner} {outer.where}", (*chosen.values, *outer.values))
        )[0]

    shown = rows[:limit]
    return TaskPage(
        rows=tuple(map(_make_task, shown)),
        total=facts.remember(f"tasks {chosen} {outer}", count),
        next=write_cursor(query, shown[-1][-1], shown[-1][-2]) if len(rows) > limit else "",
        indexing=facts.missing,
    )


def _make_task(row: Sequence[Any]) -> TaskCard:
    values = dict(zip(_TASK_COLUMNS, row[: len(_TASK_COLUMNS)], strict=True))
    return TaskCard(**values, flaky=0 < values["passed"] < values["scored"])
