"""An RL run: its steps, its groups, and the queue of the trajectory server.

Steps are the records of the run. Groups come from the index: the rollouts of one task under one version of the policy.
The store does not say which group a step took, only how many of which version. So a group has a step only where one
step took all groups of its version, as on-policy runs do.
"""

import re
import statistics
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ludus.errors import ConfigError
from ludus.outcome_facts import TABLE, OutcomeFacts
from ludus.rl.records import RlStep, read_steps
from ludus.run_info import read_info, read_state
from ludus.store import RunDir
from ludus.view.curves import make_weight_curves
from ludus.view.facts import FactCache, RunFacts
from ludus.view.model import DurationShare, GroupPage, ServerQueue, WeightGroup, WeightsPage, WeightStep
from ludus.view.paging import DEFAULT, MOST, Parameters, get_section, read_cursor, write_cursor
from ludus.view.transcript import compute_group_advantages

ASK_SECONDS = 1.0
"""How long the trajectory server may take to say how it goes."""
ANSWER_BYTES = 1_000_000
BINS = 4
_VERSION = re.compile(r"@(\d+)-[0-9a-f]+$")
_GROUP = "split, task, policy, max(model), min(id), count(*), max(seconds), max(score) - min(score), max(id)"
_BY_GROUP = "GROUP BY split, task, policy"
_SORTS = {"id": "min(id)", "task": "task", "spread": "coalesce(max(score) - min(score), 0)", "seconds": "max(seconds)"}


def list_steps(path: Path, given: Parameters) -> WeightsPage:
    """A page of the steps of a run, with its curves and the queue of its server."""
    with RunDir.read(path) as directory:
        steps, config = read_steps(directory), directory.config
        shares = tuple(_share_by_duration(directory))
    ordered = sorted(steps, key=lambda step: step.step, reverse=given.get("sort") == "-step")
    start, limit, query = _read_place(given, ("steps", str(path), given.get("sort")))
    queue, problem = _ask_server(path, config)
    return WeightsPage(
        steps=tuple(_show_step(step) for step in ordered[start : start + limit]),
        total=len(steps),
        next=write_cursor(query, start + limit, 0) if start + limit < len(steps) else "",
        curves=tuple(make_weight_curves(steps)),
        planned=int(get_section(config, "rl").get("steps") or 0),
        trained_by_duration=shares,
        server=queue,
        server_problem=problem,
    )


def _show_step(step: RlStep) -> WeightStep:
    dropped: dict[str, int] = {}
    for group in step.groups:
        if group.dropped:
            dropped[group.dropped] = dropped.get(group.dropped, 0) + 1
    metrics, held_out, shares = step.metrics, step.held_out, step.shares
    return WeightStep(
        step=step.step,
        version=step.version,
        reward=step.reward,
        passed=step.passed,
        length=step.length,
        rows=step.rows,
        rollouts=step.rollouts,
        failed=step.failed,
        suspects=step.suspects,
        groups=len(step.groups),
        dropped=dropped,
        staleness=step.staleness,
        stalest=step.stalest,
        trained_fast=shares.fast if shares else None,
        trained_slow=shares.slow if shares else None,
        loss=metrics.loss,
        kl=metrics.kl,
        reference_kl=metrics.reference_kl,
        entropy=metrics.entropy,
        clipped=metrics.clipped,
        ratio=metrics.ratio,
        gradient=metrics.gradient,
        held_out=held_out.mean if held_out else None,
        held_out_interval=held_out.interval if held_out else None,
        seconds=dict(step.seconds),
    )


# ---- groups -------------------------------------------------------------------------------------------------------


def list_groups(path: Path, cache: FactCache, given: Parameters) -> GroupPage:
    """A page of the groups of a run."""
    sort = given.get("sort") or "id"
    name = sort.removeprefix("-")
    if name not in _SORTS:
        raise ConfigError(f"sort: there is no column '{name[:40]}'; known: {', '.join(_SORTS)}")
    way = "DESC" if sort.startswith("-") else "ASC"
    where, values = _filter_groups(given)
    start, limit, query = _read_place(given, ("groups", str(path), sort, where, values))
    with cache.open(path) as facts:
        steps = read_steps(facts.directory)
        total = next(
            facts.directory.query(f"SELECT count(*) FROM (SELECT 1 FROM {facts.source} {where} {_BY_GROUP})", values)
        )
        rows = list(
            facts.select(
                _GROUP,
                f"{where} {_BY_GROUP} ORDER BY {_SORTS[name]} {way}, min(id) LIMIT ? OFFSET ?",
                (*values, limit, start),
            )
        )
        shown = tuple(_show_group(facts, row, steps) for row in rows)
        after = write_cursor(query, start + limit, 0) if start + limit < total[0] else ""
        return GroupPage(rows=shown, total=total[0], next=after, indexing=facts.missing)


def _read_place(given: Parameters, query: object) -> tuple[int, int, object]:
    """Where a page begins, how long it is, and what its cursors belong to."""
    place = read_cursor(given.get("cursor"), query)
    start = int(place[0]) if place else given.get_whole("offset", 0)
    return start, given.get_whole("limit", DEFAULT, 1, MOST), query


def _filter_groups(given: Parameters) -> tuple[str, list[object]]:
    conditions, values = list[str](), list[object]()
    if given.get("task"):
        conditions.append("task = ?")
        values.append(given.get("task"))
    for word in given.get("q").split():
        conditions.append("instr(lower(task), ?) > 0")
        values.append(word.lower())
    return (f"WHERE {' AND '.join(conditions)}" if conditions else "", values)


def _show_group(facts: RunFacts, row: Sequence[Any], steps: Sequence[RlStep]) -> WeightGroup:
    split, task, policy, model, *_ = row
    members = facts.list_rows(
        "WHERE split = ? AND task = ? AND policy = ? ORDER BY replicate, id LIMIT 256", (split, task, policy)
    )
    return make_group_row(members, model, steps, facts.directory.config)


def make_group_row(
    members: Sequence[OutcomeFacts], model: str, steps: Sequence[RlStep], config: Mapping[str, Any]
) -> WeightGroup:
    """A group as a page shows it. Pure."""
    advantages = compute_group_advantages(members, config)
    scores = [row.score for row in members if row.score is not None]
    held_out = {step.held_out.split for step in steps if step.held_out is not None}
    version = read_version(model)
    taken = [step for step in steps if any(group.version == version for group in step.groups)]
    spread = statistics.pstdev(scores) if scores else 0.0
    is_held_out = members[0].split in held_out
    step = taken[0] if len(taken) == 1 and not is_held_out else None
    reasons = {group.dropped for group in step.groups if group.dropped} if step else set[str]()
    return WeightGroup(
        task=members[0].task,
        step=step.step if step else None,
        version=version,
        staleness=step.step - 1 - version if step else None,
        dropped="equal_scores" if not spread and "equal_scores" in reasons else "",
        scores=tuple(row.score for row in members),
        advantages=tuple(advantages.get(row.id) for row in members),
        spread=spread,
        seconds=max(row.seconds for row in members),
        rollouts=tuple(row.id for row in members),
        model=model,
        role="held out" if is_held_out else "train",
    )


def read_version(model: str) -> int:
    """The version of the policy, by the name of its model: the first one has no number."""
    found = _VERSION.search(model)
    return int(found[1]) if found else 0


def _share_by_duration(directory: RunDir) -> Iterator[DurationShare]:
    """Which share of the groups gave a gradient, for the faster and the slower groups: groups of equal scores and those
    without any score give none."""
    if not list(directory.query("SELECT 1 FROM sqlite_master WHERE name = ?", (TABLE,))):
        return  # a run of an earlier version
    rows = list(
        directory.query(
            f"SELECT max(seconds), coalesce(max(score) - min(score), 0) > 0 FROM {TABLE} {_BY_GROUP} "
            "HAVING count(*) > 1 ORDER BY 1"
        )
    )
    size = len(rows) / BINS
    for number in range(BINS):
        part = rows[round(number * size) : round((number + 1) * size)]
        if part:
            yield DurationShare(part[0][0], part[-1][0], len(part), sum(trained for _, trained in part))


# ---- the trajectory server ----------------------------------------------------------------------------------------


def _ask_server(path: Path, config: Mapping[str, Any]) -> tuple[ServerQueue | None, str]:
    """The queue of the trajectory server of a run that runs and feeds one, and why it is not known."""
    url = str(get_section(config, "serve").get("server") or "")
    info = read_info(path)
    if not url or info is None or info.kind != "serve" or read_state(info) != "running":
        return None, ""
    if not url.startswith(("http://", "https://")):
        return None, f"{url} is not the address of a server"
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/status", timeout=ASK_SECONDS) as reply:
            facts = msgspec.json.decode(reply.read(ANSWER_BYTES), type=dict[str, Any])
    except (urllib.error.URLError, OSError, ValueError) as error:
        return None, f"{url} does not answer: {error}"
    environments: list[dict[str, Any]] = [each for each in facts.get("envs") or () if isinstance(each, dict)]
    return (
        ServerQueue(
            url=url,
            step=int(facts.get("current_step") or facts.get("step") or 0),
            queued=int(facts.get("queue_size") or facts.get("queued") or 0),
            environments=tuple(environments),
            facts=facts,
        ),
        "",
    )
