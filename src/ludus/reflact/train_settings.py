"""The settings that decide the result of a training run. Settings that only change its speed are elsewhere.

Names follow deep learning where the comparison holds: epochs, batches, accumulation, a budget of changes that falls
like a learning rate. `check_settings` raises a `ConfigError` for a mistake before anything is run.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta, Struct, field

from ludus.errors import ConfigError
from ludus.reflact.gate import Gate
from ludus.reflact.guards import GuardSettings
from ludus.reflact.ledger.ledger_settings import LedgerSettings, Probability
from ludus.reflact.schedule import Schedule
from ludus.settings import Settings, get_recorded
from ludus.types import Count, Sampling, Whole

UpdateMode = Literal["patch", "rewrite_from_suggestions", "full_rewrite_minibatch"]
Control = Literal["scheduled", "autonomous", "none"]
Recipe = Literal["ledger", "reflact"]
PairPolicy = Literal["mixed", "changed", "unchanged"]


class DataSettings(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Where the three splits come from."""

    mode: Literal["ratio", "splits", "folder"] = "ratio"
    """`ratio`: divide one pool of tasks. `splits`: three splits of the environment. `folder`: three folders."""
    pool: tuple[str, ...] = ("train",)
    """For `ratio`: the environment's splits that make up the pool."""
    ratio: str = "2:1:7"
    """For `ratio`: the shares of train, selection and test."""
    seed: int = 42
    """For `ratio`: the seed for shuffling the pool."""
    train: str = "train"
    """For `splits`: the environment's split to train on."""
    selection: str = "validation"
    """For `splits`: the environment's split that decides whether a candidate is accepted."""
    test: str = "test"
    """For `splits`: the environment's split for the test at the end. It is sealed until then."""
    folder: str = ""
    """For `folder`: a directory with `train/`, `selection/` (or `val/`) and `test/`, each with tasks in a `.json` file
    (a list) or a `.jsonl` file."""
    limit: Whole = 0
    """Use only the first tasks of each split, this many; 0 uses all."""
    overlap: Literal["refuse", "drop"] = "refuse"
    """What to do with a task that is in two splits: refuse to start, or drop it from the earlier split."""


class SlowUpdate(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """At the end of each epoch from the second on: compare the skill with that of an epoch ago, and write guidance."""

    enabled: bool = True
    """Whether the slow update is done."""
    samples: Count = 20
    """The number of train tasks that both skills are run on."""
    gated: bool = True
    """Whether guidance must pass the gate. If not, it is always added, and the new text is measured before the next
    decision: it does not inherit a score."""
    pairs: PairPolicy = "mixed"
    """Which tasks the optimizer sees. `mixed`: all. `changed`: those with a different result; more tasks are run until
    there are `samples` of them. `unchanged`: those with the same result."""


class Appendix(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Skill-aware reflection: a wrong or missing rule leads to an edit; a correct rule that was not followed leads to a
    note in the document's appendix."""

    enabled: bool = False
    """Whether notes are written."""
    sources: Literal["both", "failure_only"] = "both"
    """Which analysts may write notes."""
    consolidate_above: Whole = 0
    """Merge and shorten the notes when there are more than this; 0 means never."""


class ExemplarsSettings(Settings, frozen=True, kw_only=True):
    """How the proposer `exemplars` makes worked examples."""

    most: Count = 12
    """The most examples that a skill may have."""
    chars: Count = 1_200
    """The longest example, question and answer together."""
    alike: Annotated[float, Meta(ge=0, le=1)] = 0.7
    """The share of common words from which two examples count as near-duplicates."""


class ShippingSettings(Settings, frozen=True, kw_only=True, omit_defaults=True):
    """How the skill is chosen that a run ends with: candidates are measured afresh, paired with the initial skill."""

    passes: Count = 4
    """The most passes over the selection split, each with new seeds. The first one drops the weaker half of the
    candidates."""
    certainty: Probability = 0.95
    """A candidate is shipped if it is better than the initial skill with at least this probability. Otherwise the
    initial skill stays."""
    reserve: Probability = 0.2
    """For the recipe `ledger`: the share of the rollouts, without the test, that is kept for shipping."""


class TrainSettings(Settings, frozen=True, kw_only=True, omit_defaults=True):
    """How `ludus train` trains the skill. Any change here makes it another run."""

    recipe: Recipe = "ledger"
    """`ledger`: every rollout is evidence for and against each line of the skill (`docs/skill-training.md`). `reflact`:
    a gate on the selection split accepts or rejects each candidate."""
    ledger: LedgerSettings = LedgerSettings()
    """For `recipe: ledger`."""
    shipping: ShippingSettings = ShippingSettings()
    """How the skill is chosen that the run ends with."""
    epochs: Count = 4
    """The number of times every train task is used; on average, for `recipe: ledger`."""
    batch_size: Count = 40
    """Train tasks per batch."""
    accumulation: Count = 1
    """Batches per step: their reflections are merged into one update."""
    seed: int = 42
    """The seed of batches, samples and rollouts."""

    minibatch_size: Count = 8
    """Rollouts per analyst request."""
    merge_batch_size: Annotated[int, Meta(ge=2)] = 8
    """Proposals per merge request."""
    failure_only: bool = False
    """Learn from failures only."""
    success_at: float | None = None
    """For analysts and comparisons, a rollout with at least this partial credit (`soft`) is a success. None: the
    environment decides (`passed`)."""
    support: Literal["named", "minibatch"] = "named"
    """Which rollouts an analyst's proposal counts as learned from: those that the analyst names for it, or all that it
    has read."""
    show_reference: bool = True
    """Show the analysts the reference answers (`Task.answer`) of the train tasks. The agent never sees them."""
    trajectory_tokens: Count = 48_000
    """The largest number of tokens of all transcripts in one prompt. Long transcripts are shortened in the middle."""

    update_mode: UpdateMode = "patch"
    """`patch`: edits of the document. `rewrite_from_suggestions`: suggestions, then one rewrite of the document.
    `full_rewrite_minibatch`: each analyst writes a whole document, and these are merged."""
    edit_budget: Whole = 4
    """The largest number of changes per step at the beginning, and of proposals per analyst."""
    min_edit_budget: Whole = 2
    """The budget at the end of the schedule."""
    schedule: Schedule = "cosine"
    """How the budget decreases over the steps."""
    control: Control = "scheduled"
    """`scheduled`: the schedule decides. `autonomous`: the optimizer decides and gives reasons. `none`: no limit."""
    lenient_edits: bool = False
    """Match edits as SkillOpt does: use the first of several matches, and append what has no place."""

    slow: SlowUpdate = SlowUpdate()
    """The slow update at the end of an epoch."""
    memory: bool = True
    """Optimizer memory: from the end of the second epoch on, the optimizer writes notes for itself on which changes
    help."""
    appendix: Appendix = Appendix()
    """Notes about rules that were not followed."""

    gate: Gate = Gate()
    """The rule that accepts or rejects candidates."""
    guards: GuardSettings = GuardSettings()
    """What may not get into the skill."""
    selection_size: Whole = 0
    """Use only this many selection tasks; 0 uses all."""
    selection_draw: Literal["random", "first"] = "random"
    """Which ones: drawn with `seed`, or the first ones."""
    selection_replicates: Count = 1
    """Rollouts per selection task. More rollouts give less noise."""
    test: bool = True
    """At the end, run the initial, the best and the final skill on the sealed test split."""
    test_size: Whole = 0
    """Use only the first test tasks, this many; 0 uses all."""
    test_replicates: Count = 1
    """Rollouts per test task and skill."""
    max_failed: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.5
    """Stop the run, so that it can be resumed, when more than this share of the rollouts of a measurement fail, and at
    least three. Such an outage says nothing about the skill."""

    optimizer_tries: Count = 3
    """How many times the optimizer is asked for a usable reply."""
    reply_tokens: Count = 16_384
    """The largest length of the optimizer's replies, in tokens."""
    rewrite_tokens: Count = 64_000
    """The largest length of a reply that holds a whole document, in tokens."""

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

    added_later: ClassVar[tuple[str, ...]] = (
        "proposer_options", "recipe", "ledger", "shipping", "guards", "selection_draw", "support",
    )  # fmt: skip
    assumed_before: ClassVar[Mapping[str, Any]] = {
        "recipe": "reflact",
        "guards": GuardSettings(enabled=False),
        "selection_draw": "first",
        "support": "minibatch",
    }

    @property
    def identity(self) -> dict[str, Any]:
        """The fields that are hashed into a run's identity. The proposer, the prompts and the optimizer's sampling are
        hashed there by themselves."""
        apart = {"proposer", "exemplars", "sampling", "prompts"}
        fields = {name: value for name, value in get_recorded(self).items() if name not in apart}
        return {**fields, "gate": get_recorded(self.gate)}


def check_settings(settings: TrainSettings) -> TrainSettings:
    """Check every value against its type, which Python does not do. Returns the settings."""
    try:
        settings = msgspec.convert(msgspec.to_builtins(settings), TrainSettings)
    except msgspec.ValidationError as error:
        raise ConfigError(f"train: {error}") from None
    if settings.min_edit_budget > settings.edit_budget:
        raise ConfigError(
            f"train.min_edit_budget is {settings.min_edit_budget}, more than train.edit_budget: set it to at most "
            f"{settings.edit_budget}"
        )
    if settings.recipe == "ledger" and settings.update_mode != "patch":
        raise ConfigError(
            f"train.update_mode is {settings.update_mode}, but the recipe `ledger` works with lines: use `patch`, or "
            "set train.recipe to reflact"
        )
    return settings
