"""What an environment gets without writing it, and what it must write."""

from typing import Any, ClassVar, cast

import msgspec
import pytest
from tests.build import make_rollout, make_task

from ludus.env import Env, EnvFacts
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.types import Message


class Plain(Env, frozen=True):
    name: ClassVar[str] = "plain"
    level: int = 1


class Disk:
    """A slot that only keeps what is written to it."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    async def write(self, path: str, data: bytes) -> None:
        self.files[path] = data


def test_a_task_opens_with_its_prompt_in_the_slot_of_the_environment():
    env, task = Plain(), make_task(prompt="Count to three.")
    assert env.opening(task) == (Message("user", "Count to three."),)
    default = SandboxSpec(network=True)
    assert env.slot(task, default) is default
    assert env.sandbox == SandboxSpec()
    assert list(env.tools(task, None)) == []


async def test_setup_writes_the_files_of_the_task():
    disk = Disk()
    task = make_task(files={"in/put.txt": "given", "ü.txt": "é"})
    await Plain().setup(task, cast("Sandbox", disk))
    assert disk.files == {"in/put.txt": b"given", "ü.txt": "é".encode()}


async def test_what_must_be_written_says_so():
    env: Any = Plain()
    with pytest.raises(NotImplementedError, match=r"Plain does not define tasks\(split\)"):
        env.tasks("train")
    with pytest.raises(NotImplementedError, match=r"Plain does not define verify\(rollout, box\)"):
        await env.verify(make_rollout(), None)
    with pytest.raises(NotImplementedError, match=r"Plain does not define solve\(task, box\)"):
        await env.solve(make_task(), None)


def test_fields_are_options_and_unknown_ones_are_refused():
    assert msgspec.convert({"level": 3}, Plain) == Plain(level=3)
    with pytest.raises(msgspec.ValidationError, match="levle"):
        msgspec.convert({"levle": 3}, Plain)


def test_facts_are_cells_of_a_table():
    with pytest.raises(ValueError, match=r"EnvFacts.scored: one line without '\|'"):
        EnvFacts(scored="all | some")
