"""What becomes of a name of another system: a setting, a module or a method that its files and configurations use.

Every published name has a verdict. Tests compare the names with the published ones and try the verdicts, and the tables
in compat/docs are made from them (`make docs`), so a page cannot promise what the code does not do.
"""

from collections.abc import Iterable
from typing import Literal, NamedTuple

Outcome = Literal["honoured", "warned", "refused", "no effect there"]
"""What happens to a name: it means here what it means there; it is ignored, and the user is told so by name; it is an
error that says what to use instead; it has no effect in the other system either."""


class Verdict(NamedTuple):
    """The verdict on one published name."""

    name: str
    outcome: Outcome
    becomes: str = ""
    """The setting or the part of Ludus that it stands for, if there is one."""
    remark: str = ""


def render_table(verdicts: Iterable[Verdict]) -> str:
    """A table in Markdown, in the order of the names that are given."""
    rows = "".join(_render_row(each) for each in verdicts)
    return f"| name | outcome | what it is here |\n|---|---|---|\n{rows}"


def _render_row(verdict: Verdict) -> str:
    becomes = ", ".join(f"`{each}`" for each in verdict.becomes.split())
    meaning = ": ".join(part for part in (becomes, verdict.remark) if part)
    return f"| `{verdict.name}` | {verdict.outcome} | {meaning.replace('|', '&#124;')} |\n"
