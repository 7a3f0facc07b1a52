"""GEPA 0.1.4 on the worlds of catalogues: `gepa.optimize_anything`, with the descriptions as named parameters.

Reads jobs as JSON lines from stdin and writes the descriptions that GEPA chose. The evaluator is one rollout of one
query. The reflection model is the simulated optimizer of the world: it is told which skill it writes for, by a prompt
template for each parameter, and reads requests that went wrong out of the side information. Variants: `default`
(minibatches of 3, Pareto), `tuned` (minibatches of 24, the best candidate). Nothing is patched.
"""

import contextlib
import io
import json
import random
import sys
from collections.abc import Sequence
from typing import Any

from gepa.optimize_anything import EngineConfig, GEPAConfig, ReflectionConfig, optimize_anything
from trigger_world import CatalogueSetting, CatalogueWorld

TEMPLATE = (
    "The description of the skill {name} is:\n```\n<curr_param>\n```\n\nRequests:\n```\n<side_info>\n```\nImprove it."
)


class Evaluator:
    """Runs one query with a catalogue. Every rollout has a seed of its own."""

    def __init__(self, world: CatalogueWorld) -> None:
        self.world = world
        self.count = 0

    def __call__(self, candidate: dict[str, str], example: dict[str, str]) -> tuple[float, dict[str, Any]]:
        self.count += 1
        loaded = self.world.choose(example["query"], candidate, f"gepa/{self.count}")
        facts = {"request": example["query"], "right": example["skill"], "loaded": loaded}
        return float(loaded == example["skill"]), {"case": json.dumps(facts)}


def reflect(world: CatalogueWorld, prompt: Any) -> str:
    """The reply of the world's optimizer to GEPA's prompt."""
    text = prompt if isinstance(prompt, str) else str(prompt[-1]["content"])
    name = text.split("The description of the skill ")[1].split(" is:")[0]
    description = text.split("```\n")[1].split("\n```")[0]
    cases = [json.loads(part[: part.index("}") + 1]) for part in _list_cases(text)]
    missed = [case["request"] for case in cases if case["right"] == name and case["loaded"] != name]
    taken = [case["request"] for case in cases if case["right"] != name and case["loaded"] == name]
    asked = (
        f"Its description now:\n\n{description}\n\n# for which it was not loaded\n{_list(missed)}\n"
        f"# for which it was loaded\n{_list(taken)}\n# end"
    )
    return f"```\n{json.loads(world.propose(asked))['descriptions'][0]}\n```"


def _list_cases(text: str) -> list[str]:
    return ['{"request"' + part for part in text.split('{"request"')[1:]]


def _list(requests: Sequence[str]) -> str:
    return "\n".join(f"- {request}" for request in requests)


def run(job: dict[str, Any]) -> dict[str, Any]:
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in job["setting"].items()}
    world = CatalogueWorld(CatalogueSetting(**values), job["seed"])
    train = [row for row in world.queries if row["id"] in set(job["train"])]
    random.Random(job["seed"]).shuffle(train)
    evaluator, tuned = Evaluator(world), job["variant"] == "tuned"
    config = GEPAConfig(
        engine=EngineConfig(
            max_metric_calls=job["rollouts"],
            seed=job["seed"],
            parallel=False,
            candidate_selection_strategy="current_best" if tuned else "pareto",
        ),
        reflection=ReflectionConfig(
            reflection_lm=lambda prompt: reflect(world, prompt),
            reflection_minibatch_size=24 if tuned else None,
            reflection_prompt_template={name: TEMPLATE.replace("{name}", name) for name in world.names},
        ),
    )
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        result = optimize_anything(dict(world.initial), evaluator=evaluator, dataset=train, config=config)
    best = result.best_candidate
    return {"descriptions": {name: best[name] for name in world.names}, "rollouts": evaluator.count}


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)
