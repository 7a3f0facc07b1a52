"""A patch as a person has reviewed it: the last review of a night's training run, staged beside the night's own patch.

The reviewed patch has a receipt of its own. It claims nothing that was not measured for it: the claim of the night is
about another text. `ludus review RUN --measure` measures the reviewed one.
"""

from pathlib import Path

from msgspec.structs import replace

from ludus.errors import ConfigError
from ludus.reflact.review import ReviewMeasure, SkillReview, read_measures, read_reviews
from ludus.sleep import live_tree as trees
from ludus.sleep.night import RECEIPT, REVIEWED_MARK, RUN, Receipt, read_struct
from ludus.sleep.staging import read_live, stage
from ludus.store import RunDir


def stage_reviewed(folder: Path, receipt: Receipt) -> tuple[Path, Receipt]:
    """Stage the last review of a night's run. Returns where it is, and its receipt.

    Raises:
        ConfigError: there is no review, or the live skill is not the one that was trained.
    """
    review, measure = _read_last(folder, receipt)
    place = folder.with_name(f"{folder.name}{REVIEWED_MARK}{review.number}")
    if (known := read_struct(place / RECEIPT, Receipt)) is not None:
        return place, known
    live = read_live(Path(receipt.live))
    if changed := trees.list_changes(receipt.base_files, live.files):
        raise ConfigError(f"{receipt.live} has changed since the night: {'; '.join(changed[:5])}. Nothing was done")
    if review.skill == live.skill:
        raise ConfigError(
            f"review {review.number} of {receipt.run} leaves the skill as it is: there is nothing to adopt"
        )
    said = f"review {review.number} by {review.who or 'a person'}; "
    own = replace(
        receipt,
        measured=measure is not None,
        claim=said + (measure.sentence if measure else "not measured (ludus review RUN --measure)"),
        difference=measure.to_initial.difference if measure and measure.to_initial else None,
        interval=measure.to_initial.interval if measure and measure.to_initial else None,
        sealed=measure.to_initial.tasks if measure and measure.to_initial else 0,
        deltas=(),
    )
    return place, stage(place, live, review.skill, own)


def _read_last(folder: Path, receipt: Receipt) -> tuple[SkillReview, ReviewMeasure | None]:
    if not receipt.run:
        raise ConfigError("--reviewed: nothing was trained in this night, so there is no run to review")
    with RunDir.read(folder / RUN) as run:
        reviews, measures = read_reviews(run), read_measures(run)
    if not reviews:
        raise ConfigError(f"--reviewed: {receipt.run} has not been reviewed: ludus review {folder / RUN}")
    last = reviews[-1]
    return last, next((each for each in reversed(measures) if each.skill == last.skill.hash), None)
