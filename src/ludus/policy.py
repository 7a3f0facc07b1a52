"""Who acts: `Policy`, the protocol of agents, and the scene in which one acts.

    Policy ──> Agent.act(scene) ──> turns, and why it stopped

A policy is a model and everything that decides how it acts. By default Ludus's own loop acts (`ludus.agent`). Another
`Agent` can act in its place: a command-line agent in a slot (`ludus.harness`), or one of another system in this
process. A rollout treats them alike: it gives each a `Scene`, and keeps what the agent adds to it.
"""

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, ClassVar

import msgspec
from msgspec import Meta, Struct

from ludus.agent_settings import ExamplesAs, SkillAs
from ludus.encoding import canonical
from ludus.errors import LudusError
from ludus.models import Model
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.skill import DOCUMENT, Skill, add_front_matter
from ludus.skill_examples import parse_examples, remove_examples
from ludus.tools import Tool
from ludus.tools.toolsets import BUILTIN, Registry
from ludus.types import Count, Exit, JsonObject, Message, Positive, Replayed, Sampling, StopReason, Task, Turn, Whole

if TYPE_CHECKING:  # most runs have no library
    from ludus.skill_library import SkillLibrary

SKILLS = "/tmp/skills"
"""The folder for skills in a slot, outside of the files that `verify` sees."""

OnTurn = Callable[[Turn], None]
"""Called with each turn when it is complete. Those of other agents than the loop are known when the agent ends."""

NextMessage = Callable[[Sequence[Turn]], Awaitable["tuple[Message, Sequence[Tool]] | None"]]
"""Says what the user answers to a reply without a call, and which tools there are from then on. Takes the turns so far.
None: the user has nothing more to say."""


class Limits(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How far a rollout may go."""

    turns: Count = 30
    """The maximum number of model replies in a rollout."""
    rollout_seconds: Positive = 1800.0
    """Time for the agent's turns. Waiting for a slot, `setup` and `verify` are not counted."""
    tool_seconds: Positive = 300.0
    """Time for one tool call, unless the tool has its own limit."""
    result_chars: Whole = 20_000
    """A longer tool result is written to a file in the slot and shown as a preview."""
    turn_chars: Whole = 60_000
    """The maximum length of all results of one turn together. The largest are written to files first."""
    preview_chars: Whole = 4_000
    """The length of the preview of a result that is too long: 40 % from its beginning and 60 % from its end."""
    context_tokens: Count | None = None
    """The model's context window. The rollout ends, as `context`, before a prompt that would not fit in it."""
    setup_seconds: Positive = 600.0
    """Time for the environment's `setup`. A longer one is a failure, and the rollout is run again."""
    verify_seconds: Positive = 600.0
    """Time for the environment's `verify`. A longer one is a failure, and `verify` is run again."""


class RunLimits(Limits, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How far a rollout may go, and when a whole run ends because the world does not work. The latter does not change
    how an agent acts: it is no part of a policy."""

    stall_seconds: Annotated[float, Meta(ge=0)] = 0.0
    """The run ends, and can be resumed, when nothing has moved in it for so long: no reply, no tool result, no slot, no
    verdict. 0: never; then it only says what it waits for. Choose more than the longest single step takes."""
    failed_share: Annotated[float, Meta(ge=0, le=1)] = 1.0
    """The run ends, and can be resumed, when more than this share of its rollouts ends without a score. It is looked at
    when 20 have ended. 1: never."""

    may_change: ClassVar[tuple[str, ...]] = ("stall_seconds", "failed_share")
    added_later: ClassVar[tuple[str, ...]] = ("stall_seconds", "failed_share")

    def get_rollout_limits(self) -> Limits:
        """What a policy has of them."""
        return Limits(**{name: getattr(self, name) for name in Limits.__struct_fields__})


@dataclass(frozen=True)
class Policy:
    """A model and everything that decides how it acts. RL trains `model`; skill training trains `skill`."""

    model: Model
    skill: Skill | None = None
    sampling: Sampling = Sampling()
    limits: Limits = Limits()
    system: str = ""
    toolsets: tuple[str, ...] | None = None
    """The toolsets that were sampled for a group; None: the environment's."""
    skipped: tuple[str, ...] = ()
    """The toolsets that the sample had to leave out. For records only: they are no part of the fingerprint."""
    registry: Registry = BUILTIN
    """The toolsets by name: the built-in ones and those that the run configures."""
    skill_as: SkillAs = "text"
    """How the agent gets the skill: in the system text, as a file in its slot that the system text names, both, or by
    name and description (`listed`)."""
    skill_folder: str = ""
    """The folder for skills in a slot; empty: where the agent looks for them."""
    library: "SkillLibrary | None" = None
    """Packages among which the agent chooses, in place of one skill."""
    examples_as: ExamplesAs = "text"
    """Where the skill's worked examples are: in its text, or as earlier turns of the conversation."""
    agent: "Agent | None" = None
    """Who acts; None: Ludus's own loop."""

    def use_model(self, model: Model) -> "Policy":
        """The policy with another model. An agent that acts in place of the loop gets it too."""
        return replace(self, model=model, agent=self.agent and self.agent.use_model(model))

    def use_skill(self, skill: Skill) -> "Policy":
        """The policy with another skill. What else decides how both act is written once for their fingerprints: a run
        may have a text of its own for every rollout."""
        other = replace(self, skill=skill)
        vars(other)["_conduct"] = self._conduct  # where a cached property keeps its value
        return other

    @property
    def model_name(self) -> str:
        """The name of the model on records."""
        return self.agent.name if self.agent and self.agent.brings_model else self.model.name

    @property
    def agent_name(self) -> str:
        """The name of the agent that acts in place of the loop; empty if the loop acts."""
        return self.agent.name if self.agent else ""

    @cached_property
    def skill_hash(self) -> str:
        """What identifies its skill, or its library, on records; empty if it has none."""
        text = self.skill if self.library is None else self.library
        return text.hash if text is not None else ""

    @cached_property
    def fingerprint(self) -> str:
        """A hash that is equal for policies that act alike, in every process and on every machine."""
        named = canonical((self.model_name, self.skill_hash))[:-1]
        return hashlib.sha256(b"%b,%b" % (named, self._conduct)).hexdigest()[:16]

    @cached_property
    def _conduct(self) -> bytes:
        """What decides how it acts beside its model and its skill, as the end of a list in canonical JSON."""
        parts = (self.sampling, self.limits, self.system, self.toolsets)
        if self.skill_as != "text":
            parts = (*parts, self.skill_as)
        if self.agent is not None and self.agent.identity is not None:
            parts = (*parts, self.agent.identity)
        if self.examples_as != "text":
            parts = (*parts, "examples", self.examples_as)
        if self.skill_folder:
            parts = (*parts, "folder", self.skill_folder)
        return canonical(parts)[1:]

    @cached_property
    def skill_file(self) -> tuple[str, Skill] | None:
        """The path of the skill in the slot, and the document in the Agent Skills form; None if there is no file."""
        if self.skill is None or self.skill_as == "text" or not self.skill.text.strip():
            return None
        named = add_front_matter(self.skill, "task-skill", "What to know and to do for tasks of this kind.")
        return self._find_path(named.front.name if named.front else ""), named

    @cached_property
    def skill_files(self) -> tuple[tuple[str, Skill], ...]:
        """The same for each skill that is put into the slot: the one of the policy, or those of its library."""
        if self.library is not None:
            return tuple((self._find_path(each.name), each.skill) for each in self.library.packages)
        return () if self.skill_file is None else (self.skill_file,)

    def _find_path(self, name: str) -> str:
        folder = self.skill_folder or (self.agent.skills if self.agent else "") or SKILLS
        return f"{folder.rstrip('/')}/{name}/{DOCUMENT}"

    @property
    def lists_skills(self) -> bool:
        """Whether the agent finds skills in its slot by its own rules, and tells its model of them."""
        own = self.agent.skills if self.agent else ""
        parts = own.split("/")[-2:]  # `.claude/skills` of the home or of a project
        return bool(own) and (not self.skill_folder or self.skill_folder.rstrip("/").split("/")[-2:] == parts)

    def build_system_text(self, env_system: str, *, slot: bool = True) -> str:
        """The environment's system text, the policy's own, and the skill, in this order. `slot`: whether there is one,
        in which a library lies."""
        text = self.skill.text if self.skill and self.skill_as in ("text", "both") else ""
        if self.examples_as == "turns":
            text = remove_examples(text)
        announced = self._announce_skill() if self.library is None else self._announce_library(self.library, slot)
        parts = (env_system, self.system, text, announced)
        return "\n\n".join(part for part in parts if part)

    def _announce_skill(self) -> str:
        """What the agent is told of the skill's file. An agent that lists skills by itself is not told of a listed
        one."""
        if self.skill_file is None:
            return ""
        path, skill = self.skill_file
        if self.skill_as != "listed":
            return f"Your skill is in {path}. Read it before you begin."
        if self.lists_skills:
            return ""
        front = skill.front
        assert front is not None  # `skill_file` adds one
        return f"{_READ_FILE}\n\n{_list_skill(front.name, front.description, path)}"

    def _announce_library(self, library: "SkillLibrary", slot: bool) -> str:
        if not library.packages or (slot and self.lists_skills):
            return ""
        places = (self._find_path(each.name) if slot else "" for each in library.packages)
        lines = (_list_skill(p.name, p.description, at) for p, at in zip(library.packages, places, strict=True))
        return "\n".join([_READ_FILE if slot else _CALL_TOOL, "", *lines])

    @cached_property
    def example_messages(self) -> tuple[Message, ...]:
        """The skill's worked examples as messages before the task's own."""
        if self.skill is None or self.examples_as == "text":
            return ()
        pairs = (
            (Message("user", one.input), Message("assistant", one.output)) for one in parse_examples(self.skill.text)
        )
        return tuple(message for pair in pairs for message in pair)


_READ_FILE = (
    "There are skills: instructions for some kinds of tasks. If the description of one fits the task, read its file "
    "before you begin. Paths in it are relative to its folder."
)
_CALL_TOOL = (
    "There are skills: instructions for some kinds of tasks. If the description of one fits the task, load it with the "
    "tool load_skill before you begin; the tool also reads the files that it names."
)


def _list_skill(name: str, description: str, path: str) -> str:
    return f"- {name}: {' '.join(description.split())}{f' (file: {path})' if path else ''}"


# ---- acting -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AgentResult:
    """What an agent did."""

    opening: tuple[Message, ...]
    """The first messages that the model got."""
    tools: tuple[str, ...]
    """The tools that the agent offered to the model."""
    turns: tuple[Turn, ...]
    stop: StopReason
    exit: Exit | None
    error: LudusError | None
    """Why the rollout does not count, if it does not."""
    details: JsonObject | None = None
    """What the agent returned besides its turns, for the environment's `verify`."""


@dataclass(frozen=True, eq=False)
class Together:
    """Rollouts of one task that run at the same time and are judged together. Each of them has the same object."""

    size: int


@dataclass
class Scene:
    """One rollout as its agent finds it, and what has happened so far. It is kept outside of the agent, so a failure
    loses nothing."""

    task: Task
    policy: Policy
    opening: tuple[Message, ...]
    offer: Sequence[Tool] = ()
    """The tools that the loop can call. Other agents bring theirs."""
    box: Sandbox | None = None
    seed: int = 0
    next_message: NextMessage | None = None
    on_turn: OnTurn | None = None
    together: Together | None = None
    """The rollouts that this one is judged with; None: it is judged alone."""

    turns: list[Turn] = field(default_factory=list[Turn])
    tools: tuple[str, ...] = ()
    """The names of all tools that were offered to the model."""
    exit: Exit | None = None
    details: JsonObject | None = None

    def add(self, turn: Turn) -> None:
        self.turns.append(turn)
        if self.on_turn is not None:
            self.on_turn(turn)

    def keep(self, acted: AgentResult) -> StopReason:
        """Keep what an agent did that is known as a whole, then raise its error if it has one."""
        self.opening = acted.opening or self.opening
        self.tools, self.exit, self.details = acted.tools, acted.exit, acted.details
        for turn in acted.turns:
            self.add(turn)
        if acted.error is not None:
            raise acted.error
        return acted.stop


class Agent:
    """An agent that acts in place of the loop. What is defined here fits one in this process without a slot."""

    @property
    def name(self) -> str:
        """Which agent acts, for records and messages."""
        raise NotImplementedError

    @property
    def needs_slot(self) -> bool:
        """Whether it acts in a slot, also for environments that need none. It then keeps the time limit itself."""
        return False

    @property
    def brings_model(self) -> bool:
        """Whether records name the agent in place of the policy's model."""
        return False

    @property
    def skills(self) -> str:
        """The folder in a slot in which it looks for skills; empty if there is none."""
        return ""

    @property
    def label(self) -> str:
        """Its name and version, for records; empty if that is not known."""
        return ""

    @property
    def identity(self) -> object:
        """What decides how it acts, beside its name and the policy; None if that is all."""
        return None

    @property
    def replayed(self) -> Replayed | None:
        """The rollout whose replies it plays; None: it begins by itself."""
        return None

    def extend_spec(self, spec: SandboxSpec) -> SandboxSpec:
        """The spec of a slot with what the agent needs there."""
        return spec

    def use_stage(self, stage: str) -> "Agent":
        """The agent for one stage of a training run (`rollout`, `slow`, `evaluate`, `test` …); most are the same in
        all. It must have the same name."""
        return self

    @property
    def stage(self) -> str:
        """What `use_stage` was called with; empty if it makes no difference."""
        return ""

    def use_model(self, model: Model) -> "Agent":
        """The same agent with another model, such as a later version of the weights. Close only the first one.

        Raises:
            ConfigError: the agent brings a model of its own.
        """
        return self

    async def act(self, scene: Scene) -> StopReason:
        """Do the task once. `scene.opening` starts with the system text, if there is one, and has the skill in it.

        Raises:
            ModelError: the agent or its model could not be run. The rollout is then a failure and is run again.
        """
        raise NotImplementedError

    async def close(self) -> None: ...


def seed_sampling(sampling: Sampling, seed: int | None, turn: int = 1) -> Sampling:
    """The sampling of one turn: its seed differs from turn to turn, so that no two sample the same noise."""
    if seed is None:
        return sampling
    return msgspec.structs.replace(sampling, seed=((sampling.seed or 0) + seed + turn * 1_000_003) % 2**31)
