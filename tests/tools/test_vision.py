"""The toolset `vision`: what the model is asked, and which pictures may be looked at."""

import base64
from typing import Any

import pytest
from tests.sandbox_kit import make_pool

from ludus.models.scripted import ScriptedModel
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.sandbox.local.unisolated import Local
from ludus.tools import BadArguments
from ludus.tools.vision import Viewer, make_vision_toolset

PNG = b"\x89PNG\r\n\x1a\n" + b"rest"


class Seen:
    """A model that remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def reply(self, messages, tools, sampling) -> str:
        self.asked.append(messages[-1])
        return "A cat."


async def look(seen: Seen, image: str, *, network: bool = False, files: dict[str, bytes] | None = None) -> str:
    toolset = make_vision_toolset(Viewer(ScriptedModel(seen.reply)))

    async def go(box: Sandbox | None) -> str:
        (tool,) = toolset.make(box) if toolset.make else ()
        found = await tool.run({"image": image, "question": "What is it?"})
        assert isinstance(found, str)
        return found

    async def in_slot() -> str:
        local = Local()
        try:
            async with make_pool(local.create) as pool, pool.lease(SandboxSpec(network=network)) as box:
                for path, data in (files or {}).items():
                    await box.write(path, data)
                return await go(box)
        finally:
            await local.close()

    return await (go(None) if files is None else in_slot())


async def test_the_model_is_asked_about_a_file_of_the_slot():
    seen = Seen()
    assert await look(seen, "pics/cat.png", files={"pics/cat.png": PNG}) == "A cat."
    (asked,) = seen.asked
    assert asked.content == "What is it?"
    assert asked.images[0].url == "data:image/png;base64," + base64.b64encode(PNG).decode()


async def test_an_address_is_for_slots_with_a_network():
    seen = Seen()
    assert await look(seen, "https://example.com/cat.png", network=True, files={}) == "A cat."
    assert seen.asked[0].images[0].url == "https://example.com/cat.png"


@pytest.mark.parametrize(
    ("image", "files", "words"),
    [
        ("https://example.com/cat.png", {}, "There is no network"),
        ("https://example.com/cat.png", None, "There is no network"),
        ("cat.png", None, "There are no files here"),
        ("cat.png", {}, "cat.png cannot be read"),
        ("cat.png", {"cat.png": b"meow"}, "cat.png is no PNG"),
    ],
)
async def test_other_pictures_are_the_agents_mistake(image: str, files: dict[str, bytes] | None, words: str):
    seen = Seen()
    with pytest.raises(BadArguments, match=words):
        await look(seen, image, files=files)
    assert seen.asked == [], "the model was not asked"
