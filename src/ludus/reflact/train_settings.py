"""What a training run is told: everything that decides what comes out of it, and nothing about how fast.

Names follow deep learning where the likeness is real: epochs, batches, accumulation, a budget of changes that falls
like a learning rate. `checked` turns a mistake into a `ConfigError` before anything is run.
"""

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta, Struct, field

from ludus.errors import ConfigError
from ludus.reflact.gate import Gate
from ludus.reflact.schedule import Schedule
from ludus.settings import Settings, get_recorded
from ludus.types import Count, Sampling, Whole

UpdateMode = Literal["patch", "rewrite_from_suggestions", "full_rewrite_minibatch"]
Control = Literal["scheduled", "autonomous", "none"]
PairPolicy = Literal["mixed", "changed", "unchanged"]


class DataSettings(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Where the three splits come from."""

    mode: Literal["ratio", "splits", "folder"] = "ratio"
    """`ratio`: one pool of tasks, divided. `splits`: three splits that the environment has. `folder`: three folders."""
    pool: tuple[str, ...] = ("train",)
    """For `ratio`: the environment's splits that make up the pool."""
    ratio: str = "2:1:7"
    """For `ratio`: the shares of train, selection and test."""
    seed: int = 42
    """For `ratio`: how the pool is shuffled."""
    train: str = "train"
    """For `splits`: the environment's name for what is rolled out and learned from."""
    selection: str = "validation"
    """For `splits`: its name for what decides whether a candidate is accepted."""
    test: str = "test"
    """For `splits`: its name for what judges at the end, and is sealed until then."""
    folder: str = ""
    """For `folder`: a directory with `train/`, `selection/` (or `val/`) and `test/`, each with tasks in a `.json` (a
    list) or a `.jsonl`."""
    limit: Whole = 0
    """Keep only the first so many tasks of each split; 0 keeps all."""
    overlap: Literal["refuse", "drop"] = "refuse"
    """What to do about a task that is in two splits."""


class SlowUpdate(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """From the second epoch's end on: compare the skill with what it was an epoch ago, and keep lasting guidance."""

    enabled: bool = True
    """Whether it is done."""
    samples: Count = 20
    """How many train tasks both skills are run on."""
    gated: bool = True
    """Whether guidance has to pass the gate. If not, it is always kept, and its text is measured before the next
    decision: no score is carried over to it."""
    pairs: PairPolicy = "mixed"
    """Which tasks the comparison shows: all; those that went differently, with more tasks run until there are `samples`
    of them; those that went alike."""


class Appendix(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Skill-aware reflection: a rule that is wrong or missing is edited; a right rule that was not followed becomes a
    note in the document's appendix."""

    enabled: bool = False
    """Whether it is done."""
    sources: Literal["both", "failure_only"] = "both"
    """Which analysts may write notes."""
    consolidate_above: Whole = 0
    """Have the notes merged and shortened when there are more than this; 0 is never."""


class ExemplarsSettings(Settings, frozen=True, kw_only=True):
    """How the proposer `exemplars` makes worked examples."""

    most: Count = 12
    """The most examples that a skill may have."""
    chars: Count = 1_200
    """The longest example, question and answer together."""
    alike: Annotated[float, Meta(ge=0, le=1)] = 0.7
    """The share of common words from which two examples count as near-duplicates."""


class TrainSettings(Settings, frozen=True, kw_only=True, omit_defaults=True):
    """How `ludus train` trains the skill. Any change here makes it another run."""

    epochs: Count = 4
    """How often every train task is seen."""
    batch_size: Count = 40
    """Train tasks per batch."""
    accumulation: Count = 1
    """Batches per step: their reflections are merged into one update."""
    seed: int = 42
    """Of batches, samples and rollouts."""

    minibatch_size: Count = 8
    """Rollouts that one analyst reads together."""
    merge_batch_size: Annotated[int, Meta(ge=2)] = 8
    """Proposals that are merged in one go."""
    failure_only: bool = False
    """Learn from failures alone."""
    success_at: float | None = None
    """Partial credit (`soft`) from which a rollout counts as a success for analysts and comparisons; None leaves it to
    the environment's own `passed`."""
    show_reference: bool = True
    """Let the analysts see what the verifier knows (`Task.answer`) of the train tasks. The agent never does."""
    trajectory_tokens: Count = 48_000
    """What the transcripts in one prompt may add up to; longer ones are shortened in the middle."""

    update_mode: UpdateMode = "patch"
    """`patch`: edits of the document. `rewrite_from_suggestions`: suggestions, then one rewrite.
    `full_rewrite_minibatch`: each analyst writes a whole document, and these are merged."""
    edit_budget: Whole = 4
    """The most changes a step may make, at the beginning; also what one analyst may propose."""
    min_edit_budget: Whole = 2
    """What the budget falls to."""
    schedule: Schedule = "cosine"
    """How the budget falls over the steps."""
    control: Control = "scheduled"
    """`scheduled`: by the schedule. `autonomous`: the optimizer decides and gives its reasons. `none`: no limit."""
    lenient_edits: bool = False
    """SkillOpt's matching: the first of several matches is taken, and what has no place goes to the end."""

    slow: SlowUpdate = SlowUpdate()
    """The slow update at an epoch's end."""
    memory: bool = True
    """Optimizer memory: from the second epoch's end on, the optimizer writes down for itself which changes help."""
    appendix: Appendix = Appendix()
    """Notes about rules that were not followed."""

    gate: Gate = Gate()
    """What a candidate has to pass."""
    selection_size: Whole = 0
    """Use only the first so many selection tasks; 0 is all."""
    selection_replicates: Count = 1
    """Rollouts per selection task: more of them, less noise."""
    test: bool = True
    """At the end, run the initial, the best and the final skill on the sealed test split."""
    test_size: Whole = 0
    """Use only the first so many test tasks; 0 is all."""
    test_replicates: Count = 1
    """Rollouts per test task and skill."""
    max_failed: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.5
    """The run stops, to be resumed, when the world broke more than this share of a measurement's rollouts, and at least
    three: then it is an outage, and not about the skill."""

    optimizer_tries: Count = 3
    """How often the optimizer is asked before a reply that stays unusable is given up."""
    reply_tokens: Count = 16_384
    """The longest reply of the optimizer."""
    rewrite_tokens: Count = 64_000
    """The longest reply where it holds a whole document."""

    proposer: str = "analysts"
    """What proposes changes. `analysts`: the optimizer's model reads rollouts and proposes edits. `exemplars`: worked
    examples and rules, made from rollouts and references without any model. Or a class of your own: `module:Class`, or
    a file: `mine.py`, `mine.py:Class` (`docs/extending.md`)."""
    exemplars: ExemplarsSettings = ExemplarsSettings()
    """For `proposer: exemplars`."""
    sampling: Sampling = Sampling()
    """How the optimizer's replies are sampled. Their length is `reply_tokens`; their seeds come from `seed`."""
    prompts: str = ""
    """A folder with prompts that replace those of Ludus by file name. Files in its folder `<env name>` apply to that
    environment only."""
    proposer_options: dict[str, Any] = field(default_factory=dict[str, Any])
    """Options of a proposer of your own: the fields of its class."""

    added: ClassVar[tuple[str, ...]] = ("proposer_options",)

    @property
    def identity(self) -> dict[str, Any]:
        """The fields that are hashed into a run's identity. The proposer, the prompts and the optimizer's sampling are
        hashed there by themselves."""
        apart = {"proposer", "exemplars", "sampling", "prompts"}
        fields = {name: value for name, value in get_recorded(self).items() if name not in apart}
        return {**fields, "gate": get_recorded(self.gate)}


def check_settings(settings: TrainSettings) -> TrainSettings:
    """The settings, with every value tried against its type: Python does not do that by itself."""
    try:
        settings = msgspec.convert(msgspec.to_builtins(settings), TrainSettings)
    except msgspec.ValidationError as error:
        raise ConfigError(f"train: {error}") from None
    if settings.min_edit_budget > settings.edit_budget:
        raise ConfigError(
            f"train.min_edit_budget is {settings.min_edit_budget}, more than train.edit_budget: the budget falls from "
            f"the one to the other, so set it to at most {settings.edit_budget}"
        )
    return settings
