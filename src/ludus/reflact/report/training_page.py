"""One HTML page about a training run: where the score went, what was changed, why, and what it cost.

The page is a single file without a script: it opens from disk, asks the network for nothing, and looks like the page of
trajectories (`ludus.trajectory_page`), whose style it borrows. Every text in it was written by a model or a user and is escaped; a
content security policy lets nothing but the style act. It can be drawn at any time from the records so far.
"""

import base64
import difflib
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ludus.reflact.gate import METRICS, Gate, Verdict
from ludus.reflact.items import Document, Item, described
from ludus.reflact.records import (
    Baseline,
    Bucket,
    BudgetDecision,
    EpochEnd,
    Fate,
    Product,
    Record,
    Reflection,
    Spent,
    Step,
    Summary,
    Unusable,
)
from ludus.reflact.report.html_tags import Html, el, joined, table
from ludus.reflact.report.score_curve import curve, draw, spread
from ludus.reflact.stages.evaluate import score_of
from ludus.reflact.train_settings import TrainSettings
from ludus.skill import Skill
from ludus.stats import Interval
from ludus.trajectory_page import TEMPLATE as PAGE
from ludus.types import Usage

TEMPLATE = Path(__file__).with_name("training_page.html")
_SHOWN = 40
"""Tasks that are named as evidence; the others are counted."""


def render(title: str, facts: Mapping[str, str], settings: TrainSettings, records: Sequence[Record]) -> bytes:
    """The page of a run, finished or not."""
    template = TEMPLATE.read_text(encoding="utf-8").replace("@STYLE@", _style())
    values = {
        "POLICY": _policy(template),
        "TITLE": joined([title]),
        "FACTS": _facts(facts),
        "TILES": joined(list(_tiles(settings, records))),
        "BODY": joined(list(_body(settings, records))),
    }
    return re.sub("@(POLICY|TITLE|FACTS|TILES|BODY)@", lambda marker: values[marker[1]], template).encode()


def _style() -> str:
    (text,) = re.findall("<style>(.*?)</style>", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return text


def _policy(template: str) -> Html:
    (text,) = re.findall("<style>(.*?)</style>", template, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return Html(f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'")


# ---- the top ------------------------------------------------------------------------------------------------------


def _facts(facts: Mapping[str, str]) -> Html:
    known = [joined([f"{name} ", el("b", "", value)]) for name, value in facts.items() if value]
    return Html("  · ".join(known))


def _tiles(settings: TrainSettings, records: Sequence[Record]) -> Iterable[Html]:
    if not records:
        return
    state, last = records[-1].state, records[-1]
    held = {"initial": state.initial, "best": state.best}
    held |= {"final" if isinstance(last, Summary) else "current": state.current} if state.current != state.best else {}
    for name, its in held.items():
        note = interval_text(spread(its.measure, settings.gate))
        yield _tile(f"{name}, selection", number(score_of(settings.gate, its)), note and f"95 %: {note}")
    if isinstance(last, Summary):
        for name, product in (("initial", last.initial), ("best", last.best), ("final", last.final)):
            if product.test is not None and name in held:
                overall = product.test.overall
                note = interval_text(overall.interval)
                yield _tile(f"{name}, test", number(overall.hard), note and f"95 %: {note}")
    actions = [step.verdict for step in records if isinstance(step, Step) and step.verdict is not None]
    accepted = sum(verdict.decision.accepted for verdict in actions)
    yield _tile("steps", str(state.step), f"{accepted} accepted")
    usage = _sum(spent_so_far(records))
    yield _tile("tokens", f"{usage.tokens:,}", f"${usage.dollars:.4f}" if usage.dollars else "")
    yield _tile("time", duration(sum(sum(record.seconds.values()) for record in records)), "")


def _tile(name: str, value: str, note: str) -> Html:
    parts = (el("div", "name", name), el("div", "value", value), el("div", "note", note))
    return el("div", "tile", *parts)


# ---- the body -----------------------------------------------------------------------------------------------------


def _body(settings: TrainSettings, records: Sequence[Record]) -> Iterable[Html]:
    if not records:
        yield el("p", "nothing", "Nothing is finished yet.")
        return
    last = records[-1]
    yield el("h2", "", f"Score on the selection split: {METRICS[settings.gate.metric]}")
    yield draw(curve(records, settings.gate))
    yield _legend()
    if isinstance(last, Summary):
        yield el("h2", "", "The skills of the run")
        yield el("div", "card", *_products(last, settings.gate))
    yield el("h2", "", "Step by step")
    yield from _parts(settings, records)
    yield el("h2", "", "What it took")
    yield el("div", "card", _costs(spent_so_far(records)), _times(records))
    yield el("h2", "", "The best skill")
    yield el("div", "document", last.state.best.skill.text or "(empty)")


def _legend() -> Html:
    words = {
        "current": "the current skill",
        "best": "the best so far",
        "train": "share of train rollouts that passed",
    }
    entries = [el("span", "", el("b", name, "━ "), text) for name, text in words.items()]
    dots = "● accepted, ○ rejected candidates, with 95 % intervals; dotted: an epoch ends"
    return el("div", "legend", *entries, el("span", "", dots))


def _products(summary: Summary, gate: Gate) -> Iterable[Html]:
    three = {"initial": summary.initial, "best": summary.best, "final": summary.final}
    rows = [_product(name, product) for name, product in three.items()]
    selection = f"selection: {METRICS[gate.metric]}"
    yield table(("skill", "from", selection, "test: passed", "95 %", "test: partial credit"), rows)
    tests = {name: product.test.kinds for name, product in three.items() if product.test is not None}
    sizes = {kind: bucket.tasks for by_kind in tests.values() for kind, bucket in by_kind.items()}
    rows = [(kind, str(size), *(_passed(by_kind[kind]) for by_kind in tests.values())) for kind, size in sizes.items()]
    yield table(("type of task", "tasks", *(f"{name}: passed, 95 %" for name in tests)), rows)


def _passed(bucket: Bucket) -> str:
    return " · ".join(filter(None, [number(bucket.hard), interval_text(bucket.interval)]))


def _product(name: str, product: Product) -> tuple[str, ...]:
    bucket = product.test.overall if product.test else Bucket(0, 0, None, None, None)
    marks = (number(bucket.hard), interval_text(bucket.interval), number(bucket.soft))
    return (name, f"{product.origin} ({product.skill.hash})", number(product.selection), *marks)


def _parts(settings: TrainSettings, records: Sequence[Record]) -> Iterable[Html]:
    before = records[0].state.initial.skill
    for record in records:
        match record:
            case Baseline():
                pass
            case Step():
                yield _step(settings, record, before)
            case EpochEnd():
                yield _epoch(record, before)
            case Summary():
                yield from _events(record.events)
        before = record.state.current.skill


def _card(kind: str, chip: str, title: str, words: str, *inside: Html) -> Html:
    summary = (el("span", f"chip {kind}", chip), el("span", "id", title), el("span", "from", words))
    return el("details", "group", el("summary", "", *summary), el("div", "inside", *inside))


_KINDS = {"accept": "positive", "accept_new_best": "positive", "force_accept": "positive", "reject": "negative"}


def _step(settings: TrainSettings, step: Step, before: Skill) -> Html:
    made = sum(done(fate) for fate in step.fates)
    facts = [
        _compared(step.verdict),
        f"{made} of {len(step.fates)} changes made" if step.fates else "",
        f"{step.hard:.0%} of the train rollouts passed" if step.hard is not None else "",
        f"{_sum(step.spent).tokens:,} tokens",
    ]
    inside: list[Html] = []
    if step.budget is not None:
        inside.append(_titled("Budget", el("div", "text", _budget(step.budget))))
    if step.fates:
        inside.append(_titled("Changes and what became of them", *map(_fate, step.fates)))
    if step.changes:
        inside.append(_titled("What the rewriter says", *(el("div", "text", f"– {change}") for change in step.changes)))
    if step.candidate is not None:
        inside.append(_titled("Candidate", _diff(before, step.candidate)))
    if step.verdict is not None and step.verdict.worse:
        inside.append(_titled("Does worse on", el("div", "from", _some(step.verdict.worse))))
    inside += [_titled(*_reflection(reflection)) for reflection in step.reflections]
    inside += _events(step.events)
    title = f"step {step.number} · epoch {step.epoch}"
    return _card(_KINDS.get(step.action, "zero"), step.action, title, " · ".join(filter(None, facts)), *inside)


def _budget(budget: BudgetDecision) -> str:
    limit = "no limit" if budget.value is None else f"at most {budget.value}"
    why = f": {budget.reasoning}" if budget.reasoning else ""
    sure = f" (confidence: {budget.confidence})" if budget.confidence else ""
    risks = f" Risks: {'; '.join(budget.risks)}" if budget.risks else ""
    return f"{limit}, {budget.available} proposed ({budget.control}){why}{sure}{risks}"


def _epoch(end: EpochEnd, before: Skill) -> Html:
    slow = end.slow
    told = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in slow.categories.items())
    inside = [_titled("Compared with an epoch ago", el("div", "text", told))] if any(slow.categories.values()) else []
    if slow.candidate is not None:
        inside.append(_titled("Guidance", _diff(before, slow.candidate)))
    if end.memory:
        inside.append(_titled("What the optimizer remembers", el("div", "document", end.memory)))
    inside += _events(end.events)
    words = " · ".join(filter(None, [_compared(slow.verdict), f"memory: {end.memory_action}"]))
    return _card(_KINDS.get(slow.action, "zero"), slow.action, f"end of epoch {end.epoch}", words, *inside)


def _titled(title: str, *inside: Html) -> Html:
    return joined([el("h3", "", title), *inside])


def _compared(verdict: Verdict | None) -> str:
    if verdict is None or verdict.candidate is None:
        return ""
    return f"{number(verdict.current)} → {number(verdict.candidate)} on {verdict.items} tasks"


def done(fate: Fate) -> bool:
    """Whether the item is in the candidate."""
    return fate.status.startswith("applied") or fate.status == "used"


def _fate(fate: Fate) -> Html:
    item = fate.item
    origin = f"{fate.status} · from {_rollouts(item.support, item.source)}: {_some(item.evidence)}"
    return el("div", f"edit {'done' if done(fate) else 'not'}", el("pre", "", _said(item)), el("div", "from", origin))


def _said(item: Item) -> str:
    """The item in words; a whole document is in the difference already."""
    if isinstance(item, Document):
        return "\n".join([f"rewrite: {item.title}", *(f"- {change}" for change in item.changes)])
    return described(item)


def _reflection(reflection: Reflection) -> tuple[str, Html]:
    lines = [f"{p.name}: {p.description} ({_some(p.tasks)})" for p in reflection.patterns]
    lines += [f"note: {note}" for note in reflection.notes]
    if reflection.reasoning:
        lines.append(reflection.reasoning)
    if not lines:
        lines.append(f"{len(reflection.items)} proposals" if reflection.items else "nothing proposed")
    body = joined([el("div", "text", text) for text in lines])
    return f"Read: {_rollouts(len(reflection.tasks), reflection.source)}", body


def _rollouts(count: int, source: str) -> str:
    return f"{count} {source} rollout{'' if count == 1 else 's'}"


def _events(events: Iterable[Unusable]) -> list[Html]:
    return [
        _titled(
            f"No usable reply: {event.stage} {event.place}",
            el("div", "verdict negative", f"{event.problem}\nAfter {event.tries} tries {event.consequence}."),
        )
        for event in events
    ]


def _diff(before: Skill, after: Skill) -> Html:
    """The lines that came and went, with some around them."""
    lines = list(difflib.unified_diff(before.text.splitlines(), after.text.splitlines(), lineterm="", n=2))[2:]
    kinds = {"+": "added", "-": "removed", "@": "place"}
    shown = [el("div", kinds.get(line[:1], ""), line) for line in lines]
    return el("div", "diff", *(shown or [el("div", "place", "the text is unchanged")]))


def _some(tasks: Sequence[str]) -> str:
    more = f" and {len(tasks) - _SHOWN} more" if len(tasks) > _SHOWN else ""
    return ", ".join(tasks[:_SHOWN]) + more


# ---- costs --------------------------------------------------------------------------------------------------------


def spent_so_far(records: Sequence[Record]) -> tuple[Spent, ...]:
    return records[-1].state.spent if records else ()


def _sum(spent: Iterable[Spent]) -> Usage:
    return sum((entry.usage for entry in spent), Usage())


def _costs(spent: Sequence[Spent]) -> Html:
    rows = [_cost(entry.role, entry.stage, entry.calls, entry.usage) for entry in spent]
    roles = dict.fromkeys(entry.role for entry in spent)
    for role in roles:
        own = [entry for entry in spent if entry.role == role]
        rows.append(_cost(role, "all stages", sum(entry.calls for entry in own), _sum(own)))
    return table(("role", "stage", "calls", "tokens in", "tokens out", "cost"), rows)


def _cost(role: str, stage: str, calls: int, usage: Usage) -> tuple[str, ...]:
    tokens = (f"{usage.prompt_tokens:,}", f"{usage.completion_tokens:,}")
    return (role, stage, f"{calls:,}", *tokens, f"${usage.dollars:.4f}")


def times(records: Sequence[Record]) -> dict[str, float]:
    """How long each stage took, over all records."""
    sums: dict[str, float] = {}
    for record in records:
        for stage, seconds in record.seconds.items():
            sums[stage] = sums.get(stage, 0.0) + seconds
    return sums


def _times(records: Sequence[Record]) -> Html:
    rows = [(stage, duration(seconds)) for stage, seconds in times(records).items() if seconds >= 0.05]
    return table(("stage", "time"), rows)


# ---- words --------------------------------------------------------------------------------------------------------


def number(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}".rstrip("0").rstrip(".")


def interval_text(interval: Interval | None) -> str:
    return f"{number(interval.low)} to {number(interval.high)}" if interval else ""


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"
