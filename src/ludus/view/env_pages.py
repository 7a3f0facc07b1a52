"""Environments over all runs of the folders: which tasks there are, and how often they are passed.

What a page needs of a run is one query of its index. The newest runs are read first, for as long as a request may
take; `pending` says how many were not. Rollouts of training runs are of many policies: they count here, because the
question is how hard a task is, not how good a policy.
"""

import time
from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Struct

from ludus.envs import BUILTIN
from ludus.errors import ConfigError, LudusError, StoreError
from ludus.view.model import EnvironmentCard, EnvironmentPage, EnvironmentTask, EnvironmentTaskPage, RunCard
from ludus.view.paging import DEFAULT, MOST, Parameters, get_section
from ludus.view.run_folder import RunFolder

SECONDS = 0.6
"""How long runs are read for one request."""
_SORTS = ("task", "rate", "rollouts", "runs")
_TASK = "split, task, max(kind), count(*), count(score), coalesce(sum(passed), 0), max(answered), min(id), avg(score)"


def list_environments(folder: RunFolder, given: Parameters) -> EnvironmentPage:
    """The environments that runs of the folders used, those used last first."""
    by_name: dict[str, list[RunCard]] = {}
    for card in _list_newest(folder):
        if card.env:
            by_name.setdefault(card.env, []).append(card)
    start, limit = given.get_whole("offset", 0), given.get_whole("limit", DEFAULT, 1, MOST)
    names = list(by_name)[start : start + limit]
    end = time.monotonic() + SECONDS
    rows = tuple(_describe(folder, name, by_name[name], end) for name in names)
    return EnvironmentPage(rows=rows, total=len(by_name))


def _list_newest(folder: RunFolder) -> list[RunCard]:
    return sorted(folder.list_cards(), key=lambda card: card.started, reverse=True)


def _describe(folder: RunFolder, name: str, cards: Sequence[RunCard], end: float) -> EnvironmentCard:
    tasks, scored, passed, read = set[tuple[str, str]](), 0, 0, 0
    for sums in _read_runs(folder, cards, end):
        read += 1
        tasks.update((row.split, row.task) for row in sums.rows)
        scored += sum(row.scored for row in sums.rows)
        passed += sum(row.passed for row in sums.rows)
    return EnvironmentCard(
        name=name,
        runs=tuple(card.id for card in cards[:100]),
        tasks=len(tasks),
        rollouts=sum(card.rollouts for card in cards),
        scored=scored,
        passed=passed,
        rate=passed / scored if scored else None,
        summary=_summarize(name),
        options=_read_options(folder, cards[0]),
        pending=len(cards) - read,
    )


def _summarize(name: str) -> str:
    """What a built-in environment is, in a line."""
    from ludus.config.references import load_env_class

    if name not in BUILTIN:
        return ""
    try:
        return (load_env_class(name).__doc__ or "").strip().partition("\n")[0]
    except LudusError:  # it needs an extra that is not installed
        return ""


def _read_options(folder: RunFolder, card: RunCard) -> dict[str, object]:
    try:
        with folder.facts.open(folder.find(card.id)) as facts:
            return get_section(facts.directory.config, "env")
    except StoreError:
        return {}


# ---- tasks --------------------------------------------------------------------------------------------------------


class _TaskSums(Struct, frozen=True, array_like=True):
    """A task in one run."""

    split: str
    task: str
    kind: str
    rollouts: int
    scored: int
    passed: int
    answered: bool
    first: int
    mean: float | None


class _RunSums(Struct, frozen=True):
    card: RunCard
    rows: tuple[_TaskSums, ...]


def _read_runs(folder: RunFolder, cards: Sequence[RunCard], end: float) -> Iterator[_RunSums]:
    """The tasks of runs, until the time is over. At least one run is read. One that cannot be read is left out."""
    for number, card in enumerate(cards):
        if number and time.monotonic() > end:
            return
        try:
            with folder.facts.open(folder.find(card.id)) as facts:
                found = facts.select(_TASK, "GROUP BY split, task")
                yield _RunSums(card, tuple(msgspec.convert(row, _TaskSums, strict=False) for row in found))
        except StoreError:
            continue


def list_environment_tasks(folder: RunFolder, name: str, given: Parameters) -> EnvironmentTaskPage:
    """A page of the tasks of an environment, over all runs."""
    cards = [card for card in _list_newest(folder) if card.env == name]
    if not cards:
        raise StoreError(f"no run of the folder used the environment '{name[:100]}'")
    runs = list(_read_runs(folder, cards, time.monotonic() + SECONDS))
    rows = _choose(list(_sum_tasks(runs)), given)
    start, limit = given.get_whole("offset", 0), given.get_whole("limit", DEFAULT, 1, MOST)
    shown = (_add_prompt(folder, row) for row in rows[start : start + limit])
    return EnvironmentTaskPage(env=name, rows=tuple(shown), total=len(rows), pending=len(cards) - len(runs))


def _sum_tasks(runs: Sequence[_RunSums]) -> Iterator[EnvironmentTask]:
    by_task: dict[tuple[str, str], list[tuple[RunCard, _TaskSums]]] = {}
    for run in runs:
        for row in run.rows:
            by_task.setdefault((row.split, row.task), []).append((run.card, row))
    for (split, task), found in by_task.items():
        scored, passed = sum(row.scored for _, row in found), sum(row.passed for _, row in found)
        means = [(row.mean, card.id) for card, row in found if row.mean is not None]
        yield EnvironmentTask(
            task=task,
            split=split,
            kind=found[0][1].kind,
            runs=len(found),
            rollouts=sum(row.rollouts for _, row in found),
            scored=scored,
            passed=passed,
            rate=passed / scored if scored else None,
            flaky=0 < passed < scored,
            best_run=max(means)[1] if means else "",
            has_reference=any(row.answered for _, row in found),
            example_run=found[0][0].id,
            example=found[0][1].first,
        )


def _choose(rows: Sequence[EnvironmentTask], given: Parameters) -> list[EnvironmentTask]:
    words, sort = given.get("q").lower().split(), given.get("sort") or "task"
    name, descending = sort.removeprefix("-"), sort.startswith("-")
    if name not in _SORTS:
        raise ConfigError(f"sort: there is no column '{name[:40]}'; known: {', '.join(_SORTS)}")
    kept = [row for row in rows if all(word in f"{row.task} {row.kind}".lower() for word in words)]
    if given.is_set("flaky"):
        kept = [row for row in kept if row.flaky]
    known = [row for row in kept if getattr(row, name) is not None]
    known.sort(key=lambda row: (getattr(row, name), row.task, row.split), reverse=descending)
    return known + [row for row in kept if getattr(row, name) is None]


def _add_prompt(folder: RunFolder, row: EnvironmentTask) -> EnvironmentTask:
    """The task with the beginning of its prompt, from one of its rollouts, if that is not too long to read."""
    import msgspec

    from ludus.view.markup import show_hidden
    from ludus.view.transcript import read_rollout

    try:
        with folder.facts.open(folder.find(row.example_run)) as facts:
            found = facts.get(row.example or 0)
            if found is None or found.size > 1_000_000:
                return row
            rollout, _ = read_rollout(facts.directory, found.id)
    except StoreError:
        return row
    return msgspec.structs.replace(row, prompt=show_hidden(rollout.task.prompt[:300]))
