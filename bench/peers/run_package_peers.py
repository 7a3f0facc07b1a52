"""GEPA 0.1.4 and SkillOpt 0.2.0 on the package worlds, through their public interfaces. Nothing is patched.

GEPA: `optimize_anything` over one text, the package with a line before each file, and the place of each proposal as
Ludus's optimizer chooses it; minibatches of 12 and the best candidate, which is its best known setting on such worlds.
SkillOpt: the skill as one document, with the settings `tuned` of `run_skillopt_worlds.py`: it has no packages.
"""

import contextlib
import io
from collections import Counter
from functools import partial
from typing import Any

import package_worlds as pw
import rule_world as rw


def run_gepa(world: pw.PackageWorld) -> dict[str, object]:
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
        placed = [world.place(each, skill, traces, rng) for each in world.propose(skill, traces, 8, rng)]
        return f"```\n{pw.apply_placed(skill, placed)}\n```"

    config = GEPAConfig(
        engine=EngineConfig(
            seed=world.seed,
            max_metric_calls=pw.BUDGET + 200,
            parallel=False,
            candidate_selection_strategy="current_best",
        ),
        reflection=ReflectionConfig(reflection_minibatch_size=12, reflection_lm=reflect),
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


def run_skillopt(world: pw.PackageWorld) -> dict[str, object]:
    import run_skillopt_worlds as driver

    meter = driver.rw.Meter
    driver.rw.Meter = partial(meter, budget=pw.BUDGET)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        found = driver.run(world, "tuned")
    finally:
        driver.rw.Meter = meter
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
    return run_gepa(world) if variant == "GEPA" else run_skillopt(world)


if __name__ == "__main__":
    pw.serve(run)
