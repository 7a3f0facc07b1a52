"""The trainer: two recipes, and what every run ends with.

The recipe `reflact` has six stages and one loop; the recipe `ledger` is in `ludus.reflact.ledger.loop`:

    baseline
    for every epoch:
        for every step:   1 rollout   the current skill on a batch of train tasks
                          2 reflect   analysts read the rollouts and propose changes
                          3 aggregate the proposals become one list
                          4 select    the best of it, within the budget
                          5 update    the candidate document
                          6 evaluate  the gate compares it with the current one on the selection split
        slow update and optimizer memory
    ship: measure candidates afresh, then test the winner on the sealed split
    claim: if asked for, spend the same rollouts on samples of the initial skill

`train` yields a record of each part when it is finished and keeps nothing else: the caller saves, prints and stops.
One value, `RunState`, is passed from part to part. Stages that do not depend on each other overlap: an analyst starts
when its minibatch is complete, and two skills that are compared run side by side.

Resuming is running the same loop again on the same store. A finished part is found under the content address of its
inputs and is not decided again. In the part that was interrupted, every finished rollout and reply is found. If the
models reply in the same way to the same seed, a run that was killed at any point ends with the same records as a run
that was not.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import NamedTuple

from msgspec.structs import replace

from ludus.errors import BudgetExhausted, ConfigError
from ludus.models import Model
from ludus.policy import Policy
from ludus.reflact import step_buffer as buffer
from ludus.reflact.gate import Gate, Rule, pair_marks
from ludus.reflact.guards import REFUSED_STATUSES
from ludus.reflact.items import Item
from ludus.reflact.journal import Clock, open_task_group
from ludus.reflact.ledger.loop import list_candidates, plan_run, train_lines
from ludus.reflact.measure import Outage, Stopped
from ludus.reflact.prompt_templates import Prompts
from ludus.reflact.proposers import Proposer, View, check_result
from ludus.reflact.records import (
    Baseline,
    BatchReport,
    BudgetDecision,
    EpochEnd,
    Fate,
    HistoryLine,
    MeasuredSkill,
    Record,
    Reflection,
    RunState,
    Shipment,
    SlowReport,
    SplitScores,
    Step,
    Summary,
    UnusableReply,
    add_costs,
    count_rollouts,
    find_gate,
    make_epoch_stats,
)
from ludus.reflact.shipping import (
    compute_claim_interval,
    count_test_uses,
    explain_kept,
    make_claim,
    ship,
    ship_best,
)
from ludus.reflact.splits import FinishedSkills, Splits, TrainBatch, count_epoch_steps, plan_epoch
from ludus.reflact.stages.appendix import note_lapses
from ludus.reflact.stages.canaries import watch_canaries
from ludus.reflact.stages.claim import add_arms, find_arms
from ludus.reflact.stages.collect import roll_and_reflect
from ludus.reflact.stages.evaluate import (
    Judgement,
    TestResult,
    compute_score,
    evaluate,
    make_product,
    measure_on_selection,
    run_test,
    set_measure,
)
from ludus.reflact.stages.optimizer_memory import write_memory
from ludus.reflact.stages.select import choose_items, decide_budget, list_not_selected
from ludus.reflact.stages.slow_update import (
    Pair,
    SlowReply,
    apply_guidance,
    compare_skills,
    compute_pass_rate,
    count_categories,
    write_guidance,
)
from ludus.reflact.stages.update import NO_UPDATE, Update, refuse_scripts, update
from ludus.reflact.train_settings import TrainSettings
from ludus.reflact.training_run import Resources, TrainingRun, get_initial_skill, start_run
from ludus.runner import Runner
from ludus.skill import Skill, read_notes
from ludus.stats import PairedStats, compare_pairs
from ludus.types import Rollout


async def train(
    runner: Runner,
    policy: Policy,
    splits: Splits,
    settings: TrainSettings = TrainSettings(),
    *,
    optimizer: Model | None = None,
    proposer: Proposer | None = None,
    prompts: Prompts | None = None,
    rule: Rule | None = None,
    resources: Resources = Resources(),
) -> AsyncGenerator[Record, None]:
    """Train `policy.skill`. Yields a record of each part; the last one is the `Summary`.

    With a `claim` in the resources, the summary comes a second time, with the arms that the claim is compared with.
    Setting `stop` of the runner's options ends the run before its summary; what is under way is finished and kept.
    `rule` decides about candidates instead of the gate's own rule.

    Raises:
        ConfigError: the settings do not fit each other, the data or the models.
        BudgetExhausted: a budget is spent. After this error and the next two, the run can be resumed.
        Outage: most rollouts of a measurement failed.
        ModelError: the optimizer's server cannot be reached.
    """
    run = start_run(
        runner,
        policy,
        splits,
        settings,
        optimizer=optimizer,
        proposer=proposer,
        prompts=prompts,
        rule=rule,
        resources=resources,
    )
    async with aclosing(run_parts(run, get_initial_skill(policy))) as parts:
        async for part in parts:
            yield part


async def run_parts(run: TrainingRun, initial: Skill) -> AsyncGenerator[Record, None]:
    """Run the parts of a training run in order, and yield a record of each."""
    start = MeasuredSkill(initial, "initial_skill")
    state = RunState(initial=start, current=start, best=start)
    parts = train_lines(run, state) if run.settings.recipe == "ledger" else train_by_gate(run, state)
    ended_early = ""
    try:
        async with aclosing(parts):
            try:
                async for part in parts:
                    yield part
                    state = part.state
            except BudgetExhausted as error:
                if run.reserve is None or not state.step:  # nothing was learned that could be shipped and tested
                    raise
                ended_early = str(error)  # what was kept back is enough for shipping and test
        run.release_reserve()
        summary = await run.load_or_run(Summary, finish, state, ended_early)
        yield summary
        claimed = await (add_arms(run, summary, run.claim) if run.claim is not None else find_arms(run, summary))
        if claimed is not None:
            yield claimed
    except Stopped:
        return


async def train_by_gate(run: TrainingRun, state: RunState) -> AsyncGenerator[Baseline | Step | EpochEnd, None]:
    """The recipe `reflact`: the gate accepts or rejects the candidate of each step."""
    settings = run.settings
    plan = {"batch_size": settings.batch_size, "accumulation": settings.accumulation, "seed": settings.seed}
    _refuse_small_budget(run)
    baseline = await run.load_or_run(Baseline, take_baseline, state)
    yield baseline
    state = baseline.state
    for epoch in range(1, settings.epoch_count + 1):
        state = replace(state, epoch=epoch, buffer=())
        for place, batches in enumerate(plan_epoch(run.splits.train, epoch, **plan), 1):
            if not _fits_rollouts(run, state, sum(len(batch.tasks) for batch in batches)):
                return
            step = await run.load_or_run(Step, take_step, state, place, batches)
            yield step
            state = step.state
            run.hold_reserve(count_end_rollouts(run), count_rollouts(state.spent))
        end = await run.load_or_run(EpochEnd, end_epoch, state)
        yield end
        state = end.state


def count_end_rollouts(run: TrainingRun) -> int:
    """The rollouts that a run keeps back: those of shipping, and the test. Shipping takes the first pass over two
    candidates; the rule `best` measures the final skill at most."""
    passes = run.settings.selection_replicates if run.settings.shipping.rule == "best" else 3
    return passes * len(run.selection) + run.test_rollouts


def _fits_rollouts(run: TrainingRun, state: RunState, train: int) -> bool:
    """Whether the run may take one more step and still ship and test."""
    taken = count_rollouts(state.spent) + count_step_rollouts(run, train)
    return run.rollouts is None or taken + count_end_rollouts(run) <= run.rollouts


def count_step_rollouts(run: TrainingRun, train: int) -> int:
    """The most rollouts of a step with this many train tasks."""
    return train + 2 * len(run.selection) * run.settings.selection_replicates


def _refuse_small_budget(run: TrainingRun) -> None:
    """Raise `ConfigError` if the budget of rollouts has no room for the baseline, one step, shipping and the test."""
    if run.rollouts is None:
        return
    settings, train = run.settings, len(run.splits.train)
    step = count_step_rollouts(run, min(train, settings.batch_size * settings.accumulation))
    needed = len(run.selection) * settings.selection_replicates + step + count_end_rollouts(run)
    if needed > run.rollouts:
        raise ConfigError(
            f"budget.rollouts is {run.rollouts}, but baseline, one step, shipping and the test take {needed}: nothing "
            "would be trained. Raise it, or set train.batch_size, train.selection_size or train.test_size"
        )


# ---- the parts of a run ---------------------------------------------------------------------------------------------


async def take_baseline(run: TrainingRun, state: RunState) -> Baseline:
    """Measure the initial skill."""
    clock = Clock(run.journal, state.epoch, state.step)
    (measure,) = await measure_on_selection(run, [state.initial.skill], "baseline")
    clock.lap("baseline")
    if not measure.marks:
        raise Outage(
            "baseline: no selection task has a score, so no candidate could be compared. Look at the failed rollouts, "
            "fix the cause and resume"
        )
    held = replace(state.initial, measure=measure)
    spent = run.journal.sum_costs()
    state = replace(state, initial=held, current=held, best=held, spent=add_costs(state.spent, spent))
    return Baseline(measure=measure, spent=spent, seconds=clock.seconds, state=state)


class StageResults(NamedTuple):
    """What the six stages of a step made."""

    rollouts: Sequence[Sequence[Rollout]]
    """Those of each batch."""
    reports: tuple[BatchReport, ...]
    reflections: Sequence[Reflection]
    items: Sequence[Item]
    """The proposals after merging."""
    budget: BudgetDecision | None
    chosen: Sequence[int]
    """The places of the items that were applied."""
    made: Update
    judged: Judgement

    @property
    def action(self) -> str:
        """What the step did, in a word."""
        verdict = self.judged.verdict
        return verdict.decision.value if verdict else _name_skip(self.items, self.chosen, self.made.fates)


async def take_step(run: TrainingRun, state: RunState, place: int, batches: Sequence[TrainBatch]) -> Step:
    """Run the six stages, and make the record of the step."""
    number = state.step + 1
    clock = Clock(run.journal, state.epoch, number)
    view = run.make_view(state, number, place)
    done = await run_stages(run, state, view, batches, clock)
    made, judged = done.made, done.judged
    after, consolidated = await note_lapses(view, judged.state, number, done.reflections, run.guard)
    clock.lap("appendix")

    spent = run.journal.sum_costs()
    return Step(
        number=number,
        epoch=state.epoch,
        place=place,
        batches=done.reports,
        reflections=tuple(done.reflections),
        budget=done.budget,
        fates=(*made.fates, *list_not_selected(done.items, done.chosen)),
        changes=made.changes,
        candidate=made.candidate,
        measure=judged.measure,
        verdict=judged.verdict,
        action=done.action,
        notes_added=len(set(read_notes(after.current.skill)) - set(read_notes(judged.state.current.skill))),
        notes=len(read_notes(after.current.skill)),
        consolidated=consolidated,
        events=run.journal.list_events(),
        warnings=run.journal.list_warnings(),
        spent=spent,
        seconds=clock.seconds,
        state=replace(_note_step(run.settings, after, number, done), spent=add_costs(state.spent, spent)),
    )


async def run_stages(
    run: TrainingRun, state: RunState, view: View, batches: Sequence[TrainBatch], clock: Clock
) -> StageResults:
    """The six stages."""
    # 1 rollout and 2 reflect, side by side
    rollouts, reflections = await roll_and_reflect(run, view, batches, clock)
    reports = tuple(BatchReport.from_rollouts(batch.seed, part) for batch, part in zip(batches, rollouts, strict=True))

    # 3 aggregate
    merged = await run.proposer.aggregate(view, reflections)
    items = check_result(run.proposer, "aggregate", merged, Item, "items (Edit, Suggestion or Document)")
    clock.lap("aggregate")

    # 4 select
    budget = await decide_budget(view, items, reports, state.selections + 1, count_steps(run)) if items else None
    chosen = await choose_items(run.proposer, view, items, budget)
    clock.lap("select")

    # 5 update
    made = await update(view, [items[place] for place in chosen], run.guard) if chosen else NO_UPDATE
    made = await refuse_scripts(view, made, run.runner.runner)
    clock.lap("update")

    # 6 evaluate
    number = state.step + 1
    judged = await evaluate(run, state, made.candidate, f"step_{number:04d}", number, run.settings.gate)
    clock.lap("evaluate")
    return StageResults(rollouts, reports, reflections, items, budget, chosen, made, judged)


def _note_step(settings: TrainSettings, state: RunState, number: int, done: StageResults) -> RunState:
    """The state after a step, with what later steps must know of it."""
    digests = state.buffer
    if done.judged.verdict is not None:
        every = [rollout for part in done.rollouts for rollout in part]
        verdict, fates = done.judged.verdict, done.made.fates
        digests += (buffer.make_digest(number, verdict, every, done.reflections, fates, settings.success_at),)
    current, best = compute_score(settings.gate, state.current), compute_score(settings.gate, state.best)
    scheduled = done.budget is not None and done.budget.control == "scheduled"
    return replace(
        state,
        step=number,
        selections=state.selections + scheduled,
        history=(*state.history, HistoryLine(number, state.epoch, done.action, current, best)),
        buffer=digests,
    )


def count_steps(run: TrainingRun) -> int:
    settings = run.settings
    return settings.epoch_count * count_epoch_steps(len(run.splits.train), settings.batch_size, settings.accumulation)


def _name_skip(items: Sequence[object], chosen: Sequence[int], fates: Sequence[Fate]) -> str:
    if not items:
        return "skip_no_updates"
    if any(fate.status in REFUSED_STATUSES for fate in fates):
        return "skip_refused"
    return "skip_no_rewrite" if chosen else "skip_none_selected"


async def end_epoch(run: TrainingRun, state: RunState) -> EpochEnd:
    """Write the slow update and the optimizer memory, both from one comparison."""
    clock = Clock(run.journal, state.epoch, state.step)
    settings = run.settings
    pairs: list[Pair] = []
    if (settings.slow.enabled or settings.memory) and state.previous is not None:
        pairs = await compare_skills(run.runner, run.make_view(state, state.step), state.previous, run.splits.train)
    clock.lap("compare")

    guidance, memory = await _write_lessons(run, state, pairs)
    clock.lap("write")

    nothing = "skip_first_epoch" if state.previous is None else "no_content" if pairs else "no_pairs"
    after, slow = state, SlowReport(action=nothing if settings.slow.enabled else "off")
    if guidance is not None:
        after, slow = await apply_guidance(run, state, guidance)
    clock.lap("evaluate")

    spent = run.journal.sum_costs()
    return EpochEnd(
        epoch=state.epoch,
        slow=replace(
            slow,
            categories=count_categories(pairs),
            previous_hard=compute_pass_rate([pair.previous for pair in pairs]),
            current_hard=compute_pass_rate([pair.current for pair in pairs]),
        ),
        memory=memory or state.memory,
        memory_action=("write" if memory else nothing) if settings.memory else "off",
        events=run.journal.list_events(),
        warnings=run.journal.list_warnings(),
        spent=spent,
        seconds=clock.seconds,
        state=replace(
            after, previous=after.current.skill, memory=memory or state.memory, spent=add_costs(state.spent, spent)
        ),
    )


async def _write_lessons(run: TrainingRun, state: RunState, pairs: Sequence[Pair]) -> tuple[SlowReply | None, str]:
    """Write guidance for the agent and memory for the optimizer from the comparison."""
    if state.previous is None or not pairs:
        return None, ""
    view = run.make_view(state, state.step)
    async with open_task_group() as group:
        asked = group.create_task(write_guidance(view, state.previous, pairs)) if run.settings.slow.enabled else None
        recalled = group.create_task(write_memory(view, state.previous, pairs)) if run.settings.memory else None
    guidance = asked.result() if asked else None
    memory = recalled.result() if recalled else ""
    return (
        None if isinstance(guidance, UnusableReply) else guidance,
        "" if isinstance(memory, UnusableReply) else memory,
    )


async def finish(run: TrainingRun, state: RunState, ended_early: str = "") -> Summary:
    """Choose the skill to ship, and test it beside the initial skill and the final one."""
    clock = Clock(run.journal, state.epoch, state.step)
    gate = find_gate(run.settings.gate, state)
    state, shipment = await choose_shipment(run, state, gate)
    canaries = await watch_canaries(run, state.initial.skill, take_shipped(state, shipment).skill)
    forged = canaries is not None and canaries.suspicious
    kept = explain_kept(shipment, forged)
    if forged:
        shipment = replace(shipment, shipped="")
    shipped = take_shipped(state, shipment)
    clock.lap("ship")

    finished = FinishedSkills(state.initial.skill, shipped.skill, state.current.skill)
    tested = await run_test(run, finished) if run.settings.test else {}
    claim = make_claim(
        shipped.skill,
        compare_tests(gate, finished, tested),
        kept=kept,
        split=run.splits.test.digest if tested else "",
        uses=count_test_uses(run, shipped.skill) if tested else 0,
        metric=gate.metric,
        passed=compare_passed(gate, finished, tested),
    )
    clock.lap("test")

    epochs = make_epoch_stats(state.history)
    spent = add_costs(state.spent, run.journal.sum_costs())
    best_so_far = state.best
    state = replace(
        state,
        initial=use_fresh_measure(state.initial, shipment),
        best=shipped,
        current=use_fresh_measure(state.current, shipment),
        spent=spent,
    )
    initial, best, final, best_on_selection = (
        make_product(gate, held, *describe_test(run.settings, tested, held.skill))
        for held in (state.initial, state.best, state.current, best_so_far)
    )
    return Summary(
        steps=state.step,
        accepted=sum(epoch.accepted for epoch in epochs),
        rejected=sum(epoch.rejected for epoch in epochs),
        undecided=sum(epoch.undecided for epoch in epochs),
        skipped=sum(epoch.skipped for epoch in epochs),
        epochs=epochs,
        promoted=state.best.skill != best_so_far.skill,
        ended_early=ended_early,
        claim=claim,
        shipment=shipment,
        canaries=canaries,
        sizes=run.sizes,
        initial=initial,
        best=best,
        final=final,
        best_on_selection=best_on_selection if run.settings.recipe == "reflact" else None,
        events=run.journal.list_events(),
        spent=spent,
        seconds=clock.seconds,
        state=state,
    )


async def choose_shipment(run: TrainingRun, state: RunState, gate: Gate) -> tuple[RunState, Shipment]:
    """Choose the skill to ship by the run's rule. Returns the state too: the rule `best` measures the final skill, and
    it can become the best one."""
    if run.settings.shipping.rule == "certain":
        candidates, allowance = list_ship_candidates(run, state), count_allowance(run, state)
        return state, await ship(run, state.initial.skill, candidates, gate, allowance)
    rollouts = 0
    if state.current.measure is None:
        (measure,) = await measure_on_selection(run, [state.current.skill], "ship")
        rollouts = len(run.selection) * run.settings.selection_replicates
        state = set_measure(state, measure, gate)
    return state, ship_best(gate, state.initial, state.best, rollouts)


def describe_test(
    settings: TrainSettings, tested: Mapping[Skill, TestResult], skill: Skill
) -> tuple[SplitScores | None, str]:
    """The test result of a skill, or why it has none."""
    if skill in tested:
        return tested[skill].scores, ""
    if not settings.test:
        return None, "train.test is false"
    return None, "it is not the skill that is shipped; measure it with `ludus evaluate --agent.skill FILE`"


def list_ship_candidates(run: TrainingRun, state: RunState) -> list[MeasuredSkill]:
    """The few skills that are measured afresh."""
    return list_candidates(run, state) if run.settings.recipe == "ledger" else [state.best, state.current]


def count_allowance(run: TrainingRun, state: RunState) -> int | None:
    """The most rollouts for shipping; None if nothing limits them."""
    if run.settings.recipe == "ledger":
        total = plan_run(run).total
        return None if total is None else total - count_rollouts(state.spent)
    return None if run.rollouts is None else run.rollouts - run.test_rollouts - count_rollouts(state.spent)


def take_shipped(state: RunState, shipment: Shipment) -> MeasuredSkill:
    """The skill that is shipped, with its fresh measure."""
    for each in shipment.candidates:
        if each.skill.hash == shipment.shipped:
            return MeasuredSkill(each.skill, each.origin, each.step, each.measure)
    return use_fresh_measure(state.initial, shipment)


def use_fresh_measure(held: MeasuredSkill, shipment: Shipment) -> MeasuredSkill:
    """The skill with the measure that was made for shipping, if there is one: it was not chosen for it."""
    measures = [shipment.initial, *(each.measure for each in shipment.candidates)]
    fresh = next((measure for measure in measures if measure.skill == held.skill.hash and measure.marks), None)
    return held if fresh is None else replace(held, measure=fresh)


def compare_passed(gate: Gate, finished: FinishedSkills, tested: Mapping[Skill, TestResult]) -> float | None:
    """The difference in passed tasks on the test split, if the metric is another one."""
    found = None if gate.metric == "hard" else compare_tests(replace(gate, metric="hard"), finished, tested)
    return found.difference if found else None


def compare_tests(gate: Gate, finished: FinishedSkills, tested: Mapping[Skill, TestResult]) -> PairedStats | None:
    """The paired difference of the shipped skill and the initial one on the test split, by the gate's metric."""
    if finished.best == finished.initial or finished.best not in tested:
        return None
    differences = pair_marks(gate, tested[finished.best].measure, tested[finished.initial].measure)
    return compare_pairs(differences, compute_claim_interval)
