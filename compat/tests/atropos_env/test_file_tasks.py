"""The items of a file as tasks of a training run."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pydantic")

from ludus.compat.atropos_env.base_env import BaseEnv
from ludus.compat.atropos_env.file_host import load_file
from ludus.compat.atropos_env.file_modules import list_atropos_modules
from ludus.compat.atropos_env.file_tasks import list_tasks
from ludus.errors import ConfigError

FILE = """
from atroposlib.envs.base import BaseEnv


class Small(BaseEnv):
    async def setup(self):
        self.items = iter({items})

    async def get_next_item(self):
        return next(self.items, None)
"""


def read(folder: Path, items: str, steps: int = 10, setup: str = "") -> list[Any]:
    path = folder / "small.py"
    path.write_text(FILE.format(items=items) + setup)
    loaded = load_file(path, "", list_atropos_modules(), (BaseEnv,))
    try:
        return list_tasks(loaded, {"total_steps": steps}, "train")
    finally:
        loaded.close()


def test_items_that_were_drawn_before_are_left_out_and_numbers_stay(tmp_path: Path):
    tasks = read(tmp_path, "[{'question': 'a'}, {'question': 'a'}, {'prompt': 'b'}, ('c',)]")
    assert [task.prompt for task in tasks[:2]] == ["a", "b"]
    assert tasks[2].prompt == tasks[2].id  # an item that is opaque
    again = read(tmp_path, "[{'question': 'a'}, {'question': 'a'}, {'prompt': 'b'}, ('c',)]")
    assert again == tasks
    assert len(read(tmp_path, "[{'question': str(n)} for n in range(9)]", steps=3)) == 3


async def test_listing_works_while_a_loop_runs(tmp_path: Path):
    assert len(read(tmp_path, "['x']")) == 1


def test_a_file_that_asks_its_model_first_is_told_so(tmp_path: Path):
    calling = "\n    async def get_next_item(self):\n        return await self.server.chat_completion(messages=[])\n"
    with pytest.raises(ConfigError, match="use process"):
        read(tmp_path, "[]", setup=calling)
