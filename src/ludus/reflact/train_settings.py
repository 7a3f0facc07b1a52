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
from ludus.reflact.ledger.settings import LedgerSettings, Probability
from ludus.reflact.schedule import Schedule
from ludus.settings import Settings, UsedIf, get_recorded
from ludus.types import Count, Positive, Sampling, Whole

UpdateMode = Literal["patch", "rewrite_from_suggestions", "full_rewrite_minibatch"]
Control = Literal["scheduled", "autonomous", "none"]
Recipe = Literal["ledger", "reflact"]
PairPolicy = Literal["mixed", "changed", "unchanged"]
ShippingRule = Literal["certain", "best"]


class DataSettings(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Where the three splits come from."""

    mode: Literal["ratio", "splits", "folder"] = "ratio"
    """`ratio`: divide one pool of tasks. `splits`: three splits of the environment. `folder`: three folders."""
    pool: tuple[str, ...] = ("train",)
    """For `ratio`: the environment's splits that make up the pool."""
    ratio: str = ""
    """For `ratio`: the shares of train, selection and test. Empty: `2:1:7` if that gives at least 20 selection tasks,
    else `2:1:1`, or for fewer than 10 tasks `2:2:1`, for fewer than 7 `1:2:1`: fewer than 3 selection tasks can never
    show that a skill is better on other tasks."""
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

    used_if: ClassVar[Mapping[str, tuple[UsedIf, ...]]] = {
        **dict.fromkeys(("pool", "ratio", "seed"), (UsedIf("mode", ("ratio",)),)),
        **dict.fromkeys(("train", "selection", "test"), (UsedIf("mode", ("splits",)),)),
        "folder": (UsedIf("mode", ("folder",)),),
    }


class ClaimSettings(Settings, frozen=True):
    """The arms that `ludus train --claim` measures beside the trained skill (`docs/skill-training.md`). They can be
    added to a finished run: `ludus train --resume --claim --out RUN`."""

    enabled: bool = False
    """Measure the arms, when the run has its result. `--claim` sets it."""
    best_of: Annotated[int, Meta(ge=2)] | None = None
    """Samples of the initial skill for each test task, of which the verifier chooses the best; null: so many that they
    take as many rollouts as training and shipping took."""
    rollouts: Count | None = None
    """The most rollouts of all arms together; null: what they need. With fewer, the arm of samples uses fewer test
    tasks, each with as many samples."""
    split: str = ""
    """A split of the environment that the run does not train on: the skill is measured on its tasks too."""
    kinds: tuple[str, ...] = ()
    """Kinds of tasks (`Task.kind`) that are held out, with and without `--claim`: they are in none of the three splits,
    and the skill is measured on them too."""

    used_if: ClassVar[Mapping[str, tuple[UsedIf, ...]]] = dict.fromkeys(
        ("best_of", "rollouts", "split"), (UsedIf("enabled", (True,)),)
    )


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


_PAIRS = 60
"""About how many pairs of rollouts show a gain of fifteen points."""


class ShippingSettings(Settings, frozen=True, kw_only=True, omit_defaults=True):
    """How the skill is chosen that a run ends with."""

    rule: ShippingRule = "certain"
    """`certain`: candidates are measured afresh, paired with the initial skill, and one is shipped if it is better with
    enough certainty. `best`: the skill with the highest score on the selection split is shipped, as SkillOpt does; its
    score is too high, because it was chosen for it. For the recipe `reflact`."""
    passes: Whole = 0
    """For `certain`: the most passes over the selection split, each with new seeds. 0: as many as the rollouts that are
    kept for shipping allow; without a limit of rollouts 4, and more if there are fewer than 15 tasks. Passes end when
    it is clear which skill is better. After some of them the weaker half of the candidates is dropped."""
    certainty: Probability = 0.95
    """For `certain`: a candidate is shipped if it is better than the initial skill on the selection tasks, and not by
    luck, with at least this probability, and other tasks are likely (0.8) to gain, too. Otherwise the initial skill
    stays. The best of several candidates must be surer: of three, with 0.975 for 0.95."""
    reserve: Probability = 0.2
    """For the recipe `ledger`: the share of the rollouts, without the test, that is kept for shipping."""

    def count_passes(self, tasks: int) -> int:
        """The most passes over this many selection tasks, where no limit of rollouts decides."""
        return self.passes or max(4, -(-_PAIRS // max(1, tasks)))


_FOR_REFLACT = (
    "batch_size", "accumulation", "merge_batch_size", "support", "min_edit_budget", "schedule", "control",
    "lenient_edits", "slow", "memory", "appendix.sources", "selection_replicates", "rewrite_tokens",
    "gate.enabled", "gate.margin", "gate.no_regression", "gate.rule", "gate.block", "gate.accept_at", "gate.reject_at",
    "gate.lean_at", "gate.passes", "gate.refresh",
)  # fmt: skip
"""What the recipe `ledger` does not use: it has batches of its own, and no gate."""
_FOR_OWN_PROPOSERS = ("failure_only", "edit_budget")
"""What it uses only with proposers other than the analysts."""


class PackageSettings(Settings, frozen=True, kw_only=True, omit_defaults=True):
    """What a skill package may grow to, and how its scripts are checked."""

    description_tokens: Whole = 0
    """The most tokens of the description, which agents pay for in every conversation; 0: no limit but the form's 1,024
    characters."""
    body_tokens: Whole = 0
    """The most tokens of the document without its front matter; 0: no limit."""
    file_tokens: Whole = 0
    """The most tokens of each other text of the package; 0: no limit."""
    scripts: bool = True
    """Whether proposals may write, change and remove scripts. Each has to pass its own check in a slot."""
    check_seconds: Positive = 60.0
    """The time limit of the check of one script."""


class TrainSettings(Settings, frozen=True, kw_only=True, omit_defaults=True):
    """How `ludus train` trains the skill. Any change here makes it another run."""

    recipe: Recipe = "ledger"
    """`ledger`: every rollout is evidence for and against each line of the skill (`docs/skill-training.md`). `reflact`:
    a gate on the selection split accepts or rejects each candidate."""
    ledger: LedgerSettings = LedgerSettings()
    """For `recipe: ledger`."""
    shipping: ShippingSettings = ShippingSettings()
    """How the skill is chosen that the run ends with."""
    epochs: Whole = 0
    """The number of times every train task is used; on average, for `recipe: ledger`. 0: four times; for `recipe:
    ledger` as often as it takes for 200 rollouts, if there are fewer than 50 train tasks."""
    batch_size: Count = 40
    """Train tasks per batch."""
    accumulation: Count = 1
    """Batches per step: their reflections are merged into one update."""
    seed: int = 42
    """The seed of batches, samples and rollouts."""

    minibatch_size: Count | Literal["auto"] = "auto"
    """Rollouts per analyst request. `auto`: 8; for `recipe: ledger` also 24 (`ledger.batch_size`)."""
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
    package: PackageSettings = PackageSettings()
    """What a skill package may grow to, and how its scripts are checked."""
    selection_size: Whole = 0
    """Use only this many selection tasks; 0 uses all."""
    selection_draw: Literal["random", "first"] = "random"
    """Which ones: sampled with `seed`, or the first ones."""
    selection_replicates: Count = 1
    """Rollouts per selection task. More rollouts give less noise."""
    test: bool = True
    """At the end, run the initial skill and the one that is shipped on the sealed test split; with the recipe `reflact`
    the final one, too."""
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
    rewrite_extra: dict[str, Any] = field(default_factory=dict[str, Any])
    """For `rewrite_from_suggestions`: fields of the request for the rewrite, such as another `reasoning_effort`, beside
    those of `sampling.extra`."""

    proposer: str = "analysts"
    """What proposes changes. `analysts`: the optimizer's model reads rollouts and proposes edits. `plain`: the same for
    small models, one short question for each sort of failures. `exemplars`: worked examples and rules, made from
    rollouts and references without any model. Or a class of your own: `module:Class`, or
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
        "proposer_options", "recipe", "ledger", "shipping", "guards", "selection_draw", "support", "rewrite_extra",
        "package",
    )  # fmt: skip
    assumed_before: ClassVar[Mapping[str, Any]] = {
        "recipe": "reflact",
        "guards": GuardSettings(enabled=False),
        "selection_draw": "first",
        "support": "minibatch",
        "ledger": LedgerSettings(batch_size=8, block_size=1),  # its default before sizes were left to prices
    }
    used_if: ClassVar[Mapping[str, tuple[UsedIf, ...]]] = {
        "ledger": (UsedIf("recipe", ("ledger",)),),
        "shipping.reserve": (UsedIf("recipe", ("ledger",)),),
        **dict.fromkeys(_FOR_REFLACT, (UsedIf("recipe", ("reflact",)),)),
        **dict.fromkeys(
            _FOR_OWN_PROPOSERS, (UsedIf("recipe", ("reflact",)), UsedIf("proposer", other_than=("analysts",)))
        ),
        "exemplars": (UsedIf("proposer", ("exemplars",)),),
        "test_size": (UsedIf("test", (True,)),),
        "test_replicates": (UsedIf("test", (True,)),),
    }

    @property
    def identity(self) -> dict[str, Any]:
        """The fields that are hashed into a run's identity. The proposer, the prompts and the optimizer's sampling are
        hashed there by themselves."""
        apart = {"proposer", "exemplars", "sampling", "prompts", *(("ledger",) if self.recipe == "reflact" else ())}
        fields = {name: value for name, value in get_recorded(self).items() if name not in apart}
        return {**fields, "gate": get_recorded(self.gate)}

    @property
    def rollouts_per_request(self) -> int:
        """The size of a minibatch, where nothing was chosen the default."""
        return 8 if self.minibatch_size == "auto" else self.minibatch_size

    @property
    def epoch_count(self) -> int:
        """The number of epochs, as it was set or by default."""
        return self.epochs or 4

    @property
    def tests_final(self) -> bool:
        """Whether the final skill is tested even if another one is shipped. That of the recipe `ledger` is one of the
        candidates, and a test of it would take rollouts that its lines need."""
        return self.test and self.recipe == "reflact"


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
    if settings.recipe == "ledger" and settings.shipping.rule == "best":
        raise ConfigError(
            "train.shipping.rule is best, but the recipe `ledger` measures nothing on the selection split before it "
            "ships: use `certain`, or set train.recipe to reflact"
        )
    return settings
