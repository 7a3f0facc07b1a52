"""The `claim` section of the settings: what a run measures so that a sceptic can judge its claim."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

from msgspec import Meta

from ludus.settings import Settings, UsedIf
from ludus.types import Count


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
