"""After the test: measure what the claim is compared with (`ludus.reflact.claim_arms`).

The summary of the run is stored before. So a budget that ends here costs no result, and arms can be added to a run that
is finished. Samples of the initial skill that the test has run are not run again.
"""

import dataclasses
import hashlib
from collections.abc import Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ludus.encoding import canonical, to_json
from ludus.errors import StoreError
from ludus.reflact.claim_arms import (
    describe_arms,
    make_best_of,
    make_transfer,
    name_gain,
    plan_samples,
    sum_training,
)
from ludus.reflact.gate import Gate
from ludus.reflact.journal import Clock
from ludus.reflact.measure import SkillRunner, Trial, make_measure
from ludus.reflact.records import (
    BestOfArm,
    ClaimArms,
    Summary,
    TransferArm,
    add_costs,
    find_gate,
    project_bucket,
)
from ludus.reflact.splits import FinishedSkills, derive_claim_seed
from ludus.reflact.training_run import ClaimPlan, TrainingRun, compute_part_key
from ludus.skill import Skill
from ludus.store import decode_record
from ludus.types import Rollout, Task

NOTHING_NEW = "The initial skill stays, so there is nothing to compare: no rollout was spent on it."
MEASURED = "claim_arms"
"""The kind of a record in the store that says where a summary with arms is."""
TOO_FEW = "The same rollouts as samples of the initial skill were not measured: claim.rollouts leaves too few of them."


class _MeasuredArms(Struct, frozen=True):
    """A summary with arms: its key, and the hash of the state that the arms belong to."""

    key: str
    state: str


_MEASURED_ARMS = msgspec.json.Decoder(_MeasuredArms)


async def add_arms(run: TrainingRun, summary: Summary, claim: ClaimPlan) -> Summary:
    """The summary with its arms: the stored one, or else they are measured."""
    key = _compute_key(run, summary, claim)
    found = await run.load_or_make(key, Summary, lambda: measure_arms(run, summary, claim))
    note = to_json(_MeasuredArms(key, _hash_state(run, summary)))
    run.store.put_record(hashlib.sha256(note).hexdigest()[:32], MEASURED, note)
    return found


async def find_arms(run: TrainingRun, summary: Summary) -> Summary | None:
    """The summary with the arms that an earlier process measured last, if there are any."""
    notes = [decode_record(_MEASURED_ARMS, body) for _, body in run.store.read_records(MEASURED)]
    keys = [note.key for note in notes if note.state == _hash_state(run, summary)]
    return await run.load_or_make(keys[-1], Summary, lambda: _refuse(keys[-1])) if keys else None


async def _refuse(key: str) -> Summary:
    raise StoreError(f"the store has lost the arms {key} of the claim: measure them again with --claim")


def _hash_state(run: TrainingRun, summary: Summary) -> str:
    """The content address of what the arms are compared with."""
    return compute_part_key(run.identity, Summary, summary.state)


def _compute_key(run: TrainingRun, summary: Summary, claim: ClaimPlan) -> str:
    """The content address of the summary with arms: what they are compared with, and what decides them."""
    model = run.runner.policy.use_model(claim.model).fingerprint if claim.model is not None else ""
    plan = (claim.best_of, claim.rollouts, claim.held_out, run.splits.held_out.digest, model)
    return hashlib.sha256(canonical((_hash_state(run, summary), plan))).hexdigest()[:32]


async def measure_arms(run: TrainingRun, summary: Summary, claim: ClaimPlan) -> Summary:
    """Measure the arms, and say what the claim is worth beside them."""
    clock = Clock(run.journal, summary.state.epoch, summary.state.step)
    gate = find_gate(run.settings.gate, summary.state)
    trained, tokens = sum_training(summary.spent)
    best_of: BestOfArm | None = None
    transfers: list[TransferArm] = []
    why = NOTHING_NEW
    finished = FinishedSkills(summary.initial.skill, summary.best.skill, summary.final.skill)
    if finished.best != finished.initial:
        transfers = await _measure_transfers(run, claim, finished, gate)
        best_of, why = await _sample_initial(run, claim, finished, trained, gate), TOO_FEW
    clock.lap("claim")
    shipped = project_bucket(gate, summary.best.test.overall) if summary.best.test else None
    arms = ClaimArms(
        sentence=describe_arms(best_of, transfers, trained, shipped, why, gate.metric),
        metric=gate.metric,
        training_rollouts=trained,
        training_tokens=tokens,
        best_of=best_of,
        transfers=tuple(transfers),
    )
    spent = add_costs(summary.spent, run.journal.sum_costs())
    return replace(
        summary,
        arms=arms,
        claim=name_gain(summary.claim, arms) if summary.claim else None,
        spent=spent,
        seconds={**summary.seconds, **clock.seconds},
        state=replace(summary.state, spent=spent),
    )


async def _sample_initial(
    run: TrainingRun, claim: ClaimPlan, finished: FinishedSkills, trained: int, gate: Gate
) -> BestOfArm | None:
    """The initial skill with several samples for each test task, beside the new skill with those of the test."""
    settings = run.settings
    tasks = run.splits.test.unseal(finished)[: settings.test_size or None]
    limit = claim.rollouts and max(0, claim.rollouts - claim.count_transfers(run.splits, settings))
    plan = plan_samples(trained, len(tasks), claim.best_of, limit)
    if plan is None:
        return None
    tasks = tasks[: plan.tasks]
    tested = [Trial(finished.best, task, settings.seed, r) for task in tasks for r in range(settings.test_replicates)]
    samples = [Trial(finished.initial, task, settings.seed, r) for task in tasks for r in range(plan.samples)]
    shipped = make_measure(finished.best, await run.runner.run_trials(tested, "test"))
    rollouts = await run.runner.run_trials(samples, "best_of")
    return make_best_of(plan, group_by_task(tasks, rollouts, plan.samples), shipped, gate)


def group_by_task(tasks: Sequence[Task], rollouts: Sequence[Rollout], each: int) -> dict[str, Sequence[Rollout]]:
    """The rollouts of each task, which are in the order of the tasks."""
    return {task.id: rollouts[place * each : (place + 1) * each] for place, task in enumerate(tasks)}


async def _measure_transfers(
    run: TrainingRun, claim: ClaimPlan, finished: FinishedSkills, gate: Gate
) -> list[TransferArm]:
    """Both skills on the tasks that are held out, and with the other model."""
    arms: list[TransferArm] = []
    if held_out := run.splits.held_out.unseal(finished):
        arms.append(await _compare(run, run.runner, finished, held_out, "held_out", claim.held_out, gate))
    if claim.model is not None:
        other = dataclasses.replace(run.runner, policy=run.runner.policy.use_model(claim.model))
        tasks = run.splits.test.unseal(finished)[: run.settings.test_size or None]
        arms.append(await _compare(run, other, finished, tasks, "other_model", claim.model.name, gate))
    return arms


async def _compare(
    run: TrainingRun,
    runner: SkillRunner,
    finished: FinishedSkills,
    tasks: Sequence[Task],
    stage: str,
    name: str,
    gate: Gate,
) -> TransferArm:
    """Run both skills on the tasks, with equal seeds."""
    seed, replicates = derive_claim_seed(run.settings.seed, stage), run.settings.test_replicates

    def list_trials(skill: Skill) -> list[Trial]:
        return [Trial(skill, task, seed, r) for task in tasks for r in range(replicates)]

    rollouts = await runner.run_trials([*list_trials(finished.initial), *list_trials(finished.best)], stage)
    half = len(rollouts) // 2
    initial, shipped = make_measure(finished.initial, rollouts[:half]), make_measure(finished.best, rollouts[half:])
    return make_transfer("model" if stage == "other_model" else "tasks", name, initial, shipped, rollouts, gate)
