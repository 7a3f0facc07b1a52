"""A run at a glance: numbers with intervals, curves, failures by cause with bounds, costs, and what happens now.

Everything is a sum over the index: no rollout is read. `summarize_facts` gives the same numbers as
`ludus.stats.summarize` does from the rollouts themselves; a test compares them.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ludus.control_client import RunStatus, StatusRequest, ask_run
from ludus.errors import StoreError
from ludus.models.ledger import Totals
from ludus.reflact.records import Summary
from ludus.reflact.training_run import read_records
from ludus.rl.records import read_steps
from ludus.run_events import EVENTS, RunEvent
from ludus.run_info import ONE_POLICY, read_info, read_spent
from ludus.stats import (
    UNSCORED,
    PassAt,
    ScoreCell,
    Spread,
    ToolUse,
    compute_interval,
    compute_spread,
    estimate_pass_at,
    make_failure_ledger,
    warn_of_exclusions,
)
from ludus.store import RunDir
from ludus.types import StopReason
from ludus.view.curves import make_rollout_curves, make_training_curves, make_weight_curves
from ludus.view.facts import RunFacts
from ludus.view.model import BudgetLine, ChartCurve, PhaseShare, RunCard, RunOverview, ScoreCard
from ludus.view.paging import get_section
from ludus.view.rollout_pages import make_card
from ludus.view.training import read_train_settings

EVENTS_SHOWN = 50
TAIL_BYTES = 256 * 1024
ASK_SECONDS = 1.0
"""How long a run may take to say how it goes."""


def describe_run(facts: RunFacts, card: RunCard) -> RunOverview:
    """The overview of a run."""
    directory, path = facts.directory, facts.directory.path
    info = read_info(path)
    live, problem = ask_live(path) if card.state == "running" else (None, "")
    found = {**facts.remember("summary", lambda: _summarize(facts)), **_describe_training(directory, card.kind)}
    if card.kind not in ONE_POLICY:
        found["pass_at"] = ()  # rollouts of several policies
    return RunOverview(
        card=card,
        command=info.command if info else "",
        curves=list_curves(facts, card.kind),
        costs=_list_costs(path, directory.config),
        live=live,
        live_problem=problem,
        can_control=live is not None,
        events=read_last_events(path),
        recent=tuple(map(make_card, facts.list_rows("ORDER BY id DESC LIMIT 20"))),
        has_skill=card.kind == "train",
        has_weights=card.kind in ("rl", "serve"),
        indexing=facts.missing,
        stored=card.rollouts,
        **found,
    )


def ask_live(path: Path) -> tuple[RunStatus | None, str]:
    """What a run that runs says of itself, and why it does not."""
    try:
        return ask_run(path, StatusRequest(), ASK_SECONDS).status, ""
    except StoreError as error:
        return None, str(error)


# ---- sums ---------------------------------------------------------------------------------------------------------


def _summarize(facts: RunFacts) -> dict[str, Any]:
    """The numbers of a run, from its index."""
    cells = list(facts.select(_CELL, "GROUP BY split, task"))
    rollouts, scored = sum(cell[1] for cell in cells), sum(cell[2] for cell in cells)
    boundaries: dict[str, int] = dict(
        facts.select(
            f"CASE WHEN failure = '' THEN '{UNSCORED}' ELSE failure END, count(*)", "WHERE score IS NULL GROUP BY 1"
        )
    )
    stops: dict[str, int] = dict(facts.select("stop, count(*)", "GROUP BY 1 ORDER BY 2 DESC"))
    sure = [cell[6] for cell in cells if cell[6] is not None]
    zeros = [cell[3] / cell[1] for cell in cells]
    by_kind: dict[str, list[Sequence[Any]]] = {}
    for cell in cells:
        by_kind.setdefault(cell[0] or "", []).append(cell)
    broken = stops.get(StopReason.BROKEN.value, 0)
    ledger = make_failure_ledger(
        [ScoreCell(cell[3], cell[2], cell[1] - cell[2]) for cell in cells], boundaries, broken=broken
    )
    suspects, sums = facts.count("WHERE suspect = 1"), _Sums(facts)
    return {
        "tasks": len(cells),
        "flaky": sum(0 < cell[4] < cell[2] for cell in cells),
        "passed": sum(cell[4] for cell in cells),
        "pass_at": _list_pass_at(cells),
        "mean_with_zeros": sum(zeros) / len(zeros) if zeros and scored < rollouts else None,
        "mean_without_suspects": sum(sure) / len(sure) if sure and suspects else None,
        "warning": warn_of_exclusions(rollouts - scored, rollouts),
        "kinds": {kind: score_cells(by_kind[kind]) for kind in sorted(by_kind)[:100]} if len(by_kind) > 1 else {},
        "failures": ledger,
        "reasons": tuple(
            reason
            for (reason,) in facts.select("reason", "WHERE failure != '' GROUP BY 1 ORDER BY count(*) DESC, 1 LIMIT 3")
        ),
        "stops": stops,
        "tools": sums.tools,
        "turns": compute_spread(sums.turns),
        "seconds": compute_spread(sums.seconds),
        "phases": sums.phases,
        "has_tokens": facts.select_one("1", "WHERE exact = 1 LIMIT 1") is not None,
    }


_CELL = (
    "max(kind), count(*), count(score), ifnull(sum(score), 0.0), ifnull(sum(passed), 0), avg(score), "
    "avg(CASE WHEN suspect = 0 THEN score END), min(score), max(score)"
)
"""Of a task: kind, rollouts, scored, sum, passed, mean, mean without suspects, lowest and highest score."""


def score_cells(cells: Sequence[Sequence[Any]]) -> ScoreCard:
    """The scores of some tasks."""
    means = [cell[5] for cell in cells if cell[5] is not None]
    low = min([0.0, *(cell[7] for cell in cells if cell[7] is not None)])
    high = max([1.0, *(cell[8] for cell in cells if cell[8] is not None)])
    return ScoreCard(
        tasks=len(cells),
        rollouts=sum(cell[1] for cell in cells),
        scored=sum(cell[2] for cell in cells),
        passed=sum(cell[4] for cell in cells),
        mean=math.fsum(means) / len(means) if means else None,
        interval=compute_interval(means, low, high),
    )


def _list_pass_at(cells: Sequence[Sequence[Any]]) -> tuple[PassAt, ...]:
    most = max((cell[2] for cell in cells), default=0)
    found: list[PassAt] = []
    for k in [1 << n for n in range(int(most).bit_length())]:
        values = [estimate_pass_at(k, cell[2], cell[4]) for cell in cells if cell[2] >= k]
        if values:
            found.append(PassAt(k, math.fsum(values) / len(values), len(values)))
    return tuple(found)


class _Sums:
    """What is summed up over all rollouts in one pass."""

    def __init__(self, facts: RunFacts) -> None:
        self.turns, self.seconds = list[float](), list[float]()
        used, phases = Counter[str](), Counter[str]()
        for turns, seconds, tools, spent in facts.select("turns, seconds, tools, phases"):
            self.turns.append(turns)
            self.seconds.append(seconds)
            if tools:
                used[tools] += 1
            if spent:
                phases.update(_PHASES.decode(spent))
        self.phases = tuple(PhaseShare(name, seconds) for name, seconds in phases.most_common(30))
        calls, errors = Counter[str](), Counter[str]()
        for text, count in used.items():
            for tool, (called, wrong) in _TOOLS.decode(text).items():
                calls[tool] += called * count
                errors[tool] += wrong * count
        self.tools = tuple(ToolUse(tool, count, errors[tool]) for tool, count in calls.most_common(100))


_PHASES = msgspec.json.Decoder(dict[str, float])
_TOOLS = msgspec.json.Decoder(dict[str, tuple[int, int]])


def measure_spread(facts: RunFacts, column: str) -> Spread | None:
    """The distribution of a column."""
    return compute_spread([float(value) for (value,) in facts.select(column)])


# ---- records ------------------------------------------------------------------------------------------------------


def _list_curves(facts: RunFacts, kind: str) -> list[ChartCurve]:
    curves = list(make_rollout_curves(facts))
    if kind == "train":
        training = make_training_curves(list(read_records(facts.directory)), read_train_settings(facts.directory))
        return [*training, *(curve for curve in curves if curve.group != "score")]
    if kind == "rl":
        weights = list(make_weight_curves(read_steps(facts.directory)))
        return [*weights, *(curve for curve in curves if curve.group not in ("score", "length"))]
    return curves if kind in ONE_POLICY else [curve for curve in curves if curve.group != "score"]


def list_curves(facts: RunFacts, kind: str) -> tuple[ChartCurve, ...]:
    """The curves of a run."""
    return facts.remember("curves", lambda: tuple(_list_curves(facts, kind)))


def _describe_training(directory: RunDir, kind: str) -> dict[str, Any]:
    if kind != "train":
        return {}
    *_, last = None, *read_records(directory)
    return {"claim": last.claim.sentence} if isinstance(last, Summary) and last.claim is not None else {}


def _list_costs(path: Path, config: Mapping[str, Any]) -> tuple[BudgetLine, ...]:
    try:
        spent = read_spent(path)
    except StoreError:
        spent = dict[str, Totals]()
    budget: dict[str, Any] = get_section(config, "budget")
    lines = [_make_cost(role, totals, budget.get(role) or {}) for role, totals in spent.items()]
    if spent:
        lines.append(_make_cost("all", sum(spent.values(), Totals()), budget))
    return tuple(lines)


def _make_cost(role: str, totals: Totals, limits: Mapping[str, Any]) -> BudgetLine:
    return BudgetLine(
        role=role,
        calls=totals.calls,
        failed=totals.failed,
        retries=totals.retries,
        seconds=totals.seconds,
        usage=totals.usage,
        limit_dollars=limits.get("dollars"),
        limit_tokens=limits.get("tokens"),
        limit_calls=limits.get("calls"),
    )


_EVENT = msgspec.json.Decoder(RunEvent)


def read_last_events(path: Path, most: int = EVENTS_SHOWN) -> tuple[RunEvent, ...]:
    """The last events of a run. Only the end of the file is read; damaged lines are left out."""
    try:
        with (path / EVENTS).open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL_BYTES))
            lines = file.read().split(b"\n")
    except OSError:
        return ()
    events: list[RunEvent] = []
    for line in lines[-most - 1 : -1]:
        try:
            events.append(_EVENT.decode(line))
        except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
            continue
    return tuple(events)
