"""The recipe `ledger`: a training step, in order, and the loop over steps.

    for every step:   1 sample    the tasks, and for each rollout a text of its own: the initial skill with some lines
                      2 rollout   run them
                      3 read      analysts name the situations that spoiled failed rollouts, and suspects; they propose
                      4 credit    every rollout is evidence for and against each line
                      5 admit     proposals become lines
                      6 assess    choose the lines of the working text, retire others

No rollout is spent on a gate. The ledger is part of the run state. It follows from the readings in the records of the
steps, and the store says for each text which lines are in it. So everything can be computed again from the store.
"""

import dataclasses
import hashlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from random import Random
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from ludus.encoding import to_json
from ludus.errors import StoreError
from ludus.reflact.gate import ScoreTally
from ludus.reflact.guards import Guard
from ludus.reflact.items import Item
from ludus.reflact.journal import Clock, open_task_group
from ludus.reflact.ledger.admission import admit_proposals, place_edit
from ludus.reflact.ledger.assessment import assess_lines, update_working
from ludus.reflact.ledger.credit import add_readings
from ludus.reflact.ledger.file_reach import find_unread
from ludus.reflact.ledger.line_analyst import LineReflection, analyse_failures, apply_causes
from ludus.reflact.ledger.line_files import refuse_file_lines
from ludus.reflact.ledger.line_records import (
    Line,
    LineChange,
    LineLedger,
    LineProposal,
    LineStep,
    Reading,
    make_passage_lines,
)
from ludus.reflact.ledger.placement import move_lines
from ludus.reflact.ledger.rollout_plan import RolloutPlan, plan_rollouts
from ludus.reflact.ledger.sampling import drop_own_lines, group_rivals, sample_lines, sample_passages, sample_tasks
from ludus.reflact.measure import Trial, choose_success_at, is_success, read_graded_score, tally_scores
from ludus.reflact.proposers import Proposer, View, check_result
from ludus.reflact.records import (
    LEDGER_ACTIONS,
    BatchReport,
    Fate,
    MeasuredSkill,
    Pattern,
    Reflection,
    RunState,
    Step,
    add_costs,
    count_rollouts,
)
from ludus.reflact.splits import derive_step_seed, order_tasks
from ludus.reflact.stages.appendix import extend_notes
from ludus.reflact.train_settings import TrainSettings
from ludus.reflact.training_run import TrainingRun
from ludus.skill import Edit, Skill, add_notes, apply_edits, read_notes
from ludus.store import Store
from ludus.types import Rollout, Task

DRAWS = "draw"
"""The kind of a `SampleRecord` in the store."""


class SampleRecord(Struct, frozen=True):
    """The lines in the texts that the rollouts of a step ran with."""

    step: int
    texts: Mapping[str, tuple[str, ...]]
    """The ids of the lines by the hash of the text."""


class SampledTrial(NamedTuple):
    """A task, the text that it is run with, and the ids of the lines in this text."""

    task: Task
    skill: Skill
    lines: tuple[str, ...]


async def train_lines(run: TrainingRun, state: RunState) -> AsyncGenerator[Step, None]:
    """Take steps until the rollouts for training are spent."""
    plan = plan_run(run)
    state = replace(state, ledger=open_ledger(run, state.initial.skill))
    while count_rollouts(state.spent) + run.ledger_batch <= plan.training:
        step = await run.load_or_run(Step, take_ledger_step, state)
        yield step
        state = step.state
        shipping = _count_shipping(run) if plan.total is None else plan.total - plan.training
        run.hold_reserve(shipping + run.test_rollouts, count_rollouts(state.spent))


def open_ledger(run: TrainingRun, initial: Skill) -> LineLedger:
    """The ledger before the first step: the passages of the initial skill, all in the working text."""
    settings = run.settings.ledger
    if settings.passages == "keep":
        return LineLedger()
    lines = make_passage_lines(initial)
    ledger = LineLedger(lines=lines, working=tuple(line.id for line in lines))
    return replace(ledger, assessed=assess_lines(ledger, settings.tuning))


def _count_shipping(run: TrainingRun) -> int:
    """About how many rollouts shipping takes if nothing limits it: mostly one candidate beside the initial skill."""
    return 2 * len(run.selection) * (1 + run.settings.shipping.count_passes(len(run.selection)))


def plan_run(run: TrainingRun) -> RolloutPlan:
    """How many rollouts training and shipping may take."""
    return plan_rollouts(run.settings, len(run.splits.train), run.test_rollouts, run.rollouts)


async def take_ledger_step(run: TrainingRun, state: RunState) -> Step:
    """One step of the ledger: sample, rollout, read, credit, admit, assess."""
    number, ledger = state.step + 1, state.ledger or LineLedger()
    refuse_older(ledger)
    epoch = 1 + ledger.taken // len(run.splits.train)
    clock = Clock(run.journal, epoch, number)
    view = run.make_view(replace(state, epoch=epoch), number)
    base = _add_ledger_notes(state.initial.skill, ledger)

    # 1 sample
    samples, taken = sample_step(run, ledger, base, number)
    record_samples(run.store, number, samples)
    clock.lap("draw")

    # 2 rollout
    seed = derive_step_seed(run.settings.seed, number)
    rollouts = await run_samples(run, samples, seed)
    clock.lap("rollout")

    # 3 read
    tally = tally_scores(state.scores or ScoreTally(), rollouts)
    view = use_success_bar(view, tally)
    read = read_rollouts if run.proposer.names_causes else propose_from_outcomes
    readings, reflections = await read(run.proposer, view, ledger, base, samples, rollouts)
    reflections, unfit = await refuse_file_lines(run.runner.runner, view, ledger, base, reflections)
    clock.lap("reflect")

    # 4 credit, 5 admit, 6 assess
    learned = learn_lines(run, replace(ledger, taken=taken), base, number, readings, reflections)
    asked = bool(reflections) or any(entry.role == "optimizer" for entry in state.spent)
    if run.proposer.names_causes and asked and (problem := find_silence(learned.ledger, number)):
        run.journal.warn(problem)
    base, consolidated = await _add_step_notes(view, base, reflections, run.guard)
    after = replace(learned.ledger, notes=read_notes(base) if run.settings.appendix.enabled else ())
    working, _ = after.compose(base, after.get_lines(after.working))
    clock.lap("assess")

    changed = working != state.current.skill
    spent = run.journal.sum_costs()
    return Step(
        number=number,
        epoch=epoch,
        place=number,
        batches=(BatchReport.from_rollouts(seed, rollouts),),
        reflections=tuple(_describe_reflection(each) for each in reflections),
        fates=(*learned.fates, *unfit),
        candidate=working if changed else None,
        action=LEDGER_ACTIONS[0] if changed else LEDGER_ACTIONS[1],
        notes_added=len(set(after.notes) - set(ledger.notes)),
        notes=len(after.notes),
        consolidated=consolidated,
        lines=learned.lines,
        events=run.journal.list_events(),
        warnings=run.journal.list_warnings(),
        spent=spent,
        seconds=clock.seconds,
        state=replace(
            state,
            epoch=epoch,
            step=number,
            current=MeasuredSkill(working, f"step_{number:04d}", number) if changed else state.current,
            spent=add_costs(state.spent, spent),
            ledger=after,
            scores=tally,
        ),
    )


def refuse_older(ledger: LineLedger) -> None:
    """Refuse to go on with a run of a version that judged harm in another way: what it knew is not in its records."""
    tried = any(line.tries and not line.is_free for line in ledger.lines)
    if tried and not ledger.blame.other_causes:
        raise StoreError(
            "this run was begun by a version of Ludus that judged in another way which lines do harm: finish it with "
            "that version, or start again with another --out"
        )


_SILENT_STEPS = (3, 10, 30, 100)
"""After which steps a run says that its analysts have named nothing."""


def find_silence(ledger: LineLedger, step: int) -> str:
    """What to tell a user whose analysts have named nothing so far; empty if they have, or if it was told before."""
    if step not in _SILENT_STEPS or not ledger.is_silent:
        return ""
    return (
        f"after {step} steps the analysts have named no situation and proposed no line, so nothing is learned but what "
        "outcomes say about passages of the initial skill. Read their replies (`ludus show RUN --replies`), and use a "
        "stronger optimizer or other prompts (train.prompts)"
    )


def use_success_bar(view: View, tally: ScoreTally) -> View:
    """The view with the score from which a rollout is a success, where the scores so far decide it."""
    settings = view.settings
    bar = choose_success_at(settings.success_at, settings.gate, tally)
    return view if bar == settings.success_at else dataclasses.replace(view, settings=replace(settings, success_at=bar))


def _add_ledger_notes(initial: Skill, ledger: LineLedger) -> Skill:
    """The text that lines are added to: the initial skill with the notes of the ledger."""
    return add_notes(initial, ledger.notes) if ledger.notes else initial


# ---- 1 sample -----------------------------------------------------------------------------------------------------


def sample_step(run: TrainingRun, ledger: LineLedger, base: Skill, number: int) -> tuple[list[SampledTrial], int]:
    """The rollouts of a step, and how many tasks of the epochs are taken after it."""
    settings = run.settings
    random = Random(f"{settings.seed}/ledger/{number}")
    size = run.ledger_batch
    queue = order_tasks(run.splits.train, ledger.taken, 2 * size, settings.seed)
    ids = [task.id for task in queue]
    targeted, others = sample_tasks(ledger, list(dict.fromkeys(ids)), size, random)
    taken = ledger.taken + (1 + max(ids.index(task) for task in others) if others else 0)
    tasks = {task.id: task for task in run.splits.train}
    groups = group_rivals(ledger)
    chosen, samples = (*targeted, *others), list[SampledTrial]()
    sharing = settings.ledger.tasks_per_text
    for start in range(0, len(chosen), sharing):
        block = chosen[start : start + sharing]
        passages = sample_passages(ledger, random)
        lines = drop_own_lines(sample_lines(groups, settings.ledger.tuning, random, passages), block)
        skill, present = ledger.compose(base, lines)
        samples += [SampledTrial(tasks[id], skill, present) for id in block]
    return samples, taken


def record_samples(store: Store, step: int, samples: Sequence[SampledTrial]) -> None:
    """Store which lines each text has, before it is run."""
    body = to_json(SampleRecord(step, {sample.skill.hash: sample.lines for sample in samples}))
    store.put_record(hashlib.sha256(DRAWS.encode() + body).hexdigest()[:32], DRAWS, body)


# ---- 2 rollout ------------------------------------------------------------------------------------------------------


async def run_samples(run: TrainingRun, samples: Sequence[SampledTrial], seed: int) -> list[Rollout]:
    """The rollouts of a step. Of those with the same text one runs first: a server that caches prompts has the text
    only when it has answered a request with it."""
    trials = [Trial(sample.skill, sample.task, seed) for sample in samples]
    if run.settings.ledger.tasks_per_text == 1:
        return await run.runner.run_trials(trials, "rollout")
    first = {trial.skill: place for place, trial in reversed(list(enumerate(trials)))}
    begun = sorted(first.values())
    left = [place for place in range(len(trials)) if place not in begun]
    done = await run.runner.run_trials([trials[place] for place in begun], "rollout")
    if left:
        done += await run.runner.run_trials([trials[place] for place in left], "rollout", earlier=done)
    return [rollout for _, rollout in sorted(zip((*begun, *left), done, strict=True), key=lambda pair: pair[0])]


# ---- 3 read ---------------------------------------------------------------------------------------------------------


async def read_rollouts(
    proposer: Proposer,
    view: View,
    ledger: LineLedger,
    base: Skill,
    samples: Sequence[SampledTrial],
    rollouts: Sequence[Rollout],
) -> tuple[tuple[Reading, ...], list[LineReflection]]:
    """What each rollout says, and what the analysts propose."""
    readings = _make_readings(ledger, samples, rollouts, view.settings)
    failed = [place for place, reading in enumerate(readings) if reading.passed is False]
    size = view.settings.rollouts_per_request
    parts = [failed[start : start + size] for start in range(0, len(failed), size)]
    async with open_task_group() as group:
        asked = [
            group.create_task(
                analyse_failures(
                    view,
                    ledger,
                    base,
                    [(rollouts[place], samples[place].lines) for place in part],
                    f"{view.epoch}/{view.step}/{number}",
                )
            )
            for number, part in enumerate(parts)
        ]
    reflections = [task.result() for task in asked]
    for part, reflection in zip(parts, reflections, strict=True):
        for index, place in enumerate(part, 1):
            readings[place] = apply_causes(readings[place], reflection.causes.get(index))
    return tuple(readings), reflections


async def propose_from_outcomes(
    proposer: Proposer,
    view: View,
    ledger: LineLedger,
    base: Skill,
    samples: Sequence[SampledTrial],
    rollouts: Sequence[Rollout],
) -> tuple[tuple[Reading, ...], list[LineReflection]]:
    """What each rollout says, and the items of a proposer that names no situations, such as `exemplars`.

    Nobody reads why a rollout failed, so only its outcome counts, and each item has its own situation. The proposer
    sees the text with all lines that are alive, so that it does not propose them again.
    """
    readings = _make_readings(ledger, samples, rollouts, view.settings)
    shown = dataclasses.replace(view, skill=ledger.compose(base, ledger.alive)[0])
    found = await proposer.reflect(shown, 1, _stream(rollouts))
    reflections = check_result(proposer, "reflect", found, Reflection, "Reflections")
    patterns = [p for each in reflections for p in each.patterns] if proposer.patterns_are_causes else []
    merged = await proposer.aggregate(shown, reflections)
    items = check_result(proposer, "aggregate", merged, Item, "items (Edit, Suggestion or Document)")
    proposals = [
        _make_own_proposal(item, place, view.step, ledger, base, patterns) for place, item in enumerate(items, 1)
    ]
    tasks = tuple(rollout.task.id for rollout in rollouts)
    kept = tuple(proposal for proposal in proposals if proposal is not None)
    if proposer.patterns_are_causes:
        named = tuple(_name_patterns(reading, patterns) for reading in readings)
    else:
        named = tuple(replace(reading, read=False) for reading in readings)
    return named, [LineReflection(tasks, proposals=kept)]


def _name_patterns(reading: Reading, patterns: Sequence[Pattern]) -> Reading:
    """The reading with the patterns that a failed rollout shows."""
    named = [p.name for p in patterns if reading.passed is False and reading.task in p.tasks]
    return replace(reading, situations=tuple(dict.fromkeys(named)))


async def _stream(rollouts: Sequence[Rollout]) -> AsyncGenerator[Rollout, None]:
    for rollout in rollouts:
        yield rollout


def _make_own_proposal(
    item: Item, place: int, step: int, ledger: LineLedger, base: Skill, patterns: Sequence[Pattern]
) -> LineProposal | None:
    if not isinstance(item, Edit):
        return None
    edit, replaces = place_edit(item, base, ledger.alive)
    if about := next((p.name for p in patterns if item.evidence and set(item.evidence) <= set(p.tasks)), ""):
        return LineProposal(edit=edit, situation=about, replaces=replaces)
    old = next((line.situation for line in ledger.lines if line.id == replaces), "")
    origin = ", ".join(item.evidence[:3]) or "no task"
    situation = old or f"from {origin} (step {step}, item {place})"
    return LineProposal(edit=edit, situation=situation, replaces=replaces, by_outcome=True)


def _make_readings(
    ledger: LineLedger, samples: Sequence[SampledTrial], rollouts: Sequence[Rollout], settings: TrainSettings
) -> list[Reading]:
    """The outcome of each rollout, and which lines could act in it. Nothing is known about situations yet."""
    readings: list[Reading] = []
    for (task, skill, lines), rollout in zip(samples, rollouts, strict=True):
        passed = None if rollout.score is None else is_success(rollout, settings.success_at)
        score = read_graded_score(rollout, settings.gate)
        unread = find_unread(ledger.get_lines(lines), rollout.skill_use)
        readings.append(
            Reading(
                task=task.id,
                kind=task.kind,
                skill=skill.hash,
                lines=tuple(id for id in lines if id not in unread),
                unread=unread,
                passed=passed,
                score=score,
            )
        )
    return readings


async def _add_step_notes(
    view: View, base: Skill, reflections: Sequence[LineReflection], guard: Guard
) -> tuple[Skill, bool]:
    if not view.settings.appendix.enabled:
        return base, False
    added = [note for reflection in reflections for note in reflection.notes]
    return await extend_notes(view, base, added, guard)


# ---- 4 credit, 5 admit, 6 assess ------------------------------------------------------------------------------------


class LearnedLines(NamedTuple):
    """What a step changed in the ledger."""

    ledger: LineLedger
    lines: LineStep
    fates: tuple[Fate, ...]
    """What became of each proposal."""


def learn_lines(
    run: TrainingRun,
    ledger: LineLedger,
    base: Skill,
    number: int,
    readings: tuple[Reading, ...],
    reflections: Sequence[LineReflection],
) -> LearnedLines:
    """Credit the readings of step `number` to the lines, admit what was proposed, and choose the working text."""
    settings = run.settings.ledger
    credited = add_readings(ledger, readings, settings.tuning)
    proposals = [proposal for each in reflections for proposal in each.proposals][: settings.most_proposals]
    allowed, refused = check_proposals(run.guard, base, proposals)
    admitted, changes = admit_proposals(credited, allowed, number, settings.tuning)
    placed, moves = move_lines(admitted, base, settings.tuning, run.settings.package)
    assessed, moved = update_working(placed, number, settings.tuning)
    lines = LineStep(readings, (*changes, *moves, *moved))
    after = replace(assessed, digest=extend_digest(ledger.digest, lines, proposals))
    return LearnedLines(after, lines, (*_list_fates(allowed, changes), *refused))


def extend_digest(digest: str, added: LineStep, proposals: Sequence[LineProposal]) -> str:
    """A hash of everything that made a ledger: the one before, what was read, and what was proposed."""
    return hashlib.sha256(digest.encode() + to_json((added, proposals))).hexdigest()[:32]


def check_proposals(
    guard: Guard, base: Skill, proposals: Sequence[LineProposal]
) -> tuple[list[LineProposal], tuple[Fate, ...]]:
    """The proposals that the guard allows, and what becomes of the others."""
    faults = [_find_fault(guard, base, proposal) for proposal in proposals]
    pairs = list(zip(proposals, faults, strict=True))
    refused = tuple(Fate(guard.hide_secret(each.edit), status) for each, status in pairs if status)
    return [each for each, status in pairs if not status], refused


def _find_fault(guard: Guard, base: Skill, proposal: LineProposal) -> str:
    """What is wrong with a proposal's edit, or with the line of the document that it brings, as a fate; empty if
    nothing is. Front matter, or half of a protected region, is no line."""
    fault = guard.check_edit(base, proposal.edit)
    if fault is None and proposal.pointer:
        fault = guard.check_edit(base, Edit("append", proposal.pointer))
    if fault is not None:
        return fault.status
    status = apply_edits(base, [proposal.edit])[1][0].status if proposal.edit.op == "append" else ""
    return status if status == "skipped_protected_region" else ""


# ---- the record -----------------------------------------------------------------------------------------------------


def _describe_reflection(reflection: LineReflection) -> Reflection:
    """What an analyst found, in the form of all records."""
    tasks: dict[str, list[str]] = {}
    for number, causes in sorted(reflection.causes.items()):
        for label in causes.situations:
            tasks.setdefault(label, []).append(reflection.tasks[number - 1])
    return Reflection(
        "failure",
        reflection.tasks,
        tuple(proposal.edit for proposal in reflection.proposals),
        tuple(Pattern(label, "", tuple(named)) for label, named in tasks.items()),
        reflection.notes,
        reflection.reasoning,
    )


def _list_fates(proposals: Sequence[LineProposal], changes: Sequence[LineChange]) -> tuple[Fate, ...]:
    """What became of each proposal."""
    own = [change for change in changes if change.change in ("new", "revived", "dropped")]
    return tuple(Fate(proposal.edit, _name_status(change)) for proposal, change in zip(proposals, own, strict=True))


def _name_status(change: LineChange) -> str:
    return f"skipped: {change.reason}" if change.change == "dropped" else f"applied: {change.change} line {change.line}"


# ---- shipping -------------------------------------------------------------------------------------------------------


def list_candidates(run: TrainingRun, state: RunState) -> list[MeasuredSkill]:
    """The skills that could be shipped: the working text, and the same with only those lines that are more certain and
    with the passages of the initial skill that are not known to cost anything."""
    ledger = state.ledger or LineLedger()
    base = _add_ledger_notes(state.initial.skill, ledger)
    working = ledger.get_lines(ledger.working)
    bar = run.settings.ledger.tuning.drop_passage
    passages = [line for line in ledger.alive if line.passage and ledger.assessed[line.id].pays >= bar]
    proposed = [line for line in working if not line.passage]
    sets = {  # of two that measure the same, the first one is shipped
        "likely_lines": [*passages, *(line for line in proposed if _is_likely(line, ledger, 0.6))],
        "working_text": working,
        "sure_lines": [*passages, *(line for line in proposed if _is_likely(line, ledger, 0.8))],
    }
    return [MeasuredSkill(ledger.compose(base, lines)[0], name, state.step) for name, lines in sets.items()]


def _is_likely(line: Line, ledger: LineLedger, bar: float) -> bool:
    pays = ledger.assessed[line.id].pays
    return pays > bar if line.by_outcome else line.works > bar and (pays > 0.5 or bar < 0.8)
