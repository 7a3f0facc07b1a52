"""Train rules for the embedded model: does a skill of rules help a real model, and does training find the right ones?

    $ python bench/rules.py            one seed of each recipe (about 10 minutes on two idle cores)
    $ python bench/rules.py --seeds 3

Rollouts are real: the 135M-parameter model answers where things of a house are stored, such as "Where are the red coats
stored?". It cannot know that, and no example of another question tells it. A line such as "Coats are stored in the
cellar." does, but each further line confuses it, and wrong lines mislead it.

The optimizer is a function, because the model is too small for that: it reads the failed rollouts and their references.
Three in ten of the lines that it writes name a wrong place, and two in ten say nothing. So training has to find out
which lines help. Both recipes get the same number of rollouts. Beside them: the initial skill, which has no rules, and
all right lines at once.
"""

import argparse
import asyncio
import json
import re
import sys
from collections.abc import Iterable, Sequence
from random import Random
from typing import ClassVar

from common import Check, describe_machine, print_verdict, render_table

from ludus.config.secrets import find_weights_folder
from ludus.engine import run_many
from ludus.env import Env
from ludus.models.embedded import EmbeddedModel, EmbeddedRuntime
from ludus.models.scripted import ScriptedModel
from ludus.models.settings import EmbeddedSettings
from ludus.policy import Policy
from ludus.reflact.records import Summary
from ludus.reflact.splits import Splits
from ludus.reflact.train_settings import Recipe, SlowUpdate, TrainSettings
from ludus.reflact.trainer import train
from ludus.reflact.training_run import Resources
from ludus.runner import Job, Runner, RunOptions
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.skill import Skill
from ludus.types import Message, Rollout, Sampling, Score, Task, ToolSpec

PLACES = {"coats": "cellar", "tools": "garage", "plates": "kitchen", "shoes": "hallway"}
LOOKS = (
    "old", "red", "blue", "small", "heavy", "new", "wet", "cheap", "green", "broken", "white", "black", "clean",
    "large", "dirty", "yellow", "good", "grey", "light", "brown", "fine", "plain", "short", "long",
)  # fmt: skip
SKILL = "You know this house.\n"
SPLITS = {"train": slice(0, 6), "selection": slice(6, 12), "test": slice(12, 24)}
BUDGET = 240
"""The rollouts of a run, without the test."""
MIN_GAIN = 0.2
RECIPES: tuple[Recipe, ...] = ("ledger", "reflact")

_SEEN = re.compile(r"Task: Where are the \w+ (\w+) stored\?.*?(?=\n###|\Z)", re.DOTALL)
_SAID = re.compile(r"\[agent\] ([^\n]*)")
_LISTED = re.compile(r"^(L\d+) \[[^\n]*: (\w+) are stored in the (\w+)\.$", re.MULTILINE)
_PROPOSAL = re.compile(r"^\[(\d+)\][^\n]*\nop: append\ncontent: ([^\n]*)", re.MULTILINE)


class HouseRules(Env, frozen=True):
    """Questions about the places of things. An answer is right if it names the right place and no other."""

    name: ClassVar[str] = "house-rules"
    sandbox: ClassVar[SandboxSpec | None] = None

    def tasks(self, split: str) -> Iterable[Task]:
        return [
            Task(id=f"{thing}-{look}", prompt=f"Where are the {look} {thing} stored?", answer=place, split=split)
            for look in LOOKS[SPLITS[split]]
            for thing, place in PLACES.items()
        ]

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        named = {place for place in PLACES.values() if place in rollout.answer.lower()}
        return Score.of(float(named == {rollout.task.answer}))


def write_line(thing: str, rng: Random) -> str:
    """A line about a thing: right, wrong or empty."""
    kind = rng.choices(("right", "wrong", "empty"), (5, 3, 2))[0]
    if kind == "empty":
        return rng.choice(("Answer politely.", "Think before you answer.", "Look at the question with care."))
    wrong = [place for place in PLACES.values() if place != PLACES[thing]]
    return f"{thing.capitalize()} are stored in the {PLACES[thing] if kind == 'right' else rng.choice(wrong)}."


def optimize(messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> str:
    """The optimizer of both recipes."""
    user = messages[1].content
    rng = Random(f"{sampling.seed}")
    if sampling.stage.startswith("merge"):
        found = {content: int(number) for number, content in _PROPOSAL.findall(user)}
        items = [{"item": {"op": "append", "content": c}, "made_of": [n]} for c, n in found.items()]
        return json.dumps({"items": items})
    if sampling.stage == "rank":
        return json.dumps({"selected": [int(number) for number, _ in _PROPOSAL.findall(user)]})
    if sampling.stage == "analyst_success":
        return json.dumps({"items": []})
    rollouts = [(match[1], " ".join(_SAID.findall(match[0])).lower()) for match in _SEEN.finditer(user)]
    things = list(dict.fromkeys(thing for thing, _ in rollouts))
    lines = {thing: write_line(thing, rng) for thing in things}
    if sampling.stage == "analyst_failure":
        return json.dumps({"items": [{"op": "append", "content": line} for line in lines.values()]})
    listed = [(id, about.lower(), place) for id, about, place in _LISTED.findall(user)]
    listed = [(id, about, place) for id, about, place in listed if PLACES.get(about) != place]
    causes = [
        {
            "rollout": number,
            "situations": [thing],
            "suspects": [id for id, about, place in listed if about == thing and place in said],
        }
        for number, (thing, said) in enumerate(rollouts, 1)
    ]
    items = [
        {
            "situation": thing,
            "content": line,
            "rollouts": [number for number, (about, _) in enumerate(rollouts, 1) if about == thing],
        }
        for thing, line in lines.items()
    ]
    return json.dumps({"rollouts": causes, "items": items})


def make_policy(text: str, model: EmbeddedModel) -> Policy:
    return Policy(model, Skill(text), sampling=Sampling(temperature=0.3, max_tokens=16))


async def run_recipe(recipe: Recipe, seed: int, model: EmbeddedModel) -> Summary:
    env = HouseRules()
    splits = Splits.from_tasks(*(env.tasks(split) for split in SPLITS))
    test = 2 * len(splits.test)
    settings = TrainSettings(
        recipe=recipe, epochs=20, batch_size=8, seed=seed, slow=SlowUpdate(enabled=False), memory=False
    )
    records = [
        record
        async for record in train(
            Runner(env, options=RunOptions(concurrency=4)),
            make_policy(SKILL, model),
            splits,
            settings,
            optimizer=ScriptedModel(optimize, "writer"),
            resources=Resources(optimizer_concurrency=4, rollouts=BUDGET + test),
        )
    ]
    summary = records[-1]
    assert isinstance(summary, Summary)
    return summary


async def measure(text: str, model: EmbeddedModel) -> float:
    """The share of test tasks that the model solves with a text."""
    env, rollouts = HouseRules(), list[Rollout]()
    jobs = [Job(task, make_policy(text, model), 0, number) for number, task in enumerate(env.tasks("test"))]
    runner = Runner(env, options=RunOptions(concurrency=4))
    await run_many(jobs, runner, lambda _, rollout: rollouts.append(rollout))
    return sum(bool(rollout.score and rollout.score.passed) for rollout in rollouts) / len(rollouts)


async def run_all(seeds: int) -> tuple[float, list[tuple[object, ...]], list[float]]:
    """The accuracy of all right lines, a row for each run, and the gains of the ledger."""
    model = EmbeddedModel(EmbeddedSettings(), EmbeddedRuntime(cache=find_weights_folder()), lambda _: None)
    rows: list[tuple[object, ...]] = []
    gains: list[float] = []
    try:
        right = [f"{thing.capitalize()} are stored in the {place}." for thing, place in PLACES.items()]
        ceiling = await measure(SKILL + "".join(f"\n{line}\n" for line in right), model)
        for seed in range(seeds):
            for recipe in RECIPES:
                summary = await run_recipe(recipe, seed, model)
                tests = [product.test.overall.hard or 0.0 if product.test else 0.0 for product in
                         (summary.initial, summary.best)]  # fmt: skip
                lines = [line for line in summary.best.skill.text.splitlines() if line.strip() and line not in SKILL]
                good = sum(line in right for line in lines)
                claim = summary.claim.sentence if summary.claim else ""
                rows.append((seed, recipe, f"{tests[0]:.0%}", f"{tests[1]:.0%}", len(lines), good, claim))
                print(*rows[-1], sep=" | ", file=sys.stderr)
                if recipe == "ledger":
                    gains.append(tests[1] - tests[0])
    finally:
        await model.close()
    return ceiling, rows, gains


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=1, help="runs of each recipe (default 1)")
    arguments = parser.parse_args()
    ceiling, rows, gains = asyncio.run(run_all(arguments.seeds))
    print(f"Rules for the embedded model, {BUDGET} rollouts, on {describe_machine()}\n")
    print(render_table([("seed", "recipe", "initial", "shipped", "lines", "right lines", "claim"), *rows]))
    print(f"\nAll right lines at once: {ceiling:.0%}\n")
    return print_verdict("rules", [Check("gain of the ledger", sum(gains) / len(gains), MIN_GAIN, at_least=True)])


if __name__ == "__main__":
    sys.exit(main())
