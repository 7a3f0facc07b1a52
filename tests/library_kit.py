"""Small libraries, and a world for them: an agent that chooses among descriptions, and does what it has read."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from ludus.env import Env
from ludus.library.library_runs import LibraryRuns
from ludus.library.measurement import LibraryMeasurement, LibraryReport
from ludus.library.readings import LibraryReading, TrialKey
from ludus.library.worth import PairedWorth, SkillVerdict, SkillWorth
from ludus.library_settings import LibrarySettings
from ludus.models.scripted import ScriptedModel, call, say
from ludus.policy import Policy
from ludus.runner import Runner
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.sandbox.pool import Pool
from ludus.skill import Skill, SkillFile
from ludus.skill_library import SkillLibrary, make_library, make_package
from ludus.stats import Interval
from ludus.types import Message, Rollout, Score, Task


def make_skill(name: str, kind: str, *lines: str, files: tuple[SkillFile, ...] = ()) -> Skill:
    """A skill for tasks of a kind, with these list items."""
    items = "".join(f"- {line}\n" for line in lines)
    return Skill(f"---\nname: {name}\ndescription: For {kind} tasks.\n---\n\n# {name}\n\n{items}", files)


def build_library(*skills: Skill) -> SkillLibrary:
    return make_library(map(make_package, skills))


def write_library(folder: Path, *skills: Skill) -> Path:
    for skill in skills:
        assert skill.front is not None
        place = folder / skill.front.name
        place.mkdir(parents=True)
        (place / "SKILL.md").write_text(skill.text)
    return folder


GOOD = make_skill("alpha-good", "alpha", "Obey RULE-alpha in all that is done.")
AGAIN = make_skill("alpha-again", "alpha", "Whatever happens, RULE-alpha is what counts.", "Be kind to whoever asks.")
BAD = make_skill("beta-bad", "beta", "Obey WRONG-beta in all that is done.")
IDLE = make_skill("gamma-idle", "gamma", "Nothing in here changes anything at all.")
UNUSED = make_skill("delta-unused", "delta", "Obey RULE-delta in all that is done.")


class KindTasks(Env, frozen=True):
    """Tasks of some kinds, without a slot."""

    name: ClassVar[str] = "kinds"
    sandbox: ClassVar[SandboxSpec | None] = None
    kinds: tuple[str, ...] = ("alpha", "beta", "gamma")
    size: int = 12

    def tasks(self, split: str) -> Iterator[Task]:
        for kind in self.kinds:
            for number in range(self.size):
                yield Task(id=f"{kind}-{number}", prompt=f"A {kind} task, {number}", kind=kind, split=split)

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        return Score.of(float(rollout.answer == "right"))


def find_fitting(messages: Sequence[Message]) -> tuple[str, list[str]]:
    """The kind of the task, and the skills that say that they are for it."""
    kind = next(re.findall(r"A (\w+) task", m.content)[0] for m in messages if m.role == "user")
    system = "".join(message.content for message in messages if message.role == "system")
    return kind, [name for name, for_ in re.findall(r"^- ([\w-]+): For (\w+) tasks", system, re.M) if for_ == kind]


def act_in_kinds(messages: Sequence[Message], tools: object, sampling: Any) -> Message:
    """Loads the first skill that fits, then passes with a probability that the rules in it decide."""
    kind, fitting = find_fitting(messages)
    if fitting and not any(message.role == "assistant" for message in messages):
        return call("load_skill", name=fitting[0])
    read = "".join(message.content for message in messages if message.role == "tool")
    chance = 0.9 if f"RULE-{kind}" in read else 0.1 if f"WRONG-{kind}" in read else 0.5
    turns = 1 + sum(message.role == "assistant" for message in messages)
    luck = Random((sampling.seed or 0) - turns * 1_000_003).random()
    return say("right" if luck < chance else "wrong")


async def measure_library(
    library: SkillLibrary,
    env: Env | None = None,
    replicates: int = 4,
    most: int | None = None,
    script: Any = act_in_kinds,
    pool: Pool | None = None,
    **settings: Any,
) -> LibraryReport:
    """Measure a library in this process."""
    env = env or KindTasks()
    tasks = tuple(env.tasks("train"))
    policy = Policy(ScriptedModel(script), library=library)
    runs = LibraryRuns(Runner(env, pool), policy, {task.id: task for task in tasks}, 0, most, lambda *_: None)
    return await LibraryMeasurement(runs, library, tasks, replicates, LibrarySettings(**settings), {}).measure("x")


def make_readings(
    scores: Mapping[str, Sequence[float | None]], loaded: Sequence[str] = (), tokens: int = 100, **fields: Any
) -> dict[TrialKey, LibraryReading]:
    """Readings by task: its scores, one for each rollout."""
    found = [
        LibraryReading(TrialKey(task, number), "", score, tokens, frozenset(loaded), **fields)
        for task, values in scores.items()
        for number, score in enumerate(values)
    ]
    return {reading.key: reading for reading in found}


def make_worth(name: str, sure: tuple[float, float] | None, verdict: SkillVerdict, **fields: Any) -> SkillWorth:
    middle = None if sure is None else (sure[0] + sure[1]) / 2
    interval = None if sure is None else Interval(*sure)
    worth = PairedWorth(tasks=20, pairs=80, lost=0, difference=middle, interval=interval, sure=interval, tokens=10.0)
    loads = fields.pop("loads", 80)
    return SkillWorth(
        **{  # pyright: ignore[reportArgumentType]
            "name": name,
            "rollouts": 200,
            "loads": loads,
            "unknown": 0,
            "changed": 0,
            "most_loads": None,
            "kinds": {},
            "worth": worth if loads else None,
            "description_tokens": 10,
            "read_tokens": 50.0,
            "price": 0.1,
            "instead": {},
            "verdict": verdict,
            "sentence": "",
            **fields,
        }
    )


def make_pair(low: float, high: float) -> PairedWorth:
    both = Interval(low, high)
    return PairedWorth(tasks=20, pairs=80, lost=0, difference=(low + high) / 2, interval=both, sure=both, tokens=0.0)
