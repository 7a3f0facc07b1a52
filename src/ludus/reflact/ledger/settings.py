"""The settings of the recipe `ledger`, and its constants.

The constants were chosen on simulated worlds (`docs/optimizer.md`). Few runs have a reason to change them.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from ludus.settings import Settings
from ludus.types import Count

Probability = Annotated[float, Meta(ge=0.0, le=1.0)]
_OpenProbability = Annotated[float, Meta(gt=0.0, lt=1.0)]


class LedgerTuning(Settings, frozen=True, kw_only=True, omit_defaults=True):
    """The constants of the ledger."""

    leave_out: Probability = 0.2
    """How often the lines about a situation are left out of a rollout's text, to see what happens without them: a
    quarter as often where it is not known yet whether the line does harm."""
    slip: _OpenProbability = 0.08
    """The probability that a situation spoils a rollout although a line that works is in the text."""
    prior: _OpenProbability = 0.6
    """The probability that a new line works, before any evidence."""
    prior_weight: float = 4.0
    """How many settled lines the prior counts for. The share of settled lines that work moves it."""
    suspected: float = 3.0
    """What a suspicion adds to the log-odds that a passage of the initial skill hurts a kind of task. For other lines,
    what suspicions are worth is learned in the run."""
    cleared: float = 0.6
    """What a failed rollout without a suspicion takes off these log-odds."""
    harm_prior: float = -2.2
    """These log-odds before any evidence."""
    passage_gain: float = 0.005
    """The gain in accuracy that a passage of the initial skill is taken to have before any evidence: someone wrote it
    for a reason."""
    drop_passage: Probability = 0.1
    """The probability of a net gain below which a passage of the initial skill is left out of the careful candidates
    for shipping. The working text is bolder (`stay_net`)."""
    harm_cost: float = 0.25
    """The accuracy that such a passage costs on a kind of task that it surely hurts."""
    price: float = 0.002
    """The gain in accuracy that a line must exceed: a longer text is not free."""
    per_situation: Count = 3
    """The most lines about one situation that compete."""
    enter_works: Probability = 0.55
    """The probability of working above which a line enters the working text."""
    enter_net: Probability = 0.4
    """The probability of a net gain above which a line enters the working text."""
    stay_works: Probability = 0.45
    """The same to stay in it."""
    stay_net: Probability = 0.25
    """The same to stay in it."""
    retire_works: Probability = 0.08
    """The probability of working below which a line is retired."""
    retire_net: Probability = 0.03
    """The probability of a net gain below which a line is retired."""

    added_later: ClassVar[tuple[str, ...]] = ("passage_gain", "drop_passage")


class LedgerSettings(Settings, frozen=True, kw_only=True, omit_defaults=True):
    """How the recipe `ledger` trains."""

    batch_size: Count | Literal["auto"] = "auto"
    """Train tasks per step. Half of them are chosen because they say something about undecided lines. `auto`: 8; with
    `minibatch_size` also `auto`, 24 where the prices of the models say that this costs less for the same result."""
    block_size: Count | Literal["auto"] = "auto"
    """How many tasks of a step share one text. 1: each rollout has a text of its own, which teaches most. More tasks
    per text save tokens if the server caches prompts. `auto`: 1, or more where `model.price.cached` says that this
    saves more than the further rollouts cost."""
    passages: Literal["trial", "keep"] = "trial"
    """Passages of the initial skill. `trial`: they are lines like any other: left out now and then, suspected, retired,
    and left out of what is shipped. `keep`: they stay. Front matter, regions of the trainer and what lies between
    `<!-- KEEP_START -->` and `<!-- KEEP_END -->` always stay."""
    most_proposals: Count = 8
    """The most proposals of a step that become lines."""
    tuning: LedgerTuning = LedgerTuning()
    """The constants of the ledger."""

    @property
    def tasks_per_step(self) -> int:
        """The batch size, where nothing was chosen the default."""
        return 8 if self.batch_size == "auto" else self.batch_size

    @property
    def tasks_per_text(self) -> int:
        """The block size, where nothing was chosen the default."""
        return 1 if self.block_size == "auto" else self.block_size

    added_later: ClassVar[tuple[str, ...]] = ("passages",)
    assumed_before: ClassVar[Mapping[str, Any]] = {"passages": "keep"}
