"""What rollouts are run with: `Runner`. One value of it is a run, whatever command opens it.

    Job (task, policy, replicate, seed) + Runner (environment, slots, judges, store, options, engine) ──> Rollout

A runner is made once (`ludus.run.open_run`, or by hand) and passed to whatever runs rollouts: `rollout.run` runs one,
`engine.run_stored` many. The `engine` decides where jobs run: in this process by default.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Protocol

from msgspec import Struct

from ludus.activity import Activity
from ludus.control import RunControl
from ludus.env import Env
from ludus.policy import OnTurn, Policy, Together
from ludus.sandbox import SandboxSpec
from ludus.sandbox.file_tree import CollectedFiles, KeptSizes
from ludus.sandbox.pool import Pool
from ludus.settings import Settings
from ludus.suspects import SuspectPolicy
from ludus.types import Count, Rollout, Task, Whole
from ludus.verify.grading import Judges

if TYPE_CHECKING:
    from ludus.store import Store


@dataclass(frozen=True)
class ActedWork:
    """What the agent of a stored rollout has done and left."""

    rollout: Rollout
    """As it was when its agent had finished."""
    files: CollectedFiles | None = None


@dataclass(frozen=True)
class Job:
    """One rollout to run."""

    task: Task
    policy: Policy
    replicate: int = 0
    seed: int = 0
    together: Together | None = None
    """The rollouts that it is judged with. The engine sets it, if the environment judges groups."""
    acted: ActedWork | None = None
    """Set: the agent has acted already, and what it left is judged, without a model."""


@dataclass(frozen=True)
class RunOptions:
    """How jobs are run: how many at once, how often again, and when to stop. It does not change what comes out."""

    concurrency: int = 16
    """Rollouts at a time, unless the control says another number."""
    retries: int = 2
    """How often a rollout is run again after a failure that is not the agent's."""
    keep_files: KeptSizes = KeptSizes()
    """How much of what agents leave a store keeps."""
    control: RunControl = field(default_factory=RunControl, compare=False)
    """What can be changed while the run runs. Its `stop` drains: nothing new starts, and what runs is finished and
    recorded."""
    failed_share: float = 1.0
    """The run drains when more than this share of its outcomes has no score (`limits.failed_share`). 1: never."""
    drains: bool = True
    """Whether a stop keeps jobs from starting. False: what was begun as a whole is finished as a whole."""

    @property
    def at_once(self) -> int:
        """Rollouts at a time, now."""
        return self.control.concurrency or self.concurrency

    @property
    def is_stopping(self) -> bool:
        return self.drains and self.control.is_stopping


class RunSettings(Settings, frozen=True):
    """How the run is done. `--out` and `--resume` are short for the first two."""

    out: str = ""
    """The run directory; empty: `runs/<env>-<time>`."""
    resume: bool = False
    """Continue the run in `out`: what is finished there is not run again."""
    accept_code: str = ""
    """The digest of the environment's code, if it has changed since the run began and the run shall go on all the same.
    The error of `resume` names it."""
    seed: int = 0
    """The seed from which every rollout derives its own."""
    concurrency: Count = 16
    """The number of rollouts that run at once."""
    retries: Whole = 2
    """How often a rollout is run again, in a fresh slot, after a failure that is not the agent's."""

    suspects: SuspectPolicy = "zero"
    """What training does with a suspect: a rollout whose verdict the agent may have changed. `zero`: it has failed;
    `drop`: it is left out; `keep`: it counts as it was scored. For `train`, `rl`, `serve` and the rows of `process`."""
    keep_files_mb: Whole = 8
    """How many megabytes of the files that the agent of one rollout leaves are kept, at most, for `ludus rescore`. The
    files of a rollout that left more are not kept. 0: keep none."""
    keep_files_total_mb: Whole = 2048
    """How many megabytes of such files a run keeps, at most. Equal files count once."""

    notes: tuple[str, ...] = ()
    """Remarks that are kept with the run: what a file of another system asks for that is not done, or done in another
    way. Nothing reads them."""

    may_change: ClassVar[tuple[str, ...]] = (
        "out",
        "resume",
        "accept_code",
        "concurrency",
        "retries",
        "keep_files_mb",
        "keep_files_total_mb",
        "notes",
    )
    added_later: ClassVar[tuple[str, ...]] = (
        "keep_files_mb",
        "keep_files_total_mb",
        "notes",
        "suspects",
        "accept_code",
    )

    def make_options(self) -> RunOptions:
        sizes = KeptSizes(self.keep_files_mb * 2**20, self.keep_files_total_mb * 2**20)
        return RunOptions(self.concurrency, self.retries, sizes)


class RunEngine(Protocol):
    """Where jobs run."""

    async def run(self, jobs: "Iterable[Job]", runner: "Runner", record: "Record") -> None:
        """Run jobs, at most `runner.options.at_once` at a time, started in their order. `record` is called with each
        job and its rollout when the rollout ends, in the process of the caller.

        `runner.options.control` may change meanwhile: the number at a time goes up or down, a pause starts nothing, and
        a stop drains: nothing new starts, what runs is finished and recorded. A spent budget and an unusable model
        drain in the same way; the error is raised at the end. Other errors of the user (settings, store) cancel
        everything. A bug in a rollout is that rollout's failure; a bug in `record` cancels everything. What each
        rollout waits for is on `runner.activity`.
        """
        ...

    def list_nodes(self) -> "tuple[NodeFacts, ...]":
        """The machines on which jobs have run, beside this one."""
        ...


class NodeFacts(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a machine has done for a run."""

    name: str
    units: int = 0
    """Rollouts that have ended there; groups, if the environment judges groups."""
    seconds: float = 0.0
    """How long it has had an open worker."""
    losses: tuple[str, ...] = ()
    """How its workers were lost."""
    refusal: str = ""
    """Why it was left out."""


Record = Callable[[Job, Rollout], None]


def _make_store() -> "Store":
    from ludus.store import MemoryStore  # its module imports a database, which those who only read settings do not need

    return MemoryStore()


@dataclass(frozen=True)
class Runner:
    """What rollouts are run with."""

    env: Env
    pool: Pool | None = None
    """The slots; None if neither the environment nor the agent needs one."""
    slot: SandboxSpec | None = None
    """The environment's slot with what the settings change; None: as the environment has it."""
    judges: Judges = Judges()
    """The models that judge, for environments that are graded."""
    store: "Store" = field(default_factory=_make_store)
    """Where outcomes are found and kept."""
    options: RunOptions = field(default_factory=RunOptions)
    suspects: SuspectPolicy = "zero"
    """How suspects count where rollouts are trained on. The store has them as they were scored."""
    engine: RunEngine | None = None
    """Where jobs run; None: in this process."""
    on_turn: OnTurn | None = None
    on_rollout: "Callable[[str, Rollout], None] | None" = None
    """Called with each new outcome when it is stored."""
    activity: Activity = field(default_factory=Activity, compare=False)
    """What its rollouts wait for."""

    def make_spec(self, task: Task) -> SandboxSpec:
        """The slot of a task. For environments that have slots."""
        default = self.slot or self.env.sandbox
        assert default is not None
        return self.env.slot(task, default)
