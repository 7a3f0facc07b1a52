"""What a run of `ludus triggers` found, and what it claims. Pure.

Nothing is claimed if the controls say that the instrument cannot tell descriptions apart, or if there are no sealed
queries. A gain that another skill pays for is named.
"""

from collections.abc import Sequence

from msgspec import Struct

from ludus.catalogue import Catalogue
from ludus.stats import PairedStats
from ludus.triggers.controls import ControlReport
from ludus.triggers.description_training import DescriptionRound
from ludus.triggers.trigger_stats import QueryResult, TriggerChange, TriggerReport, compare_results, list_skill_changes


class TriggerClaim(Struct, frozen=True, kw_only=True):
    """What training is said to have done, on sealed queries."""

    sentence: str
    gain: bool
    """Whether the trained catalogue is better, and the difference can be told from chance."""
    paired: PairedStats | None = None
    changes: tuple[TriggerChange, ...] = ()
    paid: tuple[str, ...] = ()
    """Skills whose own queries do worse with the trained catalogue."""
    unchecked: int = 0
    """Sealed queries whose right skill no person has checked: a model proposed them, or a transcript has them."""


class TriggerOutcome(Struct, frozen=True, kw_only=True):
    """The result of a run: `triggers.json`."""

    schema: int = 1
    controls: ControlReport
    report: TriggerReport
    """Of the catalogue as it was given, on all queries; of a training run, on the sealed ones."""
    rounds: tuple[DescriptionRound, ...] = ()
    trained: Catalogue | None = None
    """The catalogue that is proposed; None if it was not trained, or nothing is better than what was given."""
    claim: TriggerClaim | None = None

    @property
    def silence(self) -> str:
        """Why nothing could be learned: no reply of the optimizer was usable. Empty if one was."""
        problems = [each.problem for each in self.rounds]
        return problems[0] if problems and all(problems) else ""


def make_claim(
    controls: ControlReport, trained: Sequence[QueryResult], initial: Sequence[QueryResult], names: Sequence[str]
) -> TriggerClaim:
    """The claim of a trained catalogue against the given one, on sealed queries."""
    if not controls.works:
        return TriggerClaim(sentence="Nothing is claimed: the controls failed.", gain=False)
    paired = compare_results(trained, initial)
    if paired is None or paired.tasks < 2:
        return TriggerClaim(sentence="Nothing is claimed: there are not enough sealed queries.", gain=False)
    changes = list_skill_changes(trained, initial, names)
    paid = tuple(each.skill for each in changes if each.paired is not None and each.paired.difference < 0)
    band = f"[{100 * paired.interval.low:+.0f}, {100 * paired.interval.high:+.0f}]"
    unchecked = sum(not each.query.is_checked for each in trained)
    of_these = f", {unchecked} of which no person has checked" if unchecked else ""
    size = f"{100 * paired.difference:+.1f} points {band} on {paired.tasks} sealed queries{of_these}"
    gain = paired.interval.low > 0
    said = f"The trained descriptions route better: {size}." if gain else f"No difference can be claimed: {size}."
    price = f" Queries of {', '.join(paid)} do worse." if paid else ""
    return TriggerClaim(
        sentence=said + price, gain=gain, paired=paired, changes=changes, paid=paid, unchecked=unchecked
    )
