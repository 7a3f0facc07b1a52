"""Training rows for `process`, `check` and `export`: the vocabulary to check them with, and how they are printed."""

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from ludus.models import Model
from ludus.rl.atropos_rows import build_columns, to_fields
from ludus.rl.row_checks import Vocabulary
from ludus.rl.rows import NotExact
from ludus.suspects import SuspectPolicy, weigh_suspects
from ludus.tokens import find_token_model
from ludus.types import Group

if TYPE_CHECKING:
    from ludus.batch import MoreFields
    from ludus.tokens.tokenizer import Tokenizer


def print_line(line: bytes) -> None:
    """Print a line in UTF-8, in every locale."""
    sys.stdout.buffer.write(line + b"\n")


def make_vocabulary(tokenizer: "Tokenizer", *, drift: bool = False) -> Vocabulary:
    """What the checks know about ids. With `drift`, they also compare the ids with those of the decoded text."""

    def encode_again(ids: Iterable[int]) -> list[int]:
        return tokenizer.encode(tokenizer.decode(list(ids)))

    return Vocabulary(tokenizer.size, frozenset(tokenizer.stop_tokens), encode_again if drift else None)


def make_row_fields(model: Model, notify: Callable[[str], None], suspects: SuspectPolicy = "zero") -> "MoreFields":
    """The function that adds Atropos' columns to a line of `groups.jsonl`, if every rollout has exact tokens.

    Rows with a fatal finding are left out; `notify` is called with the reason. `suspects` says what scores the rows of
    suspects have.
    """
    exact = find_token_model(model)
    vocabulary = make_vocabulary(exact.codec.tokenizer) if exact is not None else Vocabulary()

    def make_fields(group: Group) -> Mapping[str, object]:
        try:
            made, report = build_columns(weigh_suspects(group, suspects), vocabulary)
        except NotExact:
            return {}
        for finding in report.findings:
            if finding.level == "fatal":
                notify(f"task '{group.task.id}': a row was left out: {finding.message} [{finding.code}]")
        return to_fields(made) if made is not None else {}

    return make_fields
