"""Pages of rollouts and tasks: every row once, in order, and the numbers of the store."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.build import make_rollout, make_task, make_turn
from tests.view_kit import write_rollouts

from ludus.errors import ConfigError
from ludus.types import Call, Failure, Provenance, Rollout, StopReason, ToolResult, Usage
from ludus.view.facts import FactCache, RunFacts
from ludus.view.paging import Parameters
from ludus.view.rollout_pages import SORTS, TASK_SORTS, find_place, list_rollouts, list_tasks


def make_rollouts() -> list[Rollout]:
    made: list[Rollout] = []
    for n in range(37):
        call = Call("c", "look", "{}")
        turns = [make_turn("x", ToolResult(call, "y", "bad" if n % 5 == 0 else "")) for _ in range(n % 4)]
        task = make_task(f"task-{n % 7}", kind="even" if n % 2 else "odd")
        origin = Provenance(policy="p" * 16, model=f"m{n % 2}", replicate=n // 7)
        if n % 6 == 5:
            failure = Failure("sandbox", "the slot is gone")
            made.append(make_rollout(None, task=task, stop=StopReason.FAILED, failure=failure, provenance=origin))
        else:
            made.append(make_rollout(float(n % 3) / 2, *turns, task=task, provenance=origin, seconds=float(n % 4)))
    return made


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rollouts(tmp_path_factory.mktemp("pages") / "run", make_rollouts())


@pytest.fixture
def facts(run: Path) -> Iterator[RunFacts]:
    with FactCache(None).open(run) as found:
        yield found


def read_pages(facts: RunFacts, limit: int, **given: str) -> list[int]:
    ids, cursor = list[int](), ""
    while True:
        values = {name: [value] for name, value in given.items() if value}
        page = list_rollouts(facts, Parameters({**values, "limit": [str(limit)], "cursor": [cursor]}))
        ids += [row.id for row in page.rows]
        assert len(page.rows) <= limit
        cursor = page.next
        if not cursor:
            assert page.total == len(ids)
            return ids


@settings(max_examples=60, deadline=None)
@given(
    sort=st.sampled_from(sorted(SORTS)),
    down=st.booleans(),
    limit=st.integers(1, 40),
    result=st.sampled_from(["", "passed", "failed", "unscored"]),
    q=st.sampled_from(["", "task-3", "TASK", "nothing"]),
    errors=st.sampled_from(["", "1"]),
)
def test_every_rollout_is_on_exactly_one_page(
    run: Path, sort: str, down: bool, limit: int, result: str, q: str, errors: str
):
    with FactCache(None).open(run) as facts:
        chosen = {"sort": f"-{sort}" if down else sort, "result": result, "q": q, "errors": errors}
        ids = read_pages(facts, limit, **chosen)
        assert len(ids) == len(set(ids))
        whole = list_rollouts(facts, Parameters({name: [v] for name, v in chosen.items() if v} | {"limit": ["500"]}))
        assert [row.id for row in whole.rows] == ids
        offset = list_rollouts(
            facts, Parameters({name: [v] for name, v in chosen.items() if v} | {"limit": ["500"], "offset": ["3"]})
        )
        assert [row.id for row in offset.rows] == ids[3:]


def test_filters_are_those_of_the_rollouts(facts: RunFacts):
    every = make_rollouts()
    failed = [n for n, r in enumerate(every, 1) if r.failure]
    assert read_pages(facts, 5, result="unscored") == failed == read_pages(facts, 5, failure="sandbox")
    passed = [n for n, r in enumerate(every, 1) if r.score and r.score.passed]
    assert read_pages(facts, 5, result="passed") == passed
    assert read_pages(facts, 5, errors="1") == [n for n, r in enumerate(every, 1) if r.tool_errors]
    assert read_pages(facts, 50, sort="-score")[-len(failed) :] == failed[::-1], "rows without a value come last"
    assert read_pages(facts, 50, sort="score")[-len(failed) :] == failed


def test_a_cursor_belongs_to_its_query(facts: RunFacts):
    first = list_rollouts(facts, Parameters({"limit": ["2"]}))
    for wrong in ({"cursor": [first.next], "sort": ["-score"]}, {"cursor": ["abc"]}, {"sort": ["colour"]}):
        with pytest.raises(ConfigError):
            list_rollouts(facts, Parameters(wrong))


def test_tasks_are_sums_over_their_rollouts(facts: RunFacts):
    groups: dict[str, list[Rollout]] = {}
    for rollout in make_rollouts():
        groups.setdefault(rollout.task.id, []).append(rollout)
    page = list_tasks(facts, Parameters({"sort": ["task"]}))
    assert [row.task for row in page.rows] == sorted(groups)
    for row in page.rows:
        scores = [r.score for r in groups[row.task] if r.score]
        assert (row.rollouts, row.scored) == (len(groups[row.task]), len(scores))
        assert row.passed == sum(score.passed for score in scores)
        assert row.flaky == (0 < row.passed < row.scored)
        assert row.mean == pytest.approx(sum(score.value for score in scores) / len(scores))


@pytest.mark.parametrize("sort", [name for each in TASK_SORTS for name in (each, f"-{each}")])
def test_every_task_is_on_exactly_one_page(facts: RunFacts, sort: str):
    found, cursor = list[str](), ""
    while True:
        page = list_tasks(facts, Parameters({"sort": [sort], "limit": ["2"], "cursor": [cursor]}))
        found += [row.task for row in page.rows]
        cursor = page.next
        if not cursor:
            break
    assert sorted(found) == [f"task-{n}" for n in range(7)] and page.total == 7


@pytest.mark.parametrize("sort", ["id", "-score", "score", "-seconds"])
def test_neighbours_are_those_of_the_list(facts: RunFacts, sort: str):
    ids = read_pages(facts, 7, sort=sort, q="task-1")
    for place, id in enumerate(ids):
        row = facts.get(id)
        assert row is not None
        found = find_place(facts, row, Parameters({"sort": [sort], "q": ["task-1"]}))
        before = ids[place - 1] if place else None
        after = ids[place + 1] if place + 1 < len(ids) else None
        assert (found.before, found.after, found.place, found.of) == (before, after, place + 1, len(ids))


def test_a_usage_that_no_database_takes_is_cut(tmp_path: Path):
    turn = make_turn("x", usage=Usage(10**30, 1))
    path = write_rollouts(tmp_path / "run", [make_rollout(1.0, turn)])
    with FactCache(None).open(path) as facts:
        row = facts.get(1)
    assert row is not None and row.prompt == 2**62


def test_a_row_follows_its_rollout(tmp_path: Path):
    from ludus.store import RunDir

    failed = make_rollout(None, stop=StopReason.FAILED, failure=Failure("model", "down"))
    with RunDir.open(tmp_path / "run", {}) as run:
        run.put("k", failed)
        run.put("k", make_rollout(1.0))
        run.replace("k", make_rollout(0.5))
        run.put("k", make_rollout(0.0))
    with FactCache(None).open(tmp_path / "run") as facts:
        assert [(row.score, row.failure) for row in facts.list_rows("")] == [(0.5, "")]
