"""The `rl` section of the settings: how weights are trained from rollouts."""

from typing import ClassVar, Literal

from ludus.rl.worker_settings import LengthPolicy, PartialPolicy
from ludus.settings import Settings
from ludus.types import Count, Positive, Whole

AdvantageScale = Literal["none", "std"]


class RlSettings(Settings, frozen=True):
    """How `ludus rl` trains weights (`docs/rl.md`). Which trainer does it is in `trainer`."""

    steps: Count = 60
    """The number of updates. A resumed run may have more."""
    groups: Count = 12
    """The number of tasks of each update."""
    group_size: Count = 16
    """The number of rollouts of each task."""
    staleness: Whole = 0
    """By how many updates a rollout may be older than the policy that learns from it. 0: strictly on-policy, and
    resuming gives the same records. Above 0, rollouts and updates go on at the same time; a step waits for groups that
    would be older after it, so that slow tasks are learned from like fast ones."""
    split: str = "train"
    """The environment's split to train on."""
    limit: Count | None = None
    """Train only on this many tasks: the first ones of the split."""
    seed: int = 0
    """The seed of the order of tasks and of all rollouts."""
    scale: AdvantageScale = "none"
    """Advantages are scores minus their group's mean; `std`: divided by the group's standard deviation, too."""
    row_tokens: Count | None = None
    """The longest row, in tokens; not set: no limit."""
    too_long: LengthPolicy = "group"
    """What to do with a longer row, as in `serve.too_long`."""
    equal_scores: PartialPolicy = "drop"
    """Whether groups whose scores are all equal go to the trainer. They have no advantage, but a trainer with a KL term
    (`trainer.kl`) learns from them: it keeps the policy from settling on a wrong answer."""
    partial: PartialPolicy = "send"
    """Whether groups are trained on in which rollouts have no score, or no row."""
    eval_every: Whole = 10
    """Evaluate before the first update, and again after this many updates each time; 0: never."""
    eval_split: str = "validation"
    """The environment's split to evaluate on. It must be another one than `split`."""
    eval_limit: Count | None = None
    """Evaluate only on this many tasks: the first ones of the split."""
    eval_size: Count = 1
    """The number of rollouts of each task in an evaluation."""
    checkpoint_every: Count = 1
    """Save the trainer's state each time after this many updates. A resumed run computes the updates after the last
    checkpoint again, from the stored rollouts."""
    checkpoints: Count = 2
    """The number of checkpoints that are kept: the last ones. That of the best score on held-out tasks is kept too."""
    server: str = ""
    """The address of a trajectory server (`ludus api`, or Atropos' `run-api`) through which groups go to the trainer;
    empty: directly."""
    token_var: str = ""
    """The NAME of the environment variable that holds the server's bearer token."""

    dollars_per_hour: Positive | None = None
    """The price of the machine, for `--dry-run`."""
    dollars_per_million: Positive | None = None
    """The price of a million tokens, prompts and replies together, for `--dry-run`, as of a service such as Tinker."""

    may_change: ClassVar[tuple[str, ...]] = (
        "steps", "checkpoint_every", "checkpoints", "dollars_per_hour", "dollars_per_million",
    )  # fmt: skip
    added_later: ClassVar[tuple[str, ...]] = ("dollars_per_hour", "dollars_per_million")
