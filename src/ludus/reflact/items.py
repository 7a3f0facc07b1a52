"""Items: the proposals of the three update modes. An item is an edit, a suggestion in words, or a whole document.

An item records its origin: the source of the rollouts, their tasks and their number. These are filled in from the
minibatch that was read. Whatever a model claims about them is overwritten.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
from msgspec import Struct

from ludus.reflact.train_settings import UpdateMode
from ludus.skill import Edit, Source


class Suggestion(Struct, frozen=True, omit_defaults=True, tag="suggestion", tag_field="form"):
    """A change in words, for the request that rewrites the document."""

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
class ItemForm:
    """The kind of item of an update mode."""

    item: type[Edit] | type[Suggestion] | type[Document]
    prompt: str
    """The name of the prompt part that describes such an item."""
    limited: bool = True
    """Whether the budget limits the number of items."""


FORMS: dict[UpdateMode, ItemForm] = {
    "patch": ItemForm(Edit, "item_edit"),
    "rewrite_from_suggestions": ItemForm(Suggestion, "item_suggestion"),
    "full_rewrite_minibatch": ItemForm(Document, "item_document", limited=False),
}


def credit_item(item: Item, source: Source, evidence: Iterable[str], level: int = 0) -> Item:
    """The item with its true origin."""
    tasks = tuple(dict.fromkeys(evidence))
    return msgspec.structs.replace(item, source=source, support=len(tasks), level=level, evidence=tasks)


def credit_merged(item: Item, parents: Sequence[Item], level: int) -> Item:
    """A merged item with the evidence of all the items it was made of."""
    first: Source = parents[0].source
    source: Source = first if all(parent.source == first for parent in parents) else "mixed"
    return credit_item(item, source, (task for parent in parents for task in parent.evidence), level)


def describe_item(item: Item) -> str:
    """The item as text for a prompt: the change, without its origin."""
    match item:
        case Edit():
            target = (f"\npath: {item.path}" if item.path else "") + (f"\ntarget: {item.target}" if item.target else "")
            return f"op: {item.op}{target}" + (f"\ncontent: {item.content}" if item.content else "")
        case Suggestion():
            lines = [f"kind: {item.kind}", f"title: {item.title}", f"instruction: {item.instruction}"]
            return "\n".join([*lines, f"priority: {item.priority}" if item.priority else ""]).rstrip()
        case Document():
            changes = "".join(f"\n- {change}" for change in item.changes)
            return f"title: {item.title}\nchanges:{changes or ' not said'}\ndocument:\n{item.text}"


def number_items(items: Sequence[Item]) -> str:
    """The items as text for a prompt, numbered from 1, each with its number of rollouts."""
    blocks = (
        f"[{number}] from {item.support} {item.source} rollouts\n{describe_item(item)}"
        for number, item in enumerate(items, 1)
    )
    return "\n\n".join(blocks) or "None."


def summarize_item(item: Item) -> str:
    """The item in one or two lines, for the list of what was tried."""
    match item:
        case Edit():
            where = (f" {item.path}" if item.path else "") + (f" at {item.target!r}" if item.target else "")
            return f"{item.op}{where}: {item.content}".rstrip(": ")
        case Suggestion():
            return f"{item.kind}: {item.title}. {item.instruction}".replace(": . ", ": ")
        case Document():
            return f"rewrite: {item.title}. {'; '.join(item.changes)}".rstrip(". ")
