"""Old and new scores on a terminal."""

import io

from tests.cli_kit import print_to_text

from ludus.batch.rescore_table import SHOWN, RescoreBar, print_rescored
from ludus.rescoring import RescoreReport, RescoreTally, ScoreChange
from ludus.stats import Interval, ScoreCell, make_failure_ledger


def make_report(changes: int) -> RescoreReport:
    return RescoreReport(
        rollouts=30,
        judged=29,
        tasks=10,
        mean_before=0.25,
        mean_after=0.5,
        interval_before=Interval(0.1, 0.4),
        interval_after=None,
        raised=changes,
        lowered=0,
        unchanged=3,
        new=1,
        changes=tuple(ScoreChange(f"t{n}", 0, None if n else 0.0, 1.0, "[bold]why") for n in range(changes)),
        unjudged={"its files are gone": 1},
        failures=make_failure_ledger([ScoreCell(14.5, 29, 1)], {"unscored": 1}),
    )


def test_old_and_new_stand_side_by_side():
    text = print_to_text(lambda console: print_rescored(make_report(SHOWN + 2), console))
    assert "mean  0.25        0.5" in text and "[0.1, 0.4]" in text
    assert "29 of 30 rollouts judged, 10 tasks: 22 higher, 0 lower, 3 unchanged, 1 had no score before" in text
    assert "t0#1" in text and "none" in text and "[bold]why" in text and "… and 2 more" in text
    assert "not judged: 1: its files are gone" in text
    assert "1 of 30 rollouts without a score (unscored 1): the mean is 0.483 if each is 0, 0.517 if each is 1" in text


def test_no_bar_is_drawn_in_a_pipe():
    file = io.StringIO()
    with RescoreBar("sums", 3, file=file) as bar:
        bar(RescoreTally(rollouts=1))
    assert file.getvalue() == ""
