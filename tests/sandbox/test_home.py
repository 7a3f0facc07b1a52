"""Paths in the home folder of a slot."""

import posixpath

from ludus.sandbox import SandboxSpec
from ludus.sandbox.home import resolve_path
from ludus.sandbox.profiles import open_pool


async def test_a_path_in_home_is_where_commands_of_the_slot_find_it():
    async with open_pool("local") as pool, pool.lease(SandboxSpec()) as box:
        path = await resolve_path("~/.agent/skill.md", box)
        assert posixpath.isabs(path) and "~" not in path
        await box.write(path, b"Be brief.")
        assert (await box.exec("cat ~/.agent/skill.md")).text == "Be brief."


async def test_other_paths_stay_as_they_are():
    async with open_pool("local") as pool, pool.lease(SandboxSpec()) as box:
        for path in ("/tmp/skills/a", "a/b", "~", "~other/a", "a/~/b"):
            assert await resolve_path(path, box) == path
