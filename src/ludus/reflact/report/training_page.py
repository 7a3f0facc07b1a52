"""One HTML page about a training run: the score curve, the changes and their reasons, the costs.

The page is a single file without scripts. It opens from disk, makes no network requests, and uses the style of the page
of trajectories (`ludus.trajectory_page`). All text from models and users is escaped, and a content security policy
allows nothing but the style. The page can be rendered at any time from the records so far.
"""

import base64
import difflib
import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ludus.reflact.gate import METRICS, Gate, Verdict
from ludus.reflact.items import Document, Item, describe_item
from ludus.reflact.records import (
    Baseline,
    BudgetDecision,
    EpochEnd,
    Fate,
    Product,
    Record,
    Reflection,
    ScoreBucket,
    StageCost,
    Step,
    Summary,
    UnusableReply,
    count_exclusions,
    count_suspects,
)
from ludus.reflact.report.html_tags import Html, el, join_html, make_table
from ludus.reflact.report.line_cards import render_lines
from ludus.reflact.report.line_histories import collect_histories
from ludus.reflact.report.score_curve import Curve, compute_score_interval, draw_curve, draw_legend, make_curve
from ludus.reflact.report.transcripts_page import make_link, name_part
from ludus.reflact.stages.evaluate import compute_score
from ludus.reflact.train_settings import TrainSettings
from ludus.skill import Skill, render_whole
from ludus.stats import Interval, PairedStats, warn_of_exclusions
from ludus.trajectory_page import TEMPLATE as PAGE
from ludus.types import Usage

TEMPLATE = Path(__file__).with_name("training_page.html")
_SHOWN = 40
"""The number of tasks that are named as evidence. Further ones are only counted."""


def render_page(
    title: str, facts: Mapping[str, str], settings: TrainSettings, records: Sequence[Record], *, linked: bool = False
) -> bytes:
    """The page of a run, which may still be going on. With `linked`, it links to the page of trajectories."""
    body = list(_render_body(settings, records, linked))
    return fill_template(title, facts, list(_render_tiles(settings, records)), body)


def fill_template(title: str, facts: Mapping[str, str], tiles: Sequence[Html], body: Sequence[Html]) -> bytes:
    """A page with a title, facts, tiles and a body, as the pages about training have them."""
    template = TEMPLATE.read_text(encoding="utf-8").replace("@STYLE@", _read_style())
    values = {
        "POLICY": _make_policy(template),
        "TITLE": join_html([title]),
        "FACTS": _render_facts(facts),
        "TILES": join_html(list(tiles)),
        "BODY": join_html(list(body)),
    }
    return re.sub("@(POLICY|TITLE|FACTS|TILES|BODY)@", lambda marker: values[marker[1]], template).encode()


def _read_style() -> str:
    (text,) = re.findall("<style>(.*?)</style>", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return text


def _make_policy(template: str) -> Html:
    (text,) = re.findall("<style>(.*?)</style>", template, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return Html(f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'")


# ---- the top --------------------------------------------------------------------------------------------------------


def _render_facts(facts: Mapping[str, str]) -> Html:
    known = [join_html([f"{name} ", el("b", "", value)]) for name, value in facts.items() if value]
    return Html("  · ".join(known))


def _render_tiles(settings: TrainSettings, records: Sequence[Record]) -> Iterable[Html]:
    if not records:
        return
    state, last = records[-1].state, records[-1]
    skills = {"initial": state.initial, "best": state.best}
    if state.current.skill != state.best.skill:
        skills["final" if isinstance(last, Summary) else "current"] = state.current
    for name, skill in skills.items():
        note = format_interval(compute_score_interval(skill.measure, settings.gate))
        yield render_tile(
            f"{name}, selection", format_number(compute_score(settings.gate, skill)), note and f"95 %: {note}"
        )
    if isinstance(last, Summary):
        for name, product in (("initial", last.initial), ("best", last.best), ("final", last.final)):
            if product.test is not None and name in skills:
                overall = product.test.overall
                note = format_interval(overall.interval)
                yield render_tile(f"{name}, test", format_number(overall.hard), note and f"95 %: {note}")
    actions = [step.verdict for step in records if isinstance(step, Step) and step.verdict is not None]
    accepted = sum(verdict.decision.accepted for verdict in actions)
    note = f"{len(state.ledger.working)} lines at work" if state.ledger else f"{accepted} accepted"
    yield render_tile("steps", str(state.step), note)
    usage = _sum_usage(get_spent(records))
    yield render_tile("tokens", f"{usage.tokens:,}", f"${usage.dollars:.4f}" if usage.dollars else "")
    yield render_tile("time", format_duration(sum(sum(record.seconds.values()) for record in records)), "")


def render_tile(name: str, value: str, note: str) -> Html:
    parts = (el("div", "name", name), el("div", "value", value), el("div", "note", note))
    return el("div", "tile", *parts)


# ---- the body -------------------------------------------------------------------------------------------------------


def _render_body(settings: TrainSettings, records: Sequence[Record], linked: bool) -> Iterable[Html]:
    if not records:
        yield el("p", "nothing", "Nothing is finished yet.")
        return
    last = records[-1]
    if isinstance(last, Summary) and last.claim is not None:
        yield el("p", f"claim {'positive' if last.claim.gain else 'zero'}", last.claim.sentence)
    if isinstance(last, Summary) and last.canaries is not None:
        yield el("p", f"verdict {'negative' if last.canaries.suspicious else 'zero'}", last.canaries.describe())
    if suspects := count_suspects(get_spent(records)):
        yield el("p", "verdict negative", f"{suspects} rollouts are suspect: the agent may have changed their verdict")
    if warning := warn_of_exclusions(*count_exclusions(records)):
        yield el("p", "verdict negative", warning)
    curve = make_curve(records, settings.gate)
    measured = f"Score on the selection split: {METRICS[settings.gate.metric]}"
    yield el("h2", "", "What the text that would ship should score" if curve.expected else measured)
    yield draw_curve(curve)
    yield draw_legend(_describe_curve(curve))
    if isinstance(last, Summary):
        yield el("h2", "", "The skills of the run")
        yield el("div", "card", *_render_products(last, settings.gate))
    if linked and (histories := collect_histories(records, settings.ledger.tuning)):
        yield el("h2", "", "The lines and their evidence")
        yield from render_lines(histories)
    yield el("h2", "", "Step by step")
    yield from _render_parts(records, linked)
    yield el("h2", "", "Costs")
    yield el("div", "card", _render_costs(get_spent(records)), _render_times(records))
    shipped = "shipped" if isinstance(last, Summary) else "best so far"
    if settings.recipe == "ledger" and not isinstance(last, Summary):
        shipped = "would ship now"
    yield el("h2", "", f"The skill: initial and {shipped}")
    yield _render_side_by_side(last.state.initial.skill, _find_shipping(settings, last), shipped)


def _find_shipping(settings: TrainSettings, last: Record) -> Skill:
    """The skill that is shipped; in a run that goes on, the one that would be."""
    is_open = settings.recipe == "ledger" and not isinstance(last, Summary)
    return last.state.current.skill if is_open else last.state.best.skill


def _render_side_by_side(initial: Skill, shipped: Skill, name: str) -> Html:
    """Two texts beside each other, with the lines that only one of them has marked."""
    before, after = render_whole(initial).splitlines(), render_whole(shipped).splitlines()
    same = difflib.SequenceMatcher(None, before, after, autojunk=False).get_matching_blocks()
    kept = {place for block in same for place in range(block.a, block.a + block.size)}
    stayed = {place for block in same for place in range(block.b, block.b + block.size)}
    return el(
        "div",
        "beside",
        _render_text("initial", before, kept, "removed"),
        _render_text(name if before != after else f"{name}: the same text", after, stayed, "added"),
    )


def _render_text(name: str, lines: Sequence[str], same: Collection[int], kind: str) -> Html:
    shown = [el("div", "" if place in same else kind, line) for place, line in enumerate(lines)]
    return el("div", "", el("h3", "", name), el("div", "diff", *(shown or [el("div", "place", "(empty)")])))


def _describe_curve(curve: Curve) -> dict[str, str]:
    """What the legend says about each kind of line and dot."""
    if curve.expected:
        return {
            "current": "the text that would ship: share of train tasks that should pass, by all evidence so far",
            "train": "the initial skill, in the same way",
            **({"accepted": "shipped: measured on the selection split"} if any(d.accepted for d in curve.dots) else {}),
            **({"rejected": "not shipped: measured on it too", "whisker": "95 % interval"} if curve.dots else {}),
        }
    if not curve.current:
        return {"train": "share of train rollouts that passed"}
    now = f" ({format_number(curve.current[-1][1])})"
    most = f" ({format_number(curve.best[-1][1])})" if curve.best else ""
    return {
        "current": f"current skill{now}",
        "best": f"best so far{most}, behind it",
        "train": "share of train rollouts that passed",
        "accepted": "accepted candidate",
        "rejected": "candidate that was not accepted",
        "whisker": "95 % interval",
        **({"epoch": "end of an epoch"} if len(curve.epochs) > 1 else {}),
    }


def _render_products(summary: Summary, gate: Gate) -> Iterable[Html]:
    three = {"initial": summary.initial, "best": summary.best, "final": summary.final}
    rows = [_make_product_row(name, product) for name, product in name_products(summary).items()]
    fresh = has_fresh_scores(summary)
    selection = f"selection: {METRICS[gate.metric]}, {'fresh' if fresh else 'biased'}"
    yield make_table(("skill", "from", selection, "test: passed", "95 %", "test: partial credit"), rows)
    tests = {name: product.test.kinds for name, product in three.items() if product.test is not None}
    sizes = {kind: bucket.tasks for by_kind in tests.values() for kind, bucket in by_kind.items()}
    rows = [
        (kind, str(size), *(_format_passed(by_kind[kind]) for by_kind in tests.values()))
        for kind, size in sizes.items()
    ]
    yield make_table(("type of task", "tasks", *(f"{name}: passed, 95 %" for name in tests)), rows)


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


def _format_passed(bucket: ScoreBucket) -> str:
    return " · ".join(filter(None, [format_number(bucket.hard), format_interval(bucket.interval)]))


def _make_product_row(name: str, product: Product) -> tuple[str, ...]:
    bucket = product.test.overall if product.test else ScoreBucket(0, 0, None, None, None)
    marks = (format_number(bucket.hard), format_interval(bucket.interval), format_number(bucket.soft))
    marks = (f"not tested: {product.untested}", "", "") if product.untested else marks
    return (name, f"{product.origin} ({product.skill.hash})", format_number(product.selection), *marks)


def _render_parts(records: Sequence[Record], linked: bool) -> Iterable[Html]:
    before = records[0].state.initial.skill
    for record in records:
        links = _TaskLinks(name_part(record) if linked else "")
        match record:
            case Baseline() if linked:
                yield el("p", "from", links.render_part("transcripts of the baseline"))
            case Baseline():
                pass
            case Step():
                yield _render_step(record, before, links)
            case EpochEnd():
                yield _render_epoch_end(record, before, links)
            case Summary():
                yield from _render_events(record.events)
                if linked:
                    yield el("p", "from", links.render_part("transcripts of the end of the run, with the test"))
        before = record.state.current.skill


class _TaskLinks(NamedTuple):
    """Links to the transcripts of a part of the run; plain names if `part` is empty."""

    part: str

    def render_part(self, words: str) -> Html:
        return el("a", "", words, href=make_link(self.part)) if self.part else Html()

    def list_tasks(self, tasks: Sequence[str]) -> Html:
        more = f" and {len(tasks) - _SHOWN} more" if len(tasks) > _SHOWN else ""
        names = [el("a", "", task, href=make_link(self.part, task)) if self.part else task for task in tasks[:_SHOWN]]
        return join_html([Html(", ".join(join_html([name]) for name in names)), more])


def _render_card(kind: str, chip: str, title: str, words: str, *inside: Html) -> Html:
    summary = (el("span", f"chip {kind}", chip), el("span", "id", title), el("span", "from", words))
    return el("details", "group", el("summary", "", *summary), el("div", "inside", *inside))


_KINDS = {"accept": "positive", "accept_new_best": "positive", "force_accept": "positive", "reject": "negative"}


def _render_step(step: Step, before: Skill, links: _TaskLinks) -> Html:
    made = sum(is_applied(fate) for fate in step.fates)
    facts = [
        _describe_verdict(step.verdict),
        f"{made} of {len(step.fates)} changes made" if step.fates else "",
        f"{step.hard:.0%} of the train rollouts passed" if step.hard is not None else "",
        f"{_sum_usage(step.spent).tokens:,} tokens",
    ]
    inside = [el("div", "from", links.render_part("transcripts of this step"))] if links.part else []
    if step.budget is not None:
        inside.append(_render_section("Budget", el("div", "text", _describe_budget(step.budget))))
    if step.fates:
        fates = [_render_fate(fate, links) for fate in step.fates]
        inside.append(_render_section("Changes and their results", *fates))
    if step.changes:
        inside.append(
            _render_section(
                "Changes, as the optimizer describes them",
                *(el("div", "text", f"– {change}") for change in step.changes),
            )
        )
    if step.candidate is not None:
        inside.append(_render_section("Candidate", _render_diff(before, step.candidate)))
    if step.verdict is not None and step.verdict.worse:
        inside.append(
            _render_section("Tasks with a lower score", el("div", "from", links.list_tasks(step.verdict.worse)))
        )
    inside += [_render_section(*_describe_reflection(reflection, links)) for reflection in step.reflections]
    inside += [*_render_events(step.events), *_render_warnings(step.warnings)]
    title = f"step {step.number} · epoch {step.epoch}"
    return _render_card(_KINDS.get(step.action, "zero"), step.action, title, " · ".join(filter(None, facts)), *inside)


def _describe_budget(budget: BudgetDecision) -> str:
    limit = "no limit" if budget.value is None else f"at most {budget.value}"
    why = f": {budget.reasoning}" if budget.reasoning else ""
    sure = f" (confidence: {budget.confidence})" if budget.confidence else ""
    risks = f" Risks: {'; '.join(budget.risks)}" if budget.risks else ""
    return f"{limit}, {budget.available} proposed ({budget.control}){why}{sure}{risks}"


def _render_epoch_end(end: EpochEnd, before: Skill, links: _TaskLinks) -> Html:
    slow = end.slow
    categories = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in slow.categories.items())
    inside = [el("div", "from", links.render_part("transcripts of this part"))] if links.part else []
    if any(slow.categories.values()):
        inside.append(_render_section("Comparison with the previous epoch", el("div", "text", categories)))
    if slow.candidate is not None:
        inside.append(_render_section("Guidance", _render_diff(before, slow.candidate)))
    if end.memory:
        inside.append(_render_section("Optimizer memory", el("div", "document", end.memory)))
    inside += [*_render_events(end.events), *_render_warnings(end.warnings)]
    words = " · ".join(filter(None, [_describe_verdict(slow.verdict), f"memory: {end.memory_action}"]))
    return _render_card(_KINDS.get(slow.action, "zero"), slow.action, f"end of epoch {end.epoch}", words, *inside)


def _render_section(title: str, *inside: Html) -> Html:
    return join_html([el("h3", "", title), *inside])


def _describe_verdict(verdict: Verdict | None) -> str:
    if verdict is None or verdict.candidate is None:
        return ""
    excluded = f", {verdict.excluded} rollouts without a score" if verdict.excluded else ""
    change = f", {describe_difference(verdict.paired)}" if verdict.paired else ""
    scores = f"{format_number(verdict.current)} → {format_number(verdict.candidate)}"
    return f"{scores} on {verdict.items} tasks{change}{excluded}"


def is_applied(fate: Fate) -> bool:
    """Whether the item is part of the candidate."""
    return fate.status.startswith("applied") or fate.status == "used"


def _render_fate(fate: Fate, links: _TaskLinks) -> Html:
    item = fate.item
    origin = f"{fate.status} · from {_count_rollouts(item.support, item.source)}: "
    return el(
        "div",
        f"edit {'done' if is_applied(fate) else 'not'}",
        el("pre", "", _describe_change(item)),
        el("div", "from", origin, links.list_tasks(item.evidence)),
    )


def _describe_change(item: Item) -> str:
    """The item as text. The text of a whole document is left out: the difference shows it."""
    if isinstance(item, Document):
        return "\n".join([f"rewrite: {item.title}", *(f"- {change}" for change in item.changes)])
    return describe_item(item)


def _describe_reflection(reflection: Reflection, links: _TaskLinks) -> tuple[str, Html]:
    lines: list[str] = [
        join_html([f"{p.name}: {p.description} (", links.list_tasks(p.tasks), ")"]) for p in reflection.patterns
    ]
    lines += [f"note: {note}" for note in reflection.notes]
    if reflection.reasoning:
        lines.append(reflection.reasoning)
    if not lines:
        lines.append(f"{len(reflection.items)} proposals" if reflection.items else "nothing proposed")
    body = join_html([el("div", "text", text) for text in lines])
    return f"Read: {_count_rollouts(len(reflection.tasks), reflection.source)}", body


def _count_rollouts(count: int, source: str) -> str:
    return f"{count} {source} rollout{'' if count == 1 else 's'}"


def _render_events(events: Iterable[UnusableReply]) -> list[Html]:
    return [
        _render_section(
            f"No usable reply: {event.stage} {event.place}",
            el("div", "verdict negative", f"{event.problem}\nAfter {event.tries} tries {event.consequence}."),
        )
        for event in events
    ]


def _render_warnings(warnings: Iterable[str]) -> list[Html]:
    return [_render_section("Warning", el("div", "verdict negative", warning)) for warning in warnings]


def _render_diff(before: Skill, after: Skill) -> Html:
    """The added and removed lines, with some context."""
    texts = (render_whole(before).splitlines(), render_whole(after).splitlines())
    lines = list(difflib.unified_diff(*texts, lineterm="", n=2))[2:]
    kinds = {"+": "added", "-": "removed", "@": "place"}
    shown = [el("div", kinds.get(line[:1], ""), line) for line in lines]
    return el("div", "diff", *(shown or [el("div", "place", "the text is unchanged")]))


# ---- costs ----------------------------------------------------------------------------------------------------------


def get_spent(records: Sequence[Record]) -> tuple[StageCost, ...]:
    return records[-1].state.spent if records else ()


def _sum_usage(spent: Iterable[StageCost]) -> Usage:
    return sum((entry.usage for entry in spent), Usage())


def _render_costs(spent: Sequence[StageCost]) -> Html:
    rows = [_make_cost_row(entry.role, entry.stage, entry.calls, entry.usage) for entry in spent]
    roles = dict.fromkeys(entry.role for entry in spent)
    for role in roles:
        own = [entry for entry in spent if entry.role == role]
        rows.append(_make_cost_row(role, "all stages", sum(entry.calls for entry in own), _sum_usage(own)))
    return make_table(("role", "stage", "calls", "tokens in", "tokens out", "cost"), rows)


def _make_cost_row(role: str, stage: str, calls: int, usage: Usage) -> tuple[str, ...]:
    tokens = (f"{usage.prompt_tokens:,}", f"{usage.completion_tokens:,}")
    return (role, stage, f"{calls:,}", *tokens, f"${usage.dollars:.4f}")


def sum_times(records: Sequence[Record]) -> dict[str, float]:
    """The seconds of each stage, over all records."""
    sums: dict[str, float] = {}
    for record in records:
        for stage, seconds in record.seconds.items():
            sums[stage] = sums.get(stage, 0.0) + seconds
    return sums


def _render_times(records: Sequence[Record]) -> Html:
    rows = [(stage, format_duration(seconds)) for stage, seconds in sum_times(records).items() if seconds >= 0.05]
    return make_table(("stage", "time"), rows)


def describe_difference(paired: PairedStats) -> str:
    """The difference between two skills in words."""
    return f"{format_difference(paired)} points, better with {paired.better:.0%}"


def format_difference(paired: PairedStats) -> str:
    """The difference in points, with its 95 % interval."""
    low, high = format_points(paired.interval.low), format_points(paired.interval.high)
    return f"{format_points(paired.difference)} [{low}, {high}]"


def format_points(value: float) -> str:
    """A difference of scores in points, with its sign."""
    points = round(100 * value)
    return f"+{points}" if points > 0 else f"−{-points}" if points < 0 else "0"


# ---- formatting -----------------------------------------------------------------------------------------------------


def format_number(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}".rstrip("0").rstrip(".")


def format_interval(interval: Interval | None) -> str:
    return f"{format_number(interval.low)} to {format_number(interval.high)}" if interval else ""


def format_duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"
