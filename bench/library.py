"""Verdicts on the skills of a library, in worlds whose truth is known.

    python bench/library.py                 # held-out worlds, 20 seeds
    python bench/library.py --worlds 4      # a look, no targets
    python bench/library.py --development   # the worlds on which constants may be chosen

Each world has eleven skills: helpful, useless and harmful ones, two that do the same work, and two that no task needs.
Everything is run by `ludus.library` with a simulated agent that chooses among descriptions and loads with the tool.
Targets: at least 90 % of the verdicts are right, at least 90 % of the 95 % intervals cover the truth, and at least 95 %
of the useless skills are not called useful. "Not enough evidence" counts as not right.
"""

import argparse
import asyncio
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import ClassVar

from common import Check, describe_machine, print_verdict, render_table
from peers.library_world import LibrarySetting, LibraryWorld, WorldTask

from ludus.env import Env
from ludus.library.library_runs import LibraryRuns
from ludus.library.measurement import LibraryMeasurement, LibraryReport
from ludus.library_settings import LibrarySettings
from ludus.models.scripted import ScriptedModel, call, say
from ludus.policy import Policy
from ludus.runner import Runner, RunOptions
from ludus.sandbox import SandboxSpec
from ludus.skill import Skill
from ludus.skill_library import make_library, make_package
from ludus.types import Message, Rollout, Score, Task

SETTINGS = LibrarySettings(least=0.1)
RUNS = 8
"""Rollouts of each task."""
EXPECTED = {
    "helpful": {"helps"},
    "useless": {"below its price"},
    "harmful": {"hurts"},
    "duplicate": {"duplicate"},
    "unused": {"never loads"},
}


class LibraryTasks(Env, frozen=True):
    """The tasks of a world."""

    name: ClassVar[str] = "library-world"
    sandbox: ClassVar[SandboxSpec | None] = None

    async def verify(self, rollout: Rollout, box: object) -> Score:
        return Score.of(float(rollout.answer == "right"))


def make_agent(world: LibraryWorld, tasks: dict[str, WorldTask]) -> ScriptedModel:
    """An agent that chooses among the descriptions in its instructions, and does what it has read."""

    def act(messages: Sequence[Message], tools: object, sampling: object) -> Message:
        task = tasks[next(m.content for m in messages if m.role == "user").removeprefix("Task ")]
        run = (getattr(sampling, "seed", 0) or 0) - 1_000_003 * (1 + any(m.role == "assistant" for m in messages))
        run %= 2**31
        if not any(message.role == "assistant" for message in messages):
            system = next((m.content for m in messages if m.role == "system"), "")
            lines = (line[2:].partition(": ") for line in system.splitlines() if line.startswith("- "))
            name = world.choose(task.kind, {name: text for name, _, text in lines}, run)
            if name:
                return call("load_skill", name=name)
        read = "".join(message.content for message in messages if message.role == "tool")
        return say("right" if world.passes(task, read, run) else "wrong")

    return ScriptedModel(act)


def measure_world(world: LibraryWorld) -> LibraryReport:
    """Measure the library of a world as `ludus library` does."""
    tasks = {task.id: task for task in world.list_tasks(world.setting.tasks)}
    library = make_library(make_package(Skill(text)) for text in world.documents.values())
    asked = [Task(id=task.id, prompt=f"Task {task.id}", kind=task.kind) for task in tasks.values()]
    runner = Runner(LibraryTasks(), None, options=RunOptions(concurrency=8))
    policy = Policy(make_agent(world, tasks), library=library)
    by_id = {task.id: task for task in asked}
    runs = LibraryRuns(runner, policy, by_id, world.seed, None, lambda stage, done, total: None)
    return asyncio.run(LibraryMeasurement(runs, library, asked, RUNS, SETTINGS, {}).measure("skills"))


def count_verdicts(world: LibraryWorld, report: LibraryReport, counts: Counter[tuple[str, str]]) -> list[bool]:
    """Count the verdicts by role, and return whether each interval covers the truth."""
    covered: list[bool] = []
    for skill in report.skills:
        counts[world.truth[skill.name], skill.verdict] += 1
        truth = world.measure_truth([skill.name])
        if skill.worth is not None and skill.worth.interval is not None and truth is not None:
            covered.append(skill.worth.interval.low <= truth <= skill.worth.interval.high)
    for group in report.groups:
        truth = world.measure_truth(group.skills)
        if group.worth is not None and group.worth.interval is not None and truth is not None:
            covered.append(group.worth.interval.low <= truth <= group.worth.interval.high)
    return covered


def list_rows(counts: Counter[tuple[str, str]]) -> Iterator[tuple[object, ...]]:
    verdicts = sorted({verdict for _, verdict in counts})
    yield ("skill is", *verdicts, "right %")
    for role, right in EXPECTED.items():
        total = sum(count for (each, _), count in counts.items() if each == role)
        good = sum(counts[role, verdict] for verdict in right)
        yield (role, *(counts[role, verdict] for verdict in verdicts), 100 * good / max(1, total))


def run() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, default=20, help="how many worlds (default 20)")
    parser.add_argument("--development", action="store_true", help="other worlds; no targets")
    options = parser.parse_args()
    first = 1000 if options.development else 0
    counts, covered, gains, rollouts = Counter[tuple[str, str]](), list[bool](), list[float](), 0
    started = time.process_time()
    for seed in range(first, first + options.worlds):
        world = LibraryWorld(LibrarySetting("development" if options.development else "held out"), seed)
        report = measure_world(world)
        covered += count_verdicts(world, report, counts)
        rollouts += report.rollouts
        print(f"world {seed - first + 1} of {options.worlds}: {report.summary}", file=sys.stderr, flush=True)
        if report.proposed is not None and report.proposed.worth.difference is not None:
            gains.append(-report.proposed.worth.difference)
    spent = time.process_time() - started
    print(describe_machine())
    print(render_table(list(list_rows(counts))))
    total = sum(counts.values())
    right = sum(counts[role, verdict] for role, verdicts in EXPECTED.items() for verdict in verdicts)
    useless = sum(count for (role, _), count in counts.items() if role == "useless")
    open_ = sum(count for (_, verdict), count in counts.items() if verdict == "not enough evidence")
    targets = options.worlds >= 20 and not options.development
    notes = [
        f"{100 * open_ / total:.1f} % open",
        f"proposals {100 * sum(gains) / max(1, len(gains)):+.1f} points",
        f"{rollouts:,} rollouts",
        f"{spent:.0f} s CPU",
    ]
    checks = [
        Check("verdicts right", right / total, 0.9 if targets else None, at_least=True),
        Check("intervals cover", sum(covered) / len(covered), 0.9 if targets else None, at_least=True),
        Check("useless not called useful", 1 - counts["useless", "helps"] / useless, 0.95, at_least=True),
    ]
    return print_verdict("library", checks, notes=notes)


if __name__ == "__main__":
    raise SystemExit(run())
