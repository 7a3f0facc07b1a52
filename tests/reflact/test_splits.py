"""Splits: divided as SkillOpt divides them, sealed, and never overlapping. Plans: the same in every process."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.encoding import canonical
from ludus.env import Env
from ludus.envs.parcels import Parcels
from ludus.errors import ConfigError
from ludus.reflact.paired_evidence import FEWEST_TASKS
from ludus.reflact.splits import (
    DataSettings,
    FinishedSkills,
    SealedTasks,
    Splits,
    choose_ratio,
    choose_selection,
    compute_sizes,
    count_epoch_steps,
    derive_slow_seed,
    divide,
    load_splits,
    order_tasks,
    parse_ratio,
    plan_epoch,
    sample_some,
)
from ludus.reflact.train_settings import TrainSettings
from ludus.sandbox import SandboxSpec
from ludus.skill import Skill
from ludus.types import Task

DONE = FinishedSkills(Skill("a"), Skill("b"), Skill("c"))


def make_tasks(count: int, name: str = "t") -> list[Task]:
    return [Task(id=f"{name}{n}", prompt=f"{name} {n}", answer=n) for n in range(count)]


class Pool(Env, frozen=True):
    name: ClassVar[str] = "pool"
    sandbox: ClassVar[SandboxSpec | None] = None

    def tasks(self, split: str) -> list[Task]:
        return make_tasks({"train": 20, "validation": 4, "test": 6}.get(split, 0), split)


# ---- sizes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("total", "sizes"), [(10, (2, 1, 7)), (7, (1, 1, 5)), (3, (1, 0, 2)), (177, (35, 18, 124))])
def test_split_sizes_are_those_of_the_original(total: int, sizes: tuple[int, int, int]):
    assert compute_sizes(total, (2, 1, 7)) == sizes


@settings(deadline=None)
@given(st.integers(0, 300), st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9)), st.integers())
def test_every_task_is_in_exactly_one_part(total: int, ratio: tuple[int, int, int], seed: int):
    parts = divide(range(total), ratio, seed)
    assert sorted(item for part in parts for item in part) == list(range(total))
    assert tuple(map(len, parts)) == compute_sizes(total, ratio)
    assert all(abs(len(part) - total * weight / sum(ratio)) < 1 for part, weight in zip(parts, ratio, strict=True))
    assert divide(range(total), ratio, seed) == parts


@pytest.mark.parametrize("text", ["", "1:2", "1:2:3:4", "1:0:2", "a:b:c", "1:-1:2", "1.5:1:1"])
def test_a_ratio_is_three_positive_numbers(text: str):
    with pytest.raises(ConfigError, match=r"data\.ratio"):
        parse_ratio(text)
    assert parse_ratio(" 2:1:7 ") == (2, 1, 7)


# ---- the seal -----------------------------------------------------------------------------------------------------


def test_the_test_split_is_out_of_reach_until_training_is_over():
    sealed = SealedTasks(make_tasks(3, "secret"))
    assert len(sealed) == 3
    assert "secret" not in repr(sealed) + str(vars(type(sealed)))
    for look in (iter, list, msgspec.json.encode, canonical, lambda it: it[0], lambda it: it.tasks):
        with pytest.raises((TypeError, AttributeError, NotImplementedError)):
            look(sealed)
    with pytest.raises(TypeError, match="sealed until training is over"):
        sealed.unseal(None)  # type: ignore[arg-type]
    assert [task.id for task in sealed.unseal(DONE)] == ["secret0", "secret1", "secret2"]


def test_a_sealed_split_is_recognised_by_its_digest():
    assert SealedTasks(make_tasks(2)).digest == SealedTasks(make_tasks(2)).digest != SealedTasks(make_tasks(3)).digest


# ---- checks -------------------------------------------------------------------------------------------------------


def test_an_empty_selection_split_is_refused_in_words():
    with pytest.raises(ConfigError, match=r"selection split is empty \(train 1, selection 0, test 2\)"):
        Splits.from_tasks(*divide(make_tasks(3), (2, 1, 7), 0))
    with pytest.raises(ConfigError, match="train split is empty"):
        Splits.from_tasks([], make_tasks(1), [])


def test_ids_must_be_unique_in_a_split():
    with pytest.raises(ConfigError, match="unique in the train split; these are not: 't0'"):
        Splits.from_tasks([*make_tasks(2), make_tasks(1)[0]], make_tasks(1, "s"))


def test_a_task_in_two_splits_is_refused_or_dropped_where_it_is_seen_first():
    leaked = Task(id="other", prompt="t 1", answer=1)
    with pytest.raises(ConfigError, match="1 tasks of the train split are also in the test split: 't1'"):
        Splits.from_tasks(make_tasks(3), make_tasks(2, "s"), [leaked])
    dropped = Splits.from_tasks(make_tasks(3), make_tasks(2, "s"), [leaked], overlap="drop")
    assert [task.id for task in dropped.train] == ["t0", "t2"]
    assert len(dropped.test) == 1


def test_tasks_without_an_answer_may_have_equal_prompts_but_not_equal_ids():
    games = [Task(id=f"game-{n}", prompt="Play.") for n in range(3)]
    Splits.from_tasks(games[:1], games[1:2], games[2:])
    with pytest.raises(ConfigError, match="also in"):
        Splits.from_tasks(games[:2], games[1:2], games[2:])


def test_equal_splits_have_equal_digests():
    one = Splits.from_tasks(make_tasks(3), make_tasks(2, "s"), make_tasks(2, "x"))
    assert one.digest == Splits.from_tasks(make_tasks(3), make_tasks(2, "s"), make_tasks(2, "x")).digest
    assert one.digest != Splits.from_tasks(make_tasks(3), make_tasks(2, "s"), make_tasks(3, "x")).digest


# ---- where they come from -----------------------------------------------------------------------------------------


def test_splits_by_ratio_come_from_one_pool_and_say_what_they_are_for():
    splits = load_splits(Pool(), DataSettings(ratio="2:1:1"))
    assert (len(splits.train), len(splits.selection), len(splits.test)) == (10, 5, 5)
    assert {task.split for task in splits.selection} == {"selection"}
    assert load_splits(Pool(), DataSettings(ratio="2:1:1")).digest == splits.digest
    assert load_splits(Pool(), DataSettings(ratio="2:1:1", seed=1)).digest != splits.digest
    pooled = load_splits(Pool(), DataSettings(ratio="2:1:1", pool=("train", "test")))
    assert len(pooled.train) == 13


def test_splits_of_the_environment_and_a_limit():
    splits = load_splits(Pool(), DataSettings(mode="splits", limit=5))
    assert (len(splits.train), len(splits.selection), len(splits.test)) == (5, 4, 5)
    with pytest.raises(ConfigError, match="no tasks in split 'val'"):
        load_splits(Pool(), DataSettings(mode="splits", selection="val"))


def test_splits_from_folders(tmp_path: Path):
    for name in ("train", "val", "test"):
        (tmp_path / name).mkdir()
        rows = [{"id": f"{name}{n}", "prompt": f"{name} {n}"} for n in range(2)]
        text = json.dumps(rows) if name != "test" else "\n".join(map(json.dumps, rows))
        (tmp_path / name / f"items.{'jsonl' if name == 'test' else 'json'}").write_text(text)
    splits = load_splits(Pool(), DataSettings(mode="folder", folder=str(tmp_path)))
    assert [task.id for task in splits.selection] == ["val0", "val1"]
    assert [task.id for task in splits.test.unseal(DONE)] == ["test0", "test1"]
    (tmp_path / "train" / "items.json").write_text("[{]")
    with pytest.raises(ConfigError, match="cannot read tasks from"):
        load_splits(Pool(), DataSettings(mode="folder", folder=str(tmp_path)))
    with pytest.raises(ConfigError, match="must be a folder"):
        load_splits(Pool(), DataSettings(mode="folder", folder=str(tmp_path / "no")))


# ---- plans --------------------------------------------------------------------------------------------------------


def test_seeds_are_those_of_the_original():
    plan = plan_epoch(make_tasks(10), 2, batch_size=3, accumulation=2, seed=42)
    assert [[batch.seed for batch in step] for step in plan] == [[2043, 2044], [2045, 2046]]
    assert derive_slow_seed(42, 3) == 6042


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 4), st.integers(1, 4))
def test_an_epoch_sees_every_task_once_and_no_batch_is_empty(size: int, batch: int, accumulation: int, epoch: int):
    plan = plan_epoch(make_tasks(size), epoch, batch_size=batch, accumulation=accumulation, seed=7)
    assert len(plan) == count_epoch_steps(size, batch, accumulation)
    flat = [part for step in plan for part in step]
    assert all(0 < len(part.tasks) <= batch for part in flat)
    seen = [task.id for part in flat for task in part.tasks]
    assert sorted(seen[:size]) == sorted(task.id for task in make_tasks(size))
    assert plan == plan_epoch(make_tasks(size), epoch, batch_size=batch, accumulation=accumulation, seed=7)


def test_a_sample_is_drawn_without_putting_back():
    sampled = sample_some(make_tasks(9), 5, 3)
    assert len({task.id for task in sampled}) == 5
    assert len(sample_some(make_tasks(2), 5, 3)) == 2


def test_the_world_of_the_other_tests_is_in_order(world: SimpleNamespace):
    assert len(world.splits().test) == 6


def test_a_part_of_the_selection_split_is_drawn_with_the_seed_of_the_run(world: SimpleNamespace):
    tasks = world.tasks("selection", 30)
    sampled = choose_selection(tasks, TrainSettings(selection_size=10))
    assert len(sampled) == 10 and list(sampled) == sorted(sampled, key=tasks.index)
    assert sampled == choose_selection(tasks, TrainSettings(selection_size=10)) != tasks[:10]
    assert sampled != choose_selection(tasks, TrainSettings(selection_size=10, seed=1))
    assert choose_selection(tasks, TrainSettings(selection_size=10, selection_draw="first")) == tasks[:10]
    assert (
        choose_selection(tasks, TrainSettings()) == choose_selection(tasks, TrainSettings(selection_size=99)) == tasks
    )


def test_each_epoch_is_an_order_of_all_tasks_and_steps_go_on_where_the_last_one_ended():
    tasks = make_tasks(5)
    whole = order_tasks(tasks, 0, 15, 3)
    epochs = [tuple(task.id for task in whole[start : start + 5]) for start in (0, 5, 10)]
    assert all(sorted(epoch) == sorted(task.id for task in tasks) for epoch in epochs)
    assert len(set(epochs)) > 1
    assert whole == sum((order_tasks(tasks, start, 3, 3) for start in range(0, 15, 3)), ())
    assert whole[2:9] == order_tasks(tasks, 2, 7, 3)


@pytest.mark.parametrize(
    ("tasks", "ratio", "selection"), [(5, (1, 2, 1), 3), (6, (1, 2, 1), 3), (7, (2, 2, 1), 3),
    (9, (2, 2, 1), 3), (10, (2, 1, 1), 3), (30, (2, 1, 1), 8),
    (194, (2, 1, 1), 49), (200, (2, 1, 7), 20)]
)  # fmt: skip
def test_a_pool_is_divided_so_that_a_skill_can_win(tasks: int, ratio: tuple[int, int, int], selection: int):
    assert choose_ratio(tasks) == ratio
    assert compute_sizes(tasks, ratio)[1] == selection
    assert selection >= FEWEST_TASKS


def test_a_split_that_is_not_there_is_named_by_its_setting():
    for data, name in (
        (DataSettings(pool=("none",)), "data.pool"),
        (DataSettings(mode="splits", selection="val"), "data.selection"),
    ):
        with pytest.raises(ConfigError, match=rf"^{name}: pool has no tasks in split"):
            load_splits(Pool(), data)
    with pytest.raises(ConfigError, match=r"^claim\.split: pool has no tasks in split 'val'"):
        load_splits(Pool(), DataSettings(), (), "val")


def test_a_ratio_is_chosen_only_where_none_is_given():
    chosen, usual = load_splits(Pool(), DataSettings()), load_splits(Pool(), DataSettings(ratio="2:1:7"))
    total = len(chosen.train) + len(chosen.selection) + len(chosen.test)
    assert len(chosen.selection) == compute_sizes(total, choose_ratio(total))[1] > len(usual.selection)


# ---- tasks that are held out ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["ratio", "splits"])
def test_kinds_that_are_held_out_are_in_no_split(mode: Any):
    data = DataSettings(mode=mode, pool=("train", "validation", "test") if mode == "ratio" else ("train",))
    found = load_splits(Parcels(), data, ("red", "blue"))
    test, held = (each.unseal(FinishedSkills(Skill(""), Skill(""), Skill(""))) for each in (found.test, found.held_out))
    assert {task.kind for task in (*found.train, *found.selection, *test)}.isdisjoint({"red", "blue"})
    assert {task.kind for task in held} == {"red", "blue"} and {task.split for task in held} == {"held_out"}
    assert len(found.train) + len(found.selection) + len(test) + len(held) == 240 + 48 + 96


def test_another_split_is_held_out_and_must_not_be_used_otherwise():
    data = DataSettings()
    found = load_splits(Parcels(), data, (), "validation")
    assert len(found.held_out) == 48 and found.digest == load_splits(Parcels(), data).digest, "it decides no training"
    with pytest.raises(ConfigError, match="are also in the held_out split"):
        load_splits(Parcels(), data, (), "train")
    with pytest.raises(ConfigError, match=r"claim.kinds: no task is of the kind 'pink'; the kinds are 'black', 'blue'"):
        load_splits(Parcels(), data, ("pink",))
