"""A command-line agent among the skills of a catalogue: they lie in its slot, and what it loads is read there.

    catalogue, packages ──> a folder for each skill, with a mark in its document ──> the agent acts
                                                                                        │
                       loaded: the skill whose mark is in what the agent's model gets <─┘

The agent finds the skills by its own rules, in the folder where it looks for them; one without such a folder is told of
them in its prompt, as of a single skill. The query is its task.

What it loaded is not asked. Each rollout puts a mark of its own, a random text, at the beginning and at the end of each
document, behind the front matter. An agent that only lists skills reads names and descriptions, so no mark reaches its
model. An agent that loads one, by a tool for skills or by reading the file, sends the mark to its model. The gateway
sees that request first. It refuses it, so that nothing is paid for after the decision. A mark in the model's own words
does not count.

A rollout ends when something was loaded, when the agent has ended, or after `triggers.turns` replies. The model is
called in chat mode: rollouts of queries are no training data for weights.
"""

import hashlib
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from ludus.catalogue import Catalogue
from ludus.errors import BudgetExhausted, SetupError, boundary
from ludus.harness import Harness, HarnessAgent, run_harness
from ludus.models import Model
from ludus.policy import SKILLS, Agent, AgentResult, Policy, Scene
from ludus.sandbox import SandboxSpec
from ludus.sandbox.home import resolve_path
from ludus.skill import DOCUMENT, PACKAGE_BYTES, Skill, add_front_matter, change_description
from ludus.skill_use import unpack_skills
from ludus.types import Completion, Message, Sampling, StopReason, ToolSpec

CATALOGUE_BYTES = 4 * PACKAGE_BYTES
"""The most that all packages of a catalogue have together: they are written into every slot."""
_BODY = "Do what the request asks for.\n"
"""The body of a skill that has no package: one that the controls make up."""


@dataclass(frozen=True)
class TriggerAgent(Agent):
    """A command-line agent whose slot has the skills of a catalogue. The policy has the catalogue in place of a
    skill (`write_cards`)."""

    inner: HarnessAgent
    packages: Mapping[str, Skill]
    """The packages by name. Their descriptions are those of the catalogue."""
    turns: int

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def needs_slot(self) -> bool:
        return True

    @property
    def label(self) -> str:
        return self.inner.label

    @property
    def skills(self) -> str:
        return self.inner.skills

    @property
    def identity(self) -> tuple[Harness, int, str]:
        hashes = [f"{name} {skill.hash}" for name, skill in sorted(self.packages.items())]
        return self.inner.identity, self.turns, hashlib.sha256("\n".join(hashes).encode()).hexdigest()[:16]

    def extend_spec(self, spec: SandboxSpec) -> SandboxSpec:
        return self.inner.extend_spec(spec)

    async def act(self, scene: Scene) -> StopReason:
        """Let the agent work on the query until it has loaded something.

        Raises:
            SandboxError: the slot has no port.
            SetupError: the skills could not be placed.
        """
        assert scene.box is not None
        assert scene.policy.skill is not None
        catalogue = read_cards(scene.policy.skill)
        folder = (scene.policy.skill_folder or self.skills or SKILLS).rstrip("/")
        marks = {secrets.token_hex(12): name for name in catalogue.names}
        with boundary(SetupError, f"the skills could not be written to {folder}"):
            packages = mark_skills(make_packages(catalogue, self.packages), marks)
            await unpack_skills(await resolve_path(folder, scene.box), packages, scene.box)
        turns = min(scene.policy.limits.turns, self.turns)
        watch = LoadWatch(scene.policy.model, marks, turns)
        limits = msgspec.structs.replace(scene.policy.limits, turns=turns + 1)  # the watch ends it, after a last look
        policy = replace(scene.policy, model=watch, skill=None, limits=limits)
        system = "" if scene.policy.lists_skills else announce_skills(catalogue, folder)
        alone = replace(scene, policy=policy, opening=make_prompt(scene.opening, policy, system))
        return scene.keep(watch.conclude(await run_harness(self.inner.harness, alone, scene.box)))


class LoadWatch:
    """The policy's model, which sees what the agent's model gets. A request with a mark is refused, because the
    decision is made; so is one after the last turn, which shows what the turn before it loaded."""

    def __init__(self, model: Model, marks: Mapping[str, str], turns: int) -> None:
        self._model = model
        self._marks = marks
        self._left = turns
        self.loaded: tuple[str, ...] = ()
        self.has_ended = False

    @property
    def name(self) -> str:
        return self._model.name

    async def complete(self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Completion:
        found = find_marked(messages, self._marks)
        self.loaded = tuple(sorted({*self.loaded, *found}))
        self.has_ended = self.has_ended or bool(found) or self._left == 0
        if self.has_ended:
            raise BudgetExhausted("a skill was loaded, or this was the last turn: the rollout ends")
        self._left -= 1
        return await self._model.complete(messages, tools, sampling)

    async def close(self) -> None:
        await self._model.close()

    def conclude(self, acted: AgentResult) -> AgentResult:
        """What the agent did, with what it loaded. After the end it does not matter how the agent took it."""
        acted = replace(acted, details={"loaded": list(self.loaded)})
        if not self.has_ended:
            return acted
        return replace(acted, stop=StopReason.SUBMITTED if self.loaded else StopReason.MAX_TURNS, error=None)


def find_marked(messages: Iterable[Message], marks: Mapping[str, str]) -> set[str]:
    """The skills whose mark is in what the model gets."""
    texts = [message.content for message in messages if message.role != "assistant"]
    return {name for mark, name in marks.items() if any(mark in text for text in texts)}


# ---- what the agent finds -------------------------------------------------------------------------------------------


def write_cards(catalogue: Catalogue) -> Skill:
    """The catalogue in place of a policy's skill. The agent gets it as files."""
    return Skill(msgspec.json.encode(catalogue).decode())


def read_cards(skill: Skill) -> Catalogue:
    return msgspec.json.decode(skill.text, type=Catalogue)


def make_packages(catalogue: Catalogue, packages: Mapping[str, Skill]) -> dict[str, Skill]:
    """The package of each skill, with the description that it has in the catalogue."""
    found: dict[str, Skill] = {}
    for card in catalogue.cards:
        skill = packages.get(card.name) or add_front_matter(Skill(_BODY), card.name, card.description)
        has_it = skill.front is not None and skill.front.description == card.description
        found[card.name] = skill if has_it else change_description(skill, card.description)
    return found


def measure_packages(packages: Mapping[str, Skill]) -> int:
    """The bytes of all files together."""
    return sum(len(s.text.encode()) + sum(len(file.content) for file in s.files) for s in packages.values())


def mark_skills(packages: Mapping[str, Skill], marks: Mapping[str, str]) -> dict[str, Skill]:
    """The packages with a mark at the beginning and at the end of each document, behind its front matter."""
    names = {name: mark for mark, name in marks.items()}
    return {name: skill.change_text(_mark(skill, names[name])) for name, skill in packages.items()}


def _mark(skill: Skill, mark: str) -> str:
    head = skill.text.removesuffix(skill.body).rstrip()
    return f"{head}\n\n<!-- {mark} -->\n\n{skill.body.rstrip()}\n\n<!-- {mark} -->\n"


def announce_skills(catalogue: Catalogue, folder: str) -> str:
    """What an agent without a folder for skills is told of them."""
    lines = (
        f"- {card.name}: {' '.join(card.description.split())} (file: {folder}/{card.name}/{DOCUMENT})"
        for card in catalogue.cards
    )
    return "\n".join([_HEAD, "", *lines])


_HEAD = """\
There are skills: instructions for some kinds of tasks. If the description of one fits the task, read its file before
you begin. Paths in it are relative to its folder. If none fits, read none."""


def make_prompt(opening: Sequence[Message], policy: Policy, system: str) -> tuple[Message, ...]:
    """The opening with the policy's own system text and what the agent is told of the skills, without the catalogue."""
    text = "\n\n".join(part for part in (policy.system, system) if part)
    rest = tuple(message for message in opening if message.role != "system")
    return (Message("system", text), *rest) if text else rest
