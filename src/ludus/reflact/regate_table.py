"""The decisions of a training run beside those of another gate, as a table."""

from collections.abc import Sequence

from ludus.command.terminal import make_console, make_table, make_text
from ludus.reflact.regate import Redecision
from ludus.reflact.report.run_words import format_difference


def print_redecisions(decisions: Sequence[Redecision], rule: str) -> None:
    """Print each decision with what the other gate makes of it, and what would have been saved."""
    console = make_console()
    if not decisions:
        console.print("no candidate was measured in this run: there is nothing to decide again")
        return
    table = make_table("candidate", "in the run", f"by {rule}", "points", "better", "items", whole=(1, 2))
    for each in decisions:
        paired = each.verdict.paired
        change, better = (format_difference(paired), f"{paired.better:.0%}") if paired else ("", "")
        decision = make_text(each.verdict.decision.value, "yellow" if each.differs else "")
        table.add_row(make_text(each.origin), each.before, decision, change, better, f"{each.used} of {each.measured}")
    console.print(table)
    console.print(make_text(f"\n{describe_redecisions(decisions)}"), soft_wrap=True)


def describe_redecisions(decisions: Sequence[Redecision]) -> str:
    """The result in words."""
    differ = sum(each.differs for each in decisions)
    used, measured = sum(each.used for each in decisions), sum(each.measured for each in decisions)
    count = f"{differ} of {len(decisions)} decisions {'differs' if differ == 1 else 'differ'}"
    saved = f"the candidates would have been measured on {used} instead of {measured} items"
    return (
        f"{count}; {saved}. No rollout was run. Each decision is taken by itself: after another one, the run would "
        "have gone on with other candidates"
    )
