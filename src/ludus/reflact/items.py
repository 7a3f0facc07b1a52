"""What can be proposed, in the three update modes: an edit, a suggestion in words, or a whole document.

An item knows where it comes from: the kind of rollouts, their tasks, and how many they are. These are filled in from
the minibatches that were really read; whatever a model claims about them is overwritten.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
from msgspec import Struct

from ludus.reflact.train_settings import UpdateMode
from ludus.skill import Edit, Source


class Suggestion(Struct, frozen=True, omit_defaults=True, tag="suggestion", tag_field="form"):
    """A change in words, for the one who rewrites the document."""

    kind: Literal["add_rule", "remove_rule", "merge_rules", "reorganize", "compress", "clarify"]
    instruction: str
    title: str = ""
    motivation: str = ""
    priority: str = ""
    source: Source = "failure"
    support: int = 0
    level: int = 0
    evidence: tuple[str, ...] = ()


class Document(Struct, frozen=True, omit_defaults=True, tag="document", tag_field="form"):
    """A whole replacement document."""

    text: str
    title: str = ""
    changes: tuple[str, ...] = ()
    source: Source = "failure"
    support: int = 0
    level: int = 0
    evidence: tuple[str, ...] = ()


Item = Edit | Suggestion | Document


@dataclass(frozen=True)
class Form:
    """What an update mode proposes."""

    item: type[Edit] | type[Suggestion] | type[Document]
    prompt: str
    """The part of a prompt that describes an item."""
    limited: bool = True
    """Whether a budget of items makes sense."""


FORMS: dict[UpdateMode, Form] = {
    "patch": Form(Edit, "item_edit"),
    "rewrite_from_suggestions": Form(Suggestion, "item_suggestion"),
    "full_rewrite_minibatch": Form(Document, "item_document", limited=False),
}


def credited(item: Item, source: Source, evidence: Iterable[str], level: int = 0) -> Item:
    """The item with where it really comes from."""
    tasks = tuple(dict.fromkeys(evidence))
    return msgspec.structs.replace(item, source=source, support=len(tasks), level=level, evidence=tasks)


def merged_credit(item: Item, parents: Sequence[Item], level: int) -> Item:
    """An item that was made of others: their evidence together."""
    first: Source = parents[0].source
    source: Source = first if all(parent.source == first for parent in parents) else "mixed"
    return credited(item, source, (task for parent in parents for task in parent.evidence), level)


def described(item: Item) -> str:
    """The item in words, for a prompt: what it would change, not where it comes from."""
    match item:
        case Edit():
            target = f"\ntarget: {item.target}" if item.target else ""
            return f"op: {item.op}{target}" + (f"\ncontent: {item.content}" if item.content else "")
        case Suggestion():
            lines = [f"kind: {item.kind}", f"title: {item.title}", f"instruction: {item.instruction}"]
            return "\n".join([*lines, f"priority: {item.priority}" if item.priority else ""]).rstrip()
        case Document():
            changes = "".join(f"\n- {change}" for change in item.changes)
            return f"title: {item.title}\nchanges:{changes or ' not said'}\ndocument:\n{item.text}"


def numbered(items: Sequence[Item]) -> str:
    """Items for a prompt, numbered from 1, each with the number of rollouts behind it."""
    blocks = (
        f"[{number}] from {item.support} {item.source} rollouts\n{described(item)}"
        for number, item in enumerate(items, 1)
    )
    return "\n\n".join(blocks) or "None."


def short(item: Item) -> str:
    """The item in a line or two, to be remembered as tried."""
    match item:
        case Edit():
            where = f" at {item.target!r}" if item.target else ""
            return f"{item.op}{where}: {item.content}".rstrip(": ")
        case Suggestion():
            return f"{item.kind}: {item.title}. {item.instruction}".replace(": . ", ": ")
        case Document():
            return f"rewrite: {item.title}. {'; '.join(item.changes)}".rstrip(". ")
