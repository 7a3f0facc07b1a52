"""The environment contract: `Env` defines the tasks and judges the results.

An environment is a small typed struct. Its fields are its options (they appear as `--env.<field>`). Its methods define
the tasks, prepare a slot, offer tools to the agent and judge the result. Only `tasks` and `verify` must be written. An
environment never runs a model and never decides how many rollouts there are.

An environment can rely on this: `setup` runs in a clean slot. When `verify` runs, every process that the agent started
is dead. By default `verify` gets a new slot that was set up again and into which only the agent's files in /workspace
were copied. The agent never sees `Task.answer`.

An environment must keep this: `setup` and `verify` are deterministic, and `verify` raises when it cannot judge. It must
not return 0 in that case, because a failure is not a zero. If `verify` raises, it is run again on the same files. If it
still raises but works in a slot that no agent has touched, the agent's files broke it, and the score is 0.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal, Self

from msgspec import Struct

from ludus.models import Model
from ludus.policy import Agent
from ludus.sandbox import ImageSupport, Sandbox, SandboxSpec
from ludus.sandbox.file_tree import CollectedFiles, Protection
from ludus.settings import Settings
from ludus.tools import Tool
from ludus.types import Completion, Count, Message, Rollout, Score, StopReason, Task, Turn, place_images
from ludus.verify.grading import Judges


class EnvSettings(Settings, frozen=True):
    """Which tasks are run. The environment's own options are in the same section, such as `env.path` of `gsm8k`."""

    name: str = ""
    """A built-in name (`ludus envs`), `module:Class`, or a file: `my_env.py`, `my_env.py:Class`."""
    split: str = "train"
    """Which tasks: `train`, `test`, or another split that the environment has."""
    limit: Count | None = None
    """Use only the first so many tasks of the split."""
    ids: tuple[str, ...] | None = None
    """Use only the tasks with these ids."""
    group_size: Count = 1
    """The number of rollouts of each task."""


class EnvFacts(Struct, frozen=True, kw_only=True):
    """What users want to know about an environment before they run it, in words. `ludus envs` prints it, and the table
    in docs/environments.md is made of it. One line of plain text each; `|` is not allowed."""

    tasks: str = ""
    """How many tasks there are, if the number depends on the user's data or on an extra: `one per row of env.path`.
    Empty: the tasks of each split are counted with default options, which must then need no data and no extra."""
    licence: str = ""
    """The licence of the tasks, and where they are from: `MIT (written for Ludus)`, `CC-BY-4.0 (openai/gsm8k)`."""
    runs: str = ""
    """What runs where: `agent and hidden tests in slots`. Empty: said by whether the environment has a sandbox."""
    scored: str = ""
    """How a rollout is scored: `exact final number`, `all hidden tests pass; soft: the share`."""
    extra: str = ""
    """The extra of `ludus-train` that it needs: `hub`. Empty: none."""
    speed: str = ""
    """How long a task takes without a model: `80 ms per task` (`bench/envs.py` measures it). Empty: not measured."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if any(mark in getattr(self, name) for mark in "|\n"):
                raise ValueError(f"EnvFacts.{name}: one line without '|', please: it is a cell of a table")


class FollowUp(Struct, frozen=True):
    """What comes after a reply without a call."""

    text: str
    """What the user says next."""
    tools: Sequence[Tool] | None = None
    """The environment's own tools from now on; None: as before."""


class Env(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of environments. See `ludus.envs.terminal_test` for a whole one."""

    name: ClassVar[str] = ""
    version: ClassVar[str] = "1"
    """Raise it when scores are no longer comparable with earlier ones. It is on every record."""
    sandbox: ClassVar[SandboxSpec | None] = SandboxSpec()
    """The slot that a rollout needs; None for tasks of pure text. If `slot` gives it an image of the task's own, say so
    here with an empty one, `image=ImageSpec()`: then backends without images are refused before a run starts."""
    verify_in: ClassVar[Literal["fresh", "same"]] = "fresh"
    """Where `verify` runs. `same`: in the agent's own slot, for tasks about more than files in /workspace, such as a
    database in home. Then only files that the agent could not write can be trusted."""
    protected: ClassVar[tuple[str, ...]] = ()
    """Patterns of files that belong to the environment, such as `tests/*` or `*.toml`. In a fresh slot, `verify` finds
    them as `setup` makes them, whatever the agent did to them (see `ludus.sandbox.agent_files`). For slots with an
    image, the paths are below the root."""
    hidden: ClassVar[tuple[str, ...]] = ()
    """For slots with an image: folders below the root that `verify` fills, such as `tests`. The agent's files there are
    not copied to a fresh slot, and neither are links that lead into them."""
    toolsets: ClassVar[tuple[str, ...]] = ()
    """Toolsets that are offered when the user names none."""
    system: ClassVar[str] = ""
    """The environment's system text. A skill is added to it and does not replace it."""
    graded: ClassVar[bool] = False
    """Whether a model judges: the environment defines `grade`, and a run must name the models in the sections `judge`
    and `second_judge`."""
    facts: ClassVar[EnvFacts] = EnvFacts()
    """Licence, scoring, speed and so on, for `ludus envs` and the table of environments."""

    def tasks(self, split: str) -> Iterable[Task]:
        """The tasks of a split, with ids that are unique within it. Called once per run."""
        raise NotImplementedError(f"{type(self).__name__} does not define tasks(split)")

    def skipped(self, split: str) -> Mapping[str, str]:
        """Tasks of the split that `tasks` leaves out because they cannot be run here: the reasons by id."""
        return {}

    def make_system(self, task: Task) -> str:
        """The environment's system text for a task, by default `system`."""
        return self.system

    def opening(self, task: Task) -> tuple[Message, ...]:
        """The conversation before the first turn, without system text."""
        return (Message("user", task.prompt, images=place_images(task.images, task.prompt)),)

    def slot(self, task: Task, default: SandboxSpec) -> SandboxSpec:
        """The slot for one task, by default `default`: `sandbox` with what the settings of the run change. Tasks may
        have different bases, or name one of the user's profiles (`sandbox.profiles`). Not called when `sandbox` is
        None."""
        return default

    def use_images(self, support: ImageSupport) -> Self:
        """This environment, with images as the run's backend can have them. Called once before a run, if `sandbox` has
        an image."""
        return self

    def make_agent(self, model: Model) -> Agent | None:
        """The agent that acts in place of Ludus's own, for environments of other systems that bring one; None: it does
        not."""
        return None

    def list_code(self) -> Iterable[Path] | None:
        """The files that decide what it asks and how it scores; None: those of its class. A run in which one of them
        has changed is not resumed."""
        return None

    @property
    def title(self) -> str:
        """What its tasks are called in texts for people and models."""
        return self.name

    def list_protected(self) -> tuple[str, ...]:
        """The patterns of protected files, by default `protected`. For environments whose options decide them."""
        return self.protected

    async def protect(self, task: Task, files: CollectedFiles, box: Sandbox) -> Protection:
        """Which of the agent's files are not copied to `box`, a fresh slot that was set up; by default those of
        `list_protected`. For environments that decide by what the task needs and what the slot has."""
        return Protection(self.list_protected())

    async def find_forgery(self, rollout: Rollout, box: Sandbox) -> tuple[str, ...]:
        """Verify what the agent left with tests that must fail and with one that must pass, in a further fresh slot.
        Called for a rollout that `verify` paid for (`rollout.score`). Returns the evidence that the verdict does not
        depend on the tests, in words; then the score becomes 0. By default none: `ludus.verify.pytest` has controls of
        its own."""
        return ()

    async def prepare(self, task: Task) -> None:
        """Make on this host what the task's slots need, such as a folder that `slot` names as a base. Called before a
        slot is leased, for every rollout of the task. Not called when `sandbox` is None."""

    async def setup(self, task: Task, box: Sandbox) -> None:
        """Prepare the slot. By default: write `task.files`. Not called when `sandbox` is None."""
        for path, text in task.files.items():
            await box.write(path, text.encode())

    def tools(self, task: Task, box: Sandbox | None) -> Sequence[Tool]:
        """The environment's own tools, beside those of the toolsets. `ludus.tools.tool` makes one of a function."""
        return ()

    async def follow_up(self, task: Task, turns: Sequence[Turn], box: Sandbox | None) -> FollowUp | None:
        """What the user says after a reply without a call, for tasks that are conversations. `turns` are all turns so
        far; those after which the user spoke have the message in `notices`. None: the conversation is over."""
        return None

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        """Judge a finished rollout. `rollout.answer` is the agent's last text; /workspace is as the agent left it,
        except for `protected` files. Hidden tests are used only here. The score is what this method returns: nothing
        that the agent writes in the slot can be a score."""
        raise NotImplementedError(f"{type(self).__name__} does not define verify(rollout, box)")

    @property
    def scores_rollouts(self) -> bool:
        """Whether there is a verdict. If not, a rollout is done when its agent has ended, with neither a score nor a
        failure: `verify` is not called, and commands that need scores refuse the environment."""
        return True

    async def grade(self, rollout: Rollout, box: Sandbox | None, judges: Judges) -> Score:
        """Judge a finished rollout with models: `judges.grade(...)`. Only environments that are `graded` define it; for
        others it is `verify`."""
        return await self.verify(rollout, box)

    @property
    def judges_groups(self) -> bool:
        """Whether the rollouts of a task are judged together, by `verify_group`: a reward depends on the others of the
        group. Those that fail are left out. A resumed run runs the whole group again and keeps what was missing. Only
        for environments whose `sandbox` is None."""
        return False

    async def verify_group(self, rollouts: Sequence[Rollout]) -> Sequence[Score]:
        """Judge finished rollouts of one task together: those that did not fail, in their order. Called in place of
        `verify` if the environment `judges_groups`."""
        return [await self.verify(rollout, None) for rollout in rollouts]

    async def solve(self, task: Task, box: Sandbox | None) -> str | Sequence[Turn]:
        """Solve the task perfectly, as proof that it can be scored: change the slot, and return the final answer; or
        all turns, if `verify` judges more than the answer. `ludus validate` calls it. No agent ever does."""
        raise NotImplementedError(f"{type(self).__name__} does not define solve(task, box)")


def can_solve(env: Env) -> bool:
    """Whether the environment defines `solve`."""
    return type(env).solve is not Env.solve


def has_controls(env: Env) -> bool:
    """Whether the environment defines `find_forgery`."""
    return type(env).find_forgery is not Env.find_forgery


def can_follow_up(env: Env) -> bool:
    """Whether the environment defines `follow_up`."""
    return type(env).follow_up is not Env.follow_up


def make_turns(solution: str | Sequence[Turn]) -> tuple[Turn, ...]:
    """The turns of an agent that does what `solve` returned."""
    if not isinstance(solution, str):
        return tuple(solution)
    return (Turn(Completion(Message("assistant", solution)), stop=StopReason.FINISHED),)
