"""Files that keep their item on the environment object: groups must not read each other's."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest
from compat.tests.file_kit import count_calls, flags, write_files
from hypothesis import given
from hypothesis import strategies as st
from tests.cli_kit import Ludus

from ludus.compat.atropos_env.group_turns import GroupTurns, read_shared
from ludus.compat.atropos_env.state_watch import act_as
from ludus.store import RunDir

HUNT = '''
import asyncio
from atroposlib.envs.base import BaseEnv, BaseEnvConfig


class HuntConfig(BaseEnvConfig):
    group_size: int = 2
    total_steps: int = 12
    use_wandb: bool = False


class Hunt(BaseEnv):
    """Asks for a word. The item is on the object while the model is asked."""

    env_config_cls = HuntConfig

    async def setup(self):
        self.iter, self.running, self.most = 0, 0, 0
        self.seen = []

    async def get_next_item(self):
        self.iter += 1
        return {"word": f"word {self.iter}"}

    def keep(self, item):
        self.current_item = item

    def recall(self):
        return self.current_item

    async def collect_trajectories(self, item):
        self.running += 1
        self.most = max(self.most, self.running)
        self.keep(item)
        replies = await self.server.chat_completion(
            messages=[{"role": "user", "content": item["word"]}], n=self.config.group_size)
        await asyncio.sleep(0.01)
        words = [choice.message.content for choice in replies.choices]
        scores = [float(word == self.recall()["word"]) for word in words]
        self.seen.append(scores)
        self.running -= 1
        rows = [[1, 2]] * len(words)
        return {"tokens": rows, "masks": rows, "scores": scores, "most": [self.most] * len(words)}, []

    async def evaluate(self, *args, **kwargs):
        pass


class Hidden(Hunt):
    """Its code does not say which attribute it keeps."""

    def keep(self, item):
        setattr(self, "_".join(["current", "item"]), item)


class Raising(Hidden):
    """Somebody else's item is an error."""

    async def collect_trajectories(self, item):
        made = await super().collect_trajectories(item)
        assert made[0]["scores"] == [1.0, 1.0], "not mine"
        return made


class Chosen(Hidden):
    """The item is on the object from the moment it is chosen."""

    async def get_next_item(self):
        item = await super().get_next_item()
        super().keep(item)
        return item

    def keep(self, item):
        pass


class Free(Hunt):
    """The item is passed on. The object has counters and buffers."""

    async def collect_trajectories(self, item):
        self.running += 1
        self.most = max(self.most, self.running)
        replies = await self.server.chat_completion(messages=[{"role": "user", "content": item["word"]}], n=2)
        await asyncio.sleep(0.05)
        scores = [float(choice.message.content == item["word"]) for choice in replies.choices]
        self.seen.append(scores)
        self.seen = self.seen[-3:]
        self.running -= 1
        return {"tokens": [[1, 2]] * 2, "masks": [[1, 2]] * 2, "scores": scores, "most": [self.most] * 2}, []
'''
ECHO = """

def echo(messages, tools, sampling):
    note()
    return messages[-1].content
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path, hunt=HUNT)
    with (tmp_path / "agents.py").open("a") as file:
        file.write(ECHO)
    return tmp_path


def process(ludus: Ludus, kind: str, *words: str) -> tuple[dict[str, Any], str]:
    done = ludus("process", f"atropos:hunt.py:{kind}", "--out", "run", "--json", *flags("echo", *words))
    assert done.code == 0, done.err
    return json.loads(done.out), done.err


def read_most() -> int:
    lines = Path("run/atropos_groups.jsonl").read_text().splitlines()
    return max(most for line in lines for most in json.loads(line)["most"])


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("kind", ["Hunt", "Hidden", "Raising", "Chosen"])
def test_a_file_with_its_item_on_the_object_scores_as_one_group_after_another(ludus: Ludus, kind: str):
    said, told = process(ludus, kind)
    assert said["summary"]["overall"]["mean"] == 1.0 and said["summary"]["overall"]["rollouts"] == 24
    assert said["groups"]["one_at_a_time"] == ["current_item"] and said["groups"]["kept"] == 12
    assert "groups run one at a time: the file keeps self.current_item" in told
    assert count_calls() == 24  # a group that is made again has its replies
    if kind == "Hunt":
        assert read_most() == 1
    again = ludus("process", "--resume", "--out", "run", "--env.total_steps", "14", "--json")
    assert again.code == 0 and json.loads(again.out)["summary"]["overall"]["mean"] == 1.0
    assert "one at a time" in again.err


@pytest.mark.usefixtures("folder")
def test_a_file_without_shared_state_runs_groups_side_by_side(ludus: Ludus):
    said, told = process(ludus, "Free")
    assert said["summary"]["overall"]["mean"] == 1.0 and said["groups"]["one_at_a_time"] == []
    assert "one at a time" not in told and read_most() > 1


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("kind", ["Chosen", "Hunt"])
def test_a_training_run_gives_each_rollout_the_state_of_its_item(ludus: Ludus, kind: str):
    words = ["--data.ratio", "1:1:1", "--train.epochs", "1", "--train.batch_size", "2", "--out", "skill", "--json"]
    model = ["--optimizer.type", "scripted", "--optimizer.script", "agents.py:echo"]
    done = ludus("train", f"atropos:hunt.py:{kind}", *flags("echo", "--env.total_steps", "6"), *words, *model)
    scores = _read_scores(Path("skill"))
    assert scores and set(scores) == {1.0}, done.err


def _read_scores(path: Path) -> list[float | None]:
    with RunDir.read(path) as run:
        return list(run.read_scores().values())


# ---- any order of groups ------------------------------------------------------------------------------------------


class Shelf:
    """An environment object whose groups put a value down and take it up again."""

    value: int = -1


@given(st.integers(0, 2**32), st.integers(2, 6))
def test_whatever_the_order_every_group_reads_its_own_value(seed: int, groups: int):
    dice = random.Random(seed)
    steps = [[dice.randint(0, 2) for _ in range(3)] for _ in range(groups)]

    class Run:
        def __init__(self) -> None:
            self.records: dict[str, bytes] = {}

        def put_record(self, key: str, kind: str, body: bytes) -> bytes:
            return self.records.setdefault(key, body)

        def read_records(self, kind: str) -> list[tuple[str, bytes]]:
            return list(self.records.items())

    async def play() -> tuple[list[tuple[int, int]], list[str], list[str]]:
        env, run, told = Shelf(), Run(), list[str]()
        turns = GroupTurns(env, run, told.append)  # pyright: ignore[reportArgumentType]

        async def play_group(number: int) -> tuple[int, int]:
            async def work() -> int:
                with act_as(str(number)):
                    await wait(steps[number][0])
                    setattr(env, "val" + "ue", number)
                    await wait(steps[number][1])
                    found = env.value
                    await wait(steps[number][2])
                    return found

            async def finish(found: int) -> tuple[int, int]:
                return number, found

            return await turns.run(str(number), work, finish, ())

        return await asyncio.gather(*map(play_group, range(groups))), read_shared(run), told  # type: ignore[arg-type]

    async def wait(times: int) -> None:
        for _ in range(times):
            await asyncio.sleep(0)

    found, shared, told = asyncio.run(play())
    assert all(number == value for number, value in found)
    assert shared in ([], ["value"]) and len(told) == len(shared)
