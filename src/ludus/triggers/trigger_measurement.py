"""The whole measurement of a catalogue, in its order.

    controls ──> training, if asked for ──> the catalogue as it was given ──> A/A ──> the trained one, and the claim

The made-up skill that must win and the one that must lose are run first: with an agent that does not tell them apart
nothing is trained, so nothing is paid for. Sealed queries are not run before training has ended.
"""

from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from msgspec.structs import replace

from ludus.catalogue import Catalogue
from ludus.envs.triggers import TriggerQuery
from ludus.reflact.optimizer import Optimizer
from ludus.trigger_settings import TriggerSettings
from ludus.triggers.catalogue_runs import CatalogueRuns, split_halves
from ludus.triggers.claims import TriggerOutcome, make_claim
from ludus.triggers.controls import judge_controls, make_controls
from ludus.triggers.description_training import DescriptionRound, train_descriptions
from ludus.triggers.trigger_stats import collect_results, make_report


@dataclass(frozen=True)
class TriggerPlan:
    """What is measured, and with what descriptions are trained."""

    catalogue: Catalogue
    measured: Sequence[TriggerQuery]
    """All queries; of a run that trains, the sealed ones."""
    train: Sequence[TriggerQuery]
    settings: TriggerSettings


async def measure_triggers(
    bench: CatalogueRuns,
    plan: TriggerPlan,
    optimizer: Optimizer | None = None,
    on_round: Callable[[DescriptionRound], None] = lambda _: None,
) -> TriggerOutcome:
    """Measure the catalogue. With an optimizer, its descriptions are trained first, and the result is claimed."""
    winner, loser = make_controls(plan.catalogue)
    (won,) = await bench.measure([winner.catalogue], winner.queries, "control")
    (lost,) = await bench.measure([loser.catalogue], loser.queries, "control")
    pair = collect_results(won), collect_results(lost)
    rounds: list[DescriptionRound] = []
    if optimizer is not None and judge_controls((), (), *pair).works:
        training = train_descriptions(bench, optimizer, plan.catalogue, plan.train, plan.settings)
        async with aclosing(training) as found:
            async for done in found:
                rounds.append(done)
                on_round(done)
    (rollouts,) = await bench.measure([plan.catalogue], plan.measured, "measure")
    first, second = (collect_results(half) for half in split_halves(rollouts))
    controls = judge_controls(first, second, *pair)
    results, names = collect_results(rollouts), plan.catalogue.names
    silent = len(rollouts) - sum(each.runs + each.failed for each in results)
    outcome = TriggerOutcome(controls=controls, report=make_report(results, names, failed=silent), rounds=tuple(rounds))
    if optimizer is None:
        return outcome
    trained = rounds[-1].catalogue if rounds else plan.catalogue
    is_new = trained != plan.catalogue
    found = await bench.measure_one(trained, plan.measured, "claim") if is_new else results
    claim = make_claim(controls, found, results, names)
    return replace(outcome, claim=claim, trained=trained if is_new else None)
