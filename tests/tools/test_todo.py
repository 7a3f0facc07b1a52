import json

import pytest

from ludus.tools import BadArguments, Tool
from ludus.tools.toolsets import make_tools


async def ask(todo: Tool, **arguments: object) -> list[dict[str, str]]:
    return json.loads(await todo.run(arguments))  # pyright: ignore[reportArgumentType]


async def test_write_read_and_merge():
    (todo,) = make_tools(["todo"], None)
    assert await ask(todo) == []
    written = await ask(todo, items=[{"id": "1", "text": "look"}, {"id": 2, "text": "mend", "status": "in_progress"}])
    assert written == [
        {"id": "1", "text": "look", "status": "pending"},
        {"id": "2", "text": "mend", "status": "in_progress"},
    ]
    assert await ask(todo) == written
    merged = await ask(todo, items=[{"id": "2", "status": "completed"}, {"id": "3", "text": "rest"}], merge=True)
    assert [item["status"] for item in merged] == ["pending", "completed", "pending"]
    assert [item["text"] for item in merged] == ["look", "mend", "rest"]
    assert await ask(todo, items=[{"id": "9", "text": "new"}]) == [{"id": "9", "text": "new", "status": "pending"}]
    assert await ask(todo, items=[]) == []


async def test_each_rollout_has_its_own_list():
    (mine,) = make_tools(["todo"], None)
    (yours,) = make_tools(["todo"], None)
    await ask(mine, items=[{"id": "1", "text": "look"}])
    assert await ask(yours) == []


async def test_mistakes_change_nothing():
    (todo,) = make_tools(["todo"], None)
    before = await ask(todo, items=[{"id": "1", "text": "look"}])
    with pytest.raises(ValueError, match="item '2' is new, so it needs a text"):
        await ask(todo, items=[{"id": "1", "status": "completed"}, {"id": "2"}], merge=True)
    with pytest.raises(BadArguments, match=r"Invalid enum value 'done' - at `items\[0\].status`"):
        await ask(todo, items=[{"id": "1", "status": "done"}])
    with pytest.raises(BadArguments, match="unknown field `priority`"):
        await ask(todo, items=[{"id": "1", "text": "x", "priority": "high"}])
    assert await ask(todo) == before


async def test_items_written_as_text_are_understood():
    (todo,) = make_tools(["todo"], None)
    assert (await ask(todo, items='[{"id": "1", "text": "look"}]'))[0]["text"] == "look"
