"""GEPA 0.1.4 and SkillOpt 0.2.0 on the package worlds, through their public interfaces. Nothing is patched.

| variant | |
|---|---|
| `GEPA` | its defaults: minibatches of 3, Pareto, four changes; one document |
| `GEPA, tuned` | its best known: minibatches of 12, the best candidate, eight changes; one document |
| `GEPA, package` | that, with the package as one text; proposals go where Ludus's optimizer puts them |
| `SkillOpt`, `SkillOpt, tuned` | `default` and `tuned` of `run_skillopt_worlds.py`; one document: it has no packages |

GEPA is used through `optimize_anything`.
"""

import contextlib
import io
from collections import Counter
from functools import partial
from typing import Any

import package_worlds as pw
import rule_world as rw


def run_gepa(world: pw.PackageWorld, tuned: bool) -> dict[str, object]:
    from gepa.optimize_anything import EngineConfig, GEPAConfig, ReflectionConfig, optimize_anything
    from run_gepa import Watch

    meter = rw.Meter(world, pw.BUDGET)
    watch, asked = Watch(meter), Counter[str]()

    def evaluate(candidate: dict[str, str], example: rw.Item) -> tuple[float, dict[str, Any]]:
        trace = meter.buy(candidate["skill"], example)
        return float(trace.endswith("right")), {"Trace": trace}

    def reflect(prompt: Any) -> str:
        prompt = str(prompt)
        asked[prompt] += 1
        skill, traces = prompt.split("```\n")[1].rstrip("`"), rw.read_traces(prompt)
        rng = rw.make_random(world.key, "optimizer", prompt, asked[prompt])
        proposals = world.propose(skill, traces, 8 if tuned else 4, rng)
        placed = [world.place(each, skill, traces, rng) for each in proposals]
        return f"```\n{pw.apply_placed(skill, placed)}\n```"

    config = GEPAConfig(
        engine=EngineConfig(
            seed=world.seed,
            max_metric_calls=pw.BUDGET + 200,
            parallel=False,
            candidate_selection_strategy="current_best" if tuned else "pareto",
        ),
        reflection=ReflectionConfig(reflection_minibatch_size=12 if tuned else None, reflection_lm=reflect),
        callbacks=[watch],
    )
    with contextlib.suppress(rw.BudgetSpent), contextlib.redirect_stdout(io.StringIO()):
        optimize_anything(
            {"skill": world.skill},
            evaluator=evaluate,
            dataset=list(world.items["train"]),
            valset=list(world.items["selection"]),
            config=config,
        )
    return report(world, meter, watch.best[1], watch.best[0] - (watch.first or 0.0))


def run_skillopt(world: pw.PackageWorld, tuned: bool) -> dict[str, object]:
    import run_skillopt_worlds as driver

    meter, budget = driver.rw.Meter, driver.rw.BUDGET
    driver.rw.Meter = partial(meter, budget=pw.BUDGET)  # pyright: ignore[reportAttributeAccessIssue]
    driver.rw.BUDGET = pw.BUDGET  # its schedules end with the budget
    try:
        found = driver.run(world, "tuned" if tuned else "default")
    finally:
        driver.rw.Meter, driver.rw.BUDGET = meter, budget
    return {**found, "first_lines": len(rw.read_codes(world.skill)), "in_files": 0, "covers": None}


def report(world: pw.PackageWorld, meter: rw.Meter, text: str, claim: float) -> dict[str, object]:
    own = world.list_scripts(text)
    return meter.report(
        text,
        claim,
        covers=None,
        first_lines=len(rw.read_codes(world.skill)),
        in_files=sum(len(world.read_lines(body)) for path, body in world.split(text).items() if path),
        scripts={"shipped": len(own), "lies shipped": sum(each == "lies" for each in own.values())},
        shipped_text=text,
    )


def run(world: pw.PackageWorld, variant: str) -> dict[str, object]:
    system, _, setting = variant.partition(", ")
    return (run_gepa if system == "GEPA" else run_skillopt)(world, tuned=bool(setting))


if __name__ == "__main__":
    pw.serve(run)
