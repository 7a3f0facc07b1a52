"""GEPA 0.1.4 on the rule worlds: `gepa.optimize` with an adapter, a reflection model and callbacks. Nothing is patched.

Variants: `default` (minibatches of 3, Pareto), `tuned` (minibatches of 12, the best candidate, up to 8 changes).
"""

import contextlib
from collections import Counter
from typing import Any

import gepa
import rule_world as rw
from gepa.core.adapter import EvaluationBatch


class Adapter:
    """Runs the agent, and shows its traces to the reflection model."""

    propose_new_texts = None

    def __init__(self, meter: rw.Meter) -> None:
        self.meter = meter

    def evaluate(self, batch: list[rw.Item], candidate: dict[str, str], capture_traces: bool = False) -> Any:
        traces = [self.meter.buy(candidate["skill"], item) for item in batch]
        scores = [float(trace.endswith("right")) for trace in traces]
        return EvaluationBatch(outputs=traces, scores=scores, trajectories=traces if capture_traces else None)

    def make_reflective_dataset(self, candidate: dict[str, str], batch: Any, components: list[str]) -> Any:
        return {"skill": [{"Trace": trace} for trace in batch.trajectories]}


class Watch:
    """Notes the best candidate and the decisions on minibatches."""

    def __init__(self, meter: rw.Meter) -> None:
        self.meter = meter
        self.first: float | None = None
        self.best = (0.0, meter.world.skill)
        self.parent = self.child = meter.world.skill

    def on_valset_evaluated(self, event: Any) -> None:
        score, text = event["average_score"], event["candidate"]["skill"]
        if self.first is None:
            self.first, self.best = score, (score, text)
        elif score > self.best[0]:
            self.best = (score, text)
        self.meter.deploy(self.best[1])

    def on_proposal_start(self, event: Any) -> None:
        self.parent = event["parent_candidate"]["skill"]

    def on_proposal_end(self, event: Any) -> None:
        self.child = event["new_instructions"]["skill"]

    def on_candidate_accepted(self, event: Any) -> None:
        self.meter.decide(self.child, self.parent, True)

    def on_candidate_rejected(self, event: Any) -> None:
        self.meter.decide(self.child, self.parent, False)


class Silent:
    def log(self, message: str) -> None:
        """Say nothing."""


def run(world: rw.World, variant: str) -> dict[str, object]:
    meter = rw.Meter(world)
    watch = Watch(meter)
    tuned = variant == "tuned"
    asked: Counter[str] = Counter()

    def reflect(prompt: Any) -> str:
        prompt = str(prompt)
        asked[prompt] += 1
        skill, traces = prompt.split("```\n")[1].rstrip("`"), rw.read_traces(prompt)
        rng = rw.make_random(world.key, "optimizer", prompt, asked[prompt])
        proposals = world.propose(skill, traces, 8 if tuned else 4, rng)
        return f"```\n{rw.apply_proposals(skill, proposals)}\n```"

    with contextlib.suppress(rw.BudgetSpent):
        gepa.optimize(
            seed_candidate={"skill": world.skill},
            trainset=list(world.items["train"]),
            valset=list(world.items["selection"]),
            adapter=Adapter(meter),
            reflection_lm=reflect,
            candidate_selection_strategy="current_best" if tuned else "pareto",
            reflection_minibatch_size=12 if tuned else None,
            max_metric_calls=rw.BUDGET + 200,
            callbacks=[watch],
            logger=Silent(),
            seed=world.seed,
        )
    return meter.report(watch.best[1], watch.best[0] - (watch.first or 0.0), calls=sum(asked.values()))


if __name__ == "__main__":
    rw.serve(run)
