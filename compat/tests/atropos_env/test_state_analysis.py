"""Which attributes a file carries through a group, read from its code."""

import textwrap
from pathlib import Path

import pytest

from ludus.compat.atropos_env.base_env import BaseEnv
from ludus.compat.atropos_env.file_import import import_file
from ludus.compat.atropos_env.state_analysis import find_carried

HEAD = """
    from ludus.compat.atropos_env.base_env import BaseEnv

    class Env(BaseEnv):
        async def setup(self):
            self.iter = 0
"""

CARRIED = {
    "the item, from its choice to its score": (
        """
        async def get_next_item(self):
            self.current = {"answer": 1}
            return self.current

        async def collect_trajectories(self, item):
            return await self.server.completion(prompt="q"), self.current["answer"]
        """,
        ["current"],
    ),
    "the item, over a call of the model": (
        """
        async def collect_trajectories(self, item):
            self.item = item
            replies = await self.server.completion(prompt="q")
            return self.item
        """,
        ["item"],
    ),
    "from one method to another": (
        """
        async def collect_trajectories(self, item):
            self.item = item
            return await self.score([])

        async def score(self, rows):
            return self.item
        """,
        ["item"],
    ),
    "a part of an object, and of a dict": (
        """
        async def collect_trajectories(self, item):
            self.state.item = item
            self.memo["item"] = item
            await self.server.completion(prompt="q")
            return self.state.item, self.memo["item"]
        """,
        ["memo['item']", "state.item"],
    ),
    "a list that a group begins and fills": (
        """
        async def collect_trajectories(self, item):
            self.log = []
            for _ in range(3):
                self.log.append(await self.server.completion(prompt="q"))
        """,
        ["log"],
    ),
    "a game that a group resets": (
        """
        async def collect_trajectories(self, item):
            self.game.reset(item)
            move = await self.server.completion(prompt="q")
            return self.game.step(move)
        """,
        ["game"],
    ),
    "a name in setattr": (
        """
        async def collect_trajectories(self, item):
            setattr(self, "item", item)
            await self.server.completion(prompt="q")
            return self.item
        """,
        ["item"],
    ),
}
HARMLESS = {
    "counters, buffers and running records": """
        async def get_next_item(self):
            self.iter += 1
            self.index = self.index + 1
            return self.train[self.iter]

        async def collect_trajectories(self, item):
            self.begun += 1
            replies = await self.server.completion(prompt="q")
            self.scores.append(1.0)
            self.scores = self.scores[-10:]
            self.total, self.best = self.total + 1, max(self.best, 1.0)
            if len(replies) > self.most:
                self.most = len(replies)
            self.counts[item] = self.counts.get(item, 0) + 1
            print(self.begun, self.total)
            await self.server.completion(prompt="again")
            self.scores.append(2.0)
    """,
    "what only get_next_item reads again": """
        async def get_next_item(self):
            self.place = 3
            await self.refill()
            return self.boards[self.place]

        async def refill(self):
            self.boards = [1, 2, 3, 4]

        async def collect_trajectories(self, item):
            return await self.server.completion(prompt="q")
    """,
    "a value without a wait in between": """
        async def collect_trajectories(self, item):
            replies = await self.server.completion(prompt="q")
            self.last = replies
            return self.last
    """,
    "what is set up once": """
        async def collect_trajectories(self, item):
            if self.judge is None:
                self.judge = object()
            await self.server.completion(prompt="q")
            return self.judge
    """,
    "what metrics and evaluations write": """
        async def collect_trajectories(self, item):
            await self.server.completion(prompt="q")
            self.buffer.append(1)
            return self.buffer

        async def wandb_log(self, metrics=None):
            self.buffer = []

        async def evaluate(self):
            self.item = 1
            await self.server.completion(prompt="q")
            return self.item
    """,
}


def find(folder: Path, methods: str, kind: str = "Env") -> list[str]:
    path = folder / "state_case.py"
    path.write_text(textwrap.dedent(HEAD) + textwrap.indent(textwrap.dedent(methods), "    "))
    with import_file(path) as module:
        return find_carried(getattr(module, kind))


@pytest.mark.parametrize("case", CARRIED)
def test_state_that_a_group_carries_is_found(tmp_path: Path, case: str):
    methods, names = CARRIED[case]
    assert find(tmp_path, methods) == names


@pytest.mark.parametrize("case", HARMLESS)
def test_what_groups_may_share_is_not_suspected(tmp_path: Path, case: str):
    assert find(tmp_path, HARMLESS[case]) == []


def test_parents_are_read_too_and_base_classes_are_not(tmp_path: Path):
    methods = """
    async def collect_trajectories(self, item):
        self.item = item
        return await self.score()

    async def score(self):
        return 0


class Child(Env):
    async def score(self):
        return self.item
"""
    path = tmp_path / "state_case.py"
    path.write_text(textwrap.dedent(HEAD) + methods)
    with import_file(path) as module:
        assert find_carried(module.Child) == ["item"] and find_carried(module.Env) == []
    assert find_carried(BaseEnv) == []
