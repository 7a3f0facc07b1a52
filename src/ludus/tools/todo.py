"""A tool that keeps the agent's list of things to do.

The list belongs to one rollout and is outside the slot: it is the agent's memory, and is not judged.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta, Struct

from ludus.encoding import to_json
from ludus.sandbox import Sandbox
from ludus.tools import Tool, tool

Status = Literal["pending", "in_progress", "completed", "cancelled"]


class Todo(Struct, frozen=True):
    id: str
    text: str
    status: Status


class TodoEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """An item as the model writes it. With `merge`, fields that it leaves out stay the same."""

    id: Annotated[str | int, Meta(description="A short name of your choice.")]
    text: Annotated[str | None, Meta(description="What is to be done.")] = None
    status: Annotated[Status | None, Meta(description="pending if not given.")] = None


@dataclass
class TodoList:
    """The list of one rollout."""

    items: Mapping[str, Todo] = field(default_factory=dict[str, Todo])


def todo_tools(_box: Sandbox | None) -> Sequence[Tool]:
    return [todo.bind(TodoList())]


@tool(bound=True)
async def todo(
    store: TodoList,
    items: Annotated[list[TodoEntry] | None, Meta(description="The new list. Leave it out to read the list.")] = None,
    merge: Annotated[bool, Meta(description="Update items by id and add new ones, instead of a new list.")] = False,
) -> str:
    """Keep a list of what is to be done, in order. Useful for work of three steps or more: write the plan, have one
    item in_progress at a time, mark it completed when it is. Returns the whole list."""
    if items is not None:
        store.items = merge_items(store.items if merge else {}, items)
    return to_json(list(store.items.values())).decode()


def merge_items(old: Mapping[str, Todo], entries: Iterable[TodoEntry]) -> dict[str, Todo]:
    """The old list with the entries merged in: known ids are updated in place, new ones are added at the end."""
    items = dict(old)
    for entry in entries:
        key = str(entry.id)
        before = items.get(key)
        text = entry.text or (before.text if before else "")
        if not text:
            raise ValueError(f"todo: item '{key}' is new, so it needs a text")
        items[key] = Todo(key, text, entry.status or (before.status if before else "pending"))
    return items
