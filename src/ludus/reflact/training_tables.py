"""A training run on a terminal: its progress while it runs, then its steps, skills and costs as tables."""

import json
import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TextIO

from ludus.command.terminal import (
    LiveLine,
    count_things,
    format_count,
    format_money,
    format_number,
    make_console,
    make_table,
    make_text,
)
from ludus.control import RunControl
from ludus.encoding import to_json
from ludus.reflact.change_list import describe_changes
from ludus.reflact.claim_table import print_arms
from ludus.reflact.estimate import Estimate, LikelyRange
from ludus.reflact.gate import METRICS, Gate, Verdict
from ludus.reflact.journal import StageProgress
from ludus.reflact.ledger.line_records import LineLedger
from ludus.reflact.records import (
    Baseline,
    ClaimArms,
    EpochEnd,
    MeasuredSkill,
    Product,
    Record,
    Step,
    Summary,
    count_exclusions,
    count_suspects,
    explain_equal_scores,
    find_gate,
)
from ludus.reflact.report import run_files as files
from ludus.reflact.report.run_words import format_difference, has_fresh_scores, is_applied, name_products
from ludus.reflact.report.score_curve import compute_score_interval, make_curve
from ludus.reflact.score_plot import plot_scores
from ludus.reflact.stages.evaluate import compute_score
from ludus.reflact.training_run import read_records
from ludus.run_info import read_failure_ledger
from ludus.stats import describe_failures, warn_of_exclusions
from ludus.store import RunDir
from ludus.suspects import SuspectPolicy, describe_suspects, read_suspect_policy
from ludus.view.training import read_train_settings

_PROBLEM = 100
"""The number of characters of what is wrong with a reply that are shown beside a step."""

if TYPE_CHECKING:  # importing rich takes a while, and most commands do not draw
    from rich.console import Console
    from rich.text import Text


class TrainingBar(LiveLine):
    """A line with the progress of a training run: stage, step, scores, spending and the expected end.

    Call it with each `StageProgress` and with what was spent so far. `record` prints a line for each finished part,
    on a terminal or not. The end is estimated from the rollouts that are likely to be needed.
    """

    def __init__(
        self,
        gate: Gate,
        steps: int,
        rollouts: int,
        *,
        file: TextIO | None = None,
        control: RunControl | None = None,
    ) -> None:
        super().__init__("rollouts", file, control=control)
        self._gate = gate
        self._steps = steps
        self._rollouts = rollouts
        self._done = 0
        self._stage: tuple[int, int, str] = (0, 0, "")
        self._in_stage = 0
        self._scores = ""

    def __call__(self, stage: StageProgress, spent: str) -> None:
        if stage.total:  # replies of the optimizer, which have no total, are not counted
            if (stage.epoch, stage.step, stage.stage) != self._stage:
                self._stage, self._in_stage = (stage.epoch, stage.step, stage.stage), 0
            self._done += max(0, stage.done - self._in_stage)
            self._in_stage = stage.done
        words = " · ".join(part for part in (describe_stage(stage, self._steps), self._scores, spent) if part)
        self.draw(min(self._done, self._rollouts), self._rollouts, words)

    def record(self, record: Record, *, quiet: bool = False) -> None:
        """Show that a part of the run is finished. `quiet`: it was finished in an earlier run, and is not printed."""
        gate = find_gate(self._gate, record.state)
        self._scores = describe_scores(record.state.current, record.state.best, gate)
        self._done = sum(entry.calls for entry in record.state.spent if entry.role == "agent")
        if not quiet:
            self.print(describe_record(record, self._gate, self._steps))


def describe_stage(stage: StageProgress, steps: int) -> str:
    """The stage of a training run, in a few words."""
    count = f"{stage.done}/{stage.total}" if stage.total else f"{stage.done}"
    where = f"step {stage.step}/{steps} " if stage.step else ""
    return f"{where}{stage.stage} {count}"


def describe_scores(current: MeasuredSkill, best: MeasuredSkill, gate: Gate) -> str:
    now, most = compute_score(gate, current), compute_score(gate, best)
    shown = "not measured" if now is None else format_number(now)
    return f"current {shown}, best {format_number(most)}" if most is not None else ""


# ---- a training run -----------------------------------------------------------------------------------------------


def describe_record(record: Record, gate: Gate, steps: int) -> str:
    """A finished part of a training run in one line, and a line for each warning."""
    gate = find_gate(gate, record.state)
    match record:
        case Baseline():
            return (
                f"baseline: {_format_score(record.state.initial, gate)} on {len(record.measure.marks)} selection tasks"
            )
        case Step():
            words = f"step {record.number}/{steps} (epoch {record.epoch}): {_describe_step(record, gate)}"
            return "\n".join([words, *(f"  warning: {warning}" for warning in record.warnings)])
        case EpochEnd():
            done = {"slow update": record.slow.action, "memory": record.memory_action}
            parts = [f"{name} {action}" for name, action in done.items() if action not in ("off", "skip_first_epoch")]
            parts += [f"warning: {warning}" for warning in record.warnings]
            return f"end of epoch {record.epoch}" + (": " if parts else "") + ", ".join(parts)
        case Summary(arms=ClaimArms()):
            return "compared with the arms of the claim"
        case _:
            best, final = _format_score(record.state.best, gate), _format_score(record.state.current, gate)
            return "finished" if record.claim else f"finished: best {best}, final {final}"


def _describe_step(step: Step, gate: Gate) -> str:
    parts = [_name_action(step)]
    if step.verdict is not None and step.verdict.candidate is not None:
        before = "none" if step.verdict.current is None else format_number(step.verdict.current)
        parts[0] += f" {before} → {format_number(step.verdict.candidate)}"
    if suspects := count_suspects(step.spent):
        parts.append(f"{suspects} suspect")
    if step.verdict is not None and step.verdict.excluded:
        parts.append(f"{step.verdict.excluded} without a score")
    if step.fates:
        parts.append(f"{_count_applied(step)} of {len(step.fates)} changes")
    if (train := step.compute_train_score(gate)) is not None:
        parts.append(f"train {format_number(train)}{' (score)' if gate.metric == 'soft' else ''}")
    if step.events:
        count = f"{len(step.events)} {'reply' if len(step.events) == 1 else 'replies'}"
        parts.append(f"{count} unusable ({textwrap.shorten(step.events[0].problem, _PROBLEM, placeholder=' …')})")
    if isinstance(step.state.ledger, LineLedger):
        lines = count_things(len(step.state.ledger.working), "line")
        parts.append(f"{lines} in the working text, {len(step.state.ledger.alive)} alive")
    return ", ".join(filter(None, [*parts, describe_scores(step.state.current, step.state.best, gate)]))


def _name_action(step: Step) -> str:
    """What the step did, in words."""
    return step.action.replace("_", " ")


def _count_applied(step: Step) -> int:
    return sum(map(is_applied, step.fates))


def _format_score(skill: MeasuredSkill, gate: Gate) -> str:
    """A skill's score on the selection split, with its interval."""
    score, band = compute_score(gate, skill), compute_score_interval(skill.measure, gate)
    shown = "not measured" if score is None else format_number(score)
    return shown + (f" [{format_number(band.low)}, {format_number(band.high)}]" if band else "")


def show_training_run(run: RunDir, *, as_json: bool) -> None:
    """Print a training run, finished or not, from its store."""
    settings = read_train_settings(run)
    records = list(read_records(run))
    if as_json:
        lines = [json.loads(files.encode_line(record, settings.gate)) for record in records]
        facts = {"run": str(run.path), "failures": json.loads(to_json(read_failure_ledger(run))), "records": lines}
        print(json.dumps(facts, ensure_ascii=False))
        return
    print_training(records, settings.gate, suspects=read_suspect_policy(run.config))
    if words := describe_failures(read_failure_ledger(run)):
        print(words)
    print(f"\none transcript: ludus show {shlex.quote(str(run.path))} TASK (or TASK#2 for its second rollout)")


def print_training(
    records: Sequence[Record], gate: Gate, console: "Console | None" = None, *, suspects: SuspectPolicy = "zero"
) -> None:
    """Print the steps, the skills and the costs of a training run. `suspects`: how suspects counted."""
    console = console or make_console()
    if not records:
        console.print("nothing is finished yet")
        return
    last = records[-1]
    gate = find_gate(gate, last.state)
    if isinstance(last, Summary) and last.claim is not None:
        console.print(
            make_text(f"{last.claim.sentence}\n", "bold green" if last.claim.is_better else "bold"), soft_wrap=True
        )
        print_arms(last, console, gate)
    _print_steps(records, console, gate)
    for part in (describe_changes(records), plot_scores(make_curve(records, gate))):
        if part:
            console.print(make_text(f"{part}\n"), soft_wrap=True)
    if isinstance(records[-1], Summary) and records[-1].canaries is not None:
        console.print(make_text(f"{records[-1].canaries.describe()}\n"), soft_wrap=True)
    _print_skills(records, console, gate)
    tokens = sum(entry.usage.tokens for entry in last.state.spent)
    dollars = sum(entry.usage.dollars for entry in last.state.spent)
    counts = {"agent": ("rollout", "rollouts"), "optimizer": ("reply", "replies")}
    calls = [f"{role} {n} {words[n > 1]}" for role, words in counts.items() if (n := _count_calls(last, role))]
    took = [*calls, f"{format_count(tokens)} tokens", format_money(dollars) if dollars else ""]
    console.print(make_text("took: " + ", ".join(part for part in took if part), "dim"))
    if words := describe_suspects(count_suspects(last.state.spent), suspects):
        console.print(make_text(words, "magenta"), soft_wrap=True)
    if warning := warn_of_exclusions(*count_exclusions(records)):
        console.print(make_text(f"warning: {warning}", "yellow"), soft_wrap=True)
    if warning := _explain_silence(last):
        console.print(make_text(f"warning: {warning}", "yellow"), soft_wrap=True)
    if warning := explain_equal_scores(records):
        console.print(make_text(f"warning: {warning}", "yellow"), soft_wrap=True)
    if not isinstance(last, Summary):
        console.print(make_text("not finished: there is no test result yet", "dim"))


def _explain_silence(last: Record) -> str:
    """What to do if analysts were asked and have named nothing; else nothing."""
    ledger = last.state.ledger
    if not isinstance(ledger, LineLedger) or not ledger.is_silent or not _count_calls(last, "optimizer"):
        return ""
    return (
        "the optimizer has named no situation and proposed no line. Read their replies (`ludus show RUN --replies`), "
        "and use a stronger optimizer or other prompts (train.prompts)"
    )


def _print_steps(records: Sequence[Record], console: "Console", gate: Gate) -> None:
    """Print the steps as a table. The recipe `ledger` has lines in place of candidates that a gate judges."""
    if any(isinstance(record.state.ledger, LineLedger) for record in records):
        names = ("step", "epoch", "decision", "changes", "lines working", "alive", "train")
        rows = [_make_ledger_row(record, gate) for record in records if isinstance(record, Step)]
    else:
        names = ("step", "epoch", "decision", "candidate", "points", "current", "best", "train")
        rows = list(_list_gate_rows(records, gate))
    table = make_table(*names, whole=(2,))
    for row in rows:
        table.add_row(*row)
    if rows:
        console.print(table)
        console.print()


def _list_gate_rows(records: Sequence[Record], gate: Gate) -> "Iterator[list[str | Text]]":
    for record in records:
        if isinstance(record, Step):
            yield _make_step_row(record, gate)
        elif isinstance(record, EpochEnd) and record.slow.candidate is not None:
            change = _format_difference(record.slow.verdict)
            words = make_text(f"slow update: {record.slow.action}")
            yield ["", str(record.epoch), words, "", change, *[""] * 3]


def _make_ledger_row(step: Step, gate: Gate) -> "list[str | Text]":
    ledger = step.state.ledger
    lines = [str(len(ledger.working)), str(len(ledger.alive))] if isinstance(ledger, LineLedger) else ["", ""]
    changes = f"{_count_applied(step)} of {len(step.fates)}" if step.fates else ""
    words = make_text(_name_action(step), "green" if step.action == "working_text_changed" else "dim")
    train = _format_optional(step.compute_train_score(gate))
    return [str(step.number), str(step.epoch), words, changes, *lines, train]


def _count_calls(record: Record, role: str) -> int:
    return sum(entry.calls for entry in record.state.spent if entry.role == role)


def _make_step_row(step: Step, gate: Gate) -> "list[str | Text]":
    now, most = compute_score(gate, step.state.current), compute_score(gate, step.state.best)
    candidate = step.verdict.candidate if step.verdict else None
    colour = "green" if step.action.startswith(("accept", "force")) else "red" if step.action == "reject" else "dim"
    cells = [_format_optional(value) for value in (now, most, step.compute_train_score(gate))]
    words = make_text(_name_action(step), colour)
    change = _format_difference(step.verdict)
    return [str(step.number), str(step.epoch), words, _format_optional(candidate), change, *cells]


def _format_difference(verdict: Verdict | None) -> str:
    """The difference from the current skill in points; empty for runs of earlier versions."""
    return format_difference(verdict.paired) if verdict and verdict.paired else ""


def _print_skills(records: Sequence[Record], console: "Console", gate: Gate) -> None:
    last = records[-1]
    tests = name_products(last) if isinstance(last, Summary) else {}
    skills = {"initial": last.state.initial, "best": last.state.best, "final": last.state.current}
    table = make_table("skill", "from", _name_selection(last, gate), "test (passed)")
    for name, skill in skills.items():
        shown = name if tests or name != "final" else "current"
        table.add_row(
            shown,
            make_text(skill.origin),
            _format_score(skill, gate),
            _format_test(tests.get(name), gate),
        )
    for name in tests.keys() - skills.keys():
        table.add_row(
            name,
            make_text(tests[name].origin),
            _format_optional(tests[name].selection),
            _format_test(tests[name], gate),
        )
    console.print(table)


def _name_selection(last: Record, gate: Gate) -> str:
    """What the scores on the selection split are."""
    fresh = isinstance(last, Summary) and has_fresh_scores(last)
    return f"selection ({METRICS[gate.metric]}, {'fresh' if fresh else 'biased'})"


def _format_test(product: Product | None, gate: Gate) -> str:
    if product is None or product.test is None:
        return "" if product is None else "not tested"
    bucket = product.test.overall
    band = f" [{format_number(bucket.interval.low)}, {format_number(bucket.interval.high)}]" if bucket.interval else ""
    failed = f", {product.test.failed} without a score" if product.test.failed else ""
    graded = f"score {_format_optional(bucket.soft)}, passed " if gate.metric == "soft" else ""
    tasks = f"{bucket.tasks} task{'' if bucket.tasks == 1 else 's'}"
    return f"{graded}{_format_optional(bucket.hard)}{band} of {tasks}{failed}"


def _format_optional(value: float | None) -> str:
    return "" if value is None else format_number(value)


def print_estimate(estimate: Estimate, dollars: Mapping[str, LikelyRange]) -> None:
    """Print what a run will take. `dollars`: what the calls of each role cost."""
    table = make_table("role", "stage", "calls", "between", "tokens each", "tokens")
    for line in estimate.lines:
        calls, each = line.calls, format_count(line.each.tokens)
        between = "" if calls.least == calls.most else f"{calls.least} and {calls.most}"
        tokens = format_count(calls.likely * line.each.tokens)
        table.add_row(line.role, line.stage, str(calls.likely), between, each, tokens)
    make_console().print(table)
    print()
    for role, cost in dollars.items():
        calls, tokens = estimate.count_calls(role), estimate.count_tokens(role)
        if calls.most:
            words = [
                f"{calls.likely} calls ({calls.least} to {calls.most})",
                f"{format_count(tokens.likely)} tokens ({format_count(tokens.least)} to {format_count(tokens.most)})",
            ]
            if cost.most:
                words.append(f"{format_money(cost.likely)} ({format_money(cost.least)} to {format_money(cost.most)})")
            print(f"{role}: {', '.join(words)}")
