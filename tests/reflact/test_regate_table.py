"""The result of `ludus regate` in words."""

from ludus.reflact.gate import Decision, Verdict
from ludus.reflact.regate import Redecision
from ludus.reflact.regate_table import describe_redecisions


def test_the_sentence_counts_what_differs_and_what_would_have_been_saved():
    def decide(before: str, decision: Decision, used: int) -> Redecision:
        return Redecision("step_0001", before, Verdict(decision, None, None, None, 0), used, 40)

    same = decide("reject", Decision.UNDECIDED, 8)
    other = decide("reject", Decision.ACCEPT, 16)
    assert "1 of 2 decisions differs; the candidates would have been measured on 24 instead of 80 items" in (
        describe_redecisions([same, other])
    )
    assert "0 of 1 decisions differ;" in describe_redecisions([decide("accept_new_best", Decision.ACCEPT, 8)])
