"""The three splits of the tasks, and the plan of an epoch.

`train` is rolled out and shown to the optimizer. `selection` decides whether a candidate is accepted. `test` measures
the gain at the end. The test split is a `SealedTasks`: its size and hash are known, but it returns its tasks only in
exchange for a `FinishedSkills`, which the trainer creates when training is over. A task that is in two splits would
leak from one part of the run to another; `Splits.from_tasks` refuses it.

Plans are deterministic: the batches of an epoch, their seeds and the sample of the slow update depend only on the run's
seed and the epoch's number.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Literal, TypeVar

import msgspec
from msgspec import Struct

from ludus.batch import load_tasks
from ludus.encoding import canonical
from ludus.env import Env
from ludus.errors import ConfigError
from ludus.reflact.paired_evidence import FEWEST_TASKS
from ludus.reflact.train_settings import DataSettings, TrainSettings
from ludus.skill import Skill
from ludus.types import Task
from ludus.whole_files import read_whole

T = TypeVar("T")
HELD_OUT = "held_out"
Tasks = tuple[Task, ...]


class FinishedSkills(Struct, frozen=True):
    """The skills to test, when training is over and they do not change any more."""

    initial: Skill
    best: Skill
    final: Skill


class SealedTasks:
    """The tasks of the test split. They cannot be read until training is over."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        self.__tasks = tuple(tasks)
        self.digest = hash_tasks(self.__tasks)
        """A hash of the tasks."""

    def __len__(self) -> int:
        return len(self.__tasks)

    def __repr__(self) -> str:
        return f"<SealedTasks: {len(self)} tasks>"

    def unseal(self, finished: FinishedSkills) -> Tasks:
        """The tasks, in exchange for the finished skills."""
        if not isinstance(finished, FinishedSkills):  # pyright: ignore[reportUnnecessaryIsInstance]  # the seal itself
            raise TypeError("the test split is sealed until training is over: unseal takes a FinishedSkills")
        return self.__tasks


class Sizes(Struct, frozen=True):
    """The number of tasks in each split."""

    train: int
    selection: int
    test: int

    @property
    def total(self) -> int:
        return self.train + self.selection + self.test


@dataclass(frozen=True)
class Splits:
    """The three splits of a run. Create them with `from_tasks`, which checks them."""

    train: Tasks
    selection: Tasks
    test: SealedTasks
    held_out: SealedTasks = field(default_factory=lambda: SealedTasks(()))
    """Tasks of another family, on which the skill is measured too (`claim.kinds`, `claim.split`)."""

    @classmethod
    def from_tasks(
        cls,
        train: Iterable[Task],
        selection: Iterable[Task],
        test: Iterable[Task] = (),
        *,
        held_out: Iterable[Task] = (),
        overlap: Literal["refuse", "drop"] = "refuse",
    ) -> "Splits":
        """Check the splits: train and selection are not empty, ids are unique in each split, no task is in two splits.

        `overlap="drop"` removes a task that is in two splits from the earlier one.
        """
        parts = {"train": tuple(train), "selection": tuple(selection), "test": tuple(test), HELD_OUT: tuple(held_out)}
        for name, tasks in parts.items():
            _check_ids(name, tasks)
        parts = _separate(parts, overlap)
        for name in ("train", "selection"):
            if not parts[name]:
                sizes = ", ".join(f"{n} {len(t)}" for n, t in parts.items() if t or n != HELD_OUT)
                raise ConfigError(
                    f"data: the {name} split is empty ({sizes}). Add tasks to it, or give it a larger share"
                )
        return cls(parts["train"], parts["selection"], SealedTasks(parts["test"]), SealedTasks(parts[HELD_OUT]))

    @property
    def digest(self) -> str:
        """A hash of the three splits that decide what is trained and tested."""
        whole = (hash_tasks(self.train), hash_tasks(self.selection), self.test.digest)
        return hashlib.sha256(canonical(whole)).hexdigest()[:16]


def hash_tasks(tasks: Iterable[Task]) -> str:
    return hashlib.sha256(canonical(tuple(tasks))).hexdigest()[:16]


def _check_ids(split: str, tasks: Sequence[Task]) -> None:
    twice = [id for id, count in Counter(task.id for task in tasks).items() if count > 1]
    if twice:
        raise ConfigError(f"data: ids must be unique in the {split} split; these are not: {_format_ids(twice)}")


def _separate(parts: dict[str, Tasks], overlap: Literal["refuse", "drop"]) -> dict[str, Tasks]:
    """Remove, or refuse, tasks that are in a later split too."""
    seen: dict[bytes, str] = {}
    kept: dict[str, Tasks] = {}
    for name in reversed(parts):
        shared = [task for task in parts[name] if _encode_content(task) in seen]
        if shared and overlap == "refuse":
            other, ids = seen[_encode_content(shared[0])], _format_ids([task.id for task in shared])
            raise ConfigError(
                f"data: {len(shared)} tasks of the {name} split are also in the {other} split: {ids}. Remove them from "
                "one of the splits, or set data.overlap to 'drop'"
            )
        kept[name] = tuple(task for task in parts[name] if _encode_content(task) not in seen)
        seen |= {_encode_content(task): name for task in kept[name]}
    return {name: kept[name] for name in parts}


def _encode_content(task: Task) -> bytes:
    """The content that makes two tasks the same. Tasks without an answer may share a prompt by design, so their ids are
    compared too."""
    return canonical((task.prompt, task.files, task.answer, task.id if task.answer is None else ""))


def _format_ids(ids: Sequence[str]) -> str:
    return ", ".join(map(repr, ids[:5])) + (" …" if len(ids) > 5 else "")


# ---- loading --------------------------------------------------------------------------------------------------------


def load_splits(env: Env, settings: DataSettings, kinds: Sequence[str] = (), other: str = "") -> Splits:
    """Load the splits that the settings describe. Tasks of these kinds are held out of them, and so are those of the
    environment's split `other`."""
    held: list[Task] = []
    if settings.mode == "ratio":
        pool = [task for name in settings.pool for task in _load_split(env, name, "data.pool")]
        _check_ids("pool", pool)
        pool = _hold_out(pool, kinds, held)
        ratio = parse_ratio(settings.ratio) if settings.ratio else choose_ratio(len(pool))
        parts = divide(pool, ratio, settings.seed)
        names = ("train", "selection", "test")
        parts = tuple(tuple(_set_split(name, task) for task in part) for name, part in zip(names, parts, strict=True))
    elif settings.mode == "splits":
        chosen = {"data.train": settings.train, "data.selection": settings.selection, "data.test": settings.test}
        parts = tuple(_load_split(env, split, setting) for setting, split in chosen.items())
    else:
        parts = read_folder(Path(settings.folder))
    if settings.mode != "ratio":
        parts = tuple(tuple(_hold_out(part, kinds, held)) for part in parts)
    _check_kinds(kinds, held, parts)
    held += _load_split(env, other, "claim.split") if other else ()
    cut = [part[: settings.limit or None] for part in parts]
    held = [_set_split(HELD_OUT, task) for task in held[: settings.limit or None]]
    return Splits.from_tasks(*cut, held_out=held, overlap=settings.overlap)


_OF_SPLIT = "env.split: "
"""How errors begin that are about the name of a split. Here other settings name the splits."""


def _load_split(env: Env, split: str, setting: str) -> Tasks:
    """The tasks of a split of the environment that this setting names."""
    try:
        return load_tasks(env, split)
    except ConfigError as error:
        words = str(error)
        if not words.startswith(_OF_SPLIT):
            raise
        raise ConfigError(f"{setting}: {words.removeprefix(_OF_SPLIT)}") from None


def _hold_out(tasks: Iterable[Task], kinds: Sequence[str], held: list[Task]) -> list[Task]:
    """The tasks of other kinds. Those of these kinds are added to `held`."""
    tasks = list(tasks)
    held += [task for task in tasks if task.kind in kinds]
    return [task for task in tasks if task.kind not in kinds]


def _check_kinds(kinds: Sequence[str], held: Sequence[Task], parts: Iterable[Iterable[Task]]) -> None:
    """Raise `ConfigError` for a kind that no task has."""
    missing = sorted(set(kinds) - {task.kind for task in held})
    if missing:
        known = sorted({task.kind for part in (held, *parts) for task in part if task.kind})
        there = f"the kinds are {', '.join(map(repr, known[:12]))}" if known else "its tasks have no kinds"
        raise ConfigError(f"claim.kinds: no task is of the kind {missing[0]!r}; {there}")


def _set_split(split: str, task: Task) -> Task:
    return msgspec.structs.replace(task, split=split)


def parse_ratio(text: str) -> tuple[int, int, int]:
    """Parse three positive whole numbers with colons between them."""
    parts = text.split(":")
    if len(parts) != 3 or not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise ConfigError(f"data.ratio: {text!r} must be three positive whole numbers such as '2:1:7'")
    train, selection, test = (int(part) for part in parts)
    return train, selection, test


USUAL_RATIO = (2, 1, 7)
FEW = 20
"""Fewer selection tasks than this tell little apart."""
FEW_TESTS = 10
"""Fewer test tasks than this are named as few in the claim."""


def choose_ratio(tasks: int) -> tuple[int, int, int]:
    """How a pool of this many tasks is divided where the user did not say it. Of few tasks, half are for training: what
    no train task needs cannot be learned. Of fewer than ten, selection has as many as it takes to ship anything."""
    if compute_sizes(tasks, USUAL_RATIO)[1] >= FEW:
        return USUAL_RATIO
    few = (2, 1, 1) if tasks >= 10 else (2, 2, 1)
    return few if compute_sizes(tasks, few)[1] >= FEWEST_TASKS else (1, 2, 1)


def format_ratio(ratio: tuple[int, int, int]) -> str:
    return ":".join(map(str, ratio))


def divide(items: Sequence[T], ratio: tuple[int, int, int], seed: int) -> tuple[tuple[T, ...], ...]:
    """Shuffle the items and divide them into three parts."""
    shuffled = list(items)
    Random(seed).shuffle(shuffled)
    train, selection, _ = compute_sizes(len(shuffled), ratio)
    middle = train + selection
    return tuple(shuffled[:train]), tuple(shuffled[train:middle]), tuple(shuffled[middle:])


def compute_sizes(total: int, ratio: tuple[int, int, int]) -> tuple[int, int, int]:
    """The sizes of the parts: whole shares first, then one each for the largest remainders, ties to larger weights."""
    # In floating point with its rounding, so that a pool is divided exactly as SkillOpt divides it.
    shares = [total * weight / sum(ratio) for weight in ratio]
    sizes = [math.floor(share) for share in shares]
    order = sorted(range(3), key=lambda i: (-(shares[i] - sizes[i]), -ratio[i], i))
    for i in order[: total - sum(sizes)]:
        sizes[i] += 1
    return sizes[0], sizes[1], sizes[2]


def read_folder(folder: Path) -> tuple[Tasks, Tasks, Tasks]:
    """Read the three splits of a directory, each from the first `*.json` or `*.jsonl` file in its folder."""
    return _read_split(folder, "train"), _read_split(folder, "selection", "val"), _read_split(folder, "test")


def _read_split(folder: Path, *names: str) -> Tasks:
    places = [folder / name for name in names if (folder / name).is_dir()]
    files = sorted(path for place in places for path in place.iterdir() if path.suffix in (".json", ".jsonl"))
    if not files:
        raise ConfigError(f"data.folder: {folder / names[0]} must be a folder with a .json or .jsonl file of tasks")
    try:
        data = read_whole(files[0])
        if files[0].suffix == ".json":
            tasks = msgspec.json.decode(data, type=tuple[Task, ...])
        else:
            tasks = tuple(msgspec.json.Decoder(Task).decode_lines(data))
    except (OSError, ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise ConfigError(f"data.folder: cannot read tasks from {files[0]}: {error}") from None
    return tuple(_set_split(names[0], task) for task in tasks)


def choose_selection(tasks: Tasks, settings: TrainSettings) -> Tasks:
    """The selection tasks that a run uses, in their order."""
    size = settings.selection_size
    if not size or size >= len(tasks):
        return tasks
    if settings.selection_draw == "first":
        return tasks[:size]
    sampled = {task.id for task in sample_some(tasks, size, settings.seed)}
    return tuple(task for task in tasks if task.id in sampled)


# ---- the plan of an epoch -------------------------------------------------------------------------------------------


class TrainBatch(Struct, frozen=True):
    """Tasks that are rolled out together, and their seed."""

    seed: int
    tasks: Tasks


def count_epoch_steps(train: int, batch_size: int, accumulation: int) -> int:
    return math.ceil(train / (batch_size * accumulation))


def plan_epoch(
    tasks: Sequence[Task], epoch: int, *, batch_size: int, accumulation: int, seed: int
) -> list[tuple[TrainBatch, ...]]:
    """The batches of each step of an epoch (from 1). Every task is used once; an empty batch gets a new sample."""
    order = _shuffle(tasks, seed + 1000 * epoch)
    steps: list[tuple[TrainBatch, ...]] = []
    for step in range(count_epoch_steps(len(tasks), batch_size, accumulation)):
        batches: list[TrainBatch] = []
        for index in range(step * accumulation, (step + 1) * accumulation):
            part = order[index * batch_size : (index + 1) * batch_size]
            own_seed = derive_batch_seed(seed, epoch, index)
            batches.append(TrainBatch(own_seed, part or sample_some(order, batch_size, own_seed)))
        steps.append(tuple(batches))
    return steps


def derive_batch_seed(seed: int, epoch: int, index: int) -> int:
    """The seed of batch number `index` (from 0) of an epoch."""
    return seed + 1000 * epoch + index + 1


def sample_some(tasks: Sequence[Task], size: int, seed: int) -> Tasks:
    """Sample tasks without replacement."""
    return _shuffle(tasks, seed)[:size]


def derive_slow_seed(seed: int, epoch: int) -> int:
    """The seed of the slow update's sample in an epoch."""
    return seed + 2000 * epoch


def derive_ship_seed(seed: int) -> int:
    """The seed of the measurements for shipping. No other part uses it on the selection split."""
    return seed + 7919


def derive_claim_seed(seed: int, arm: str) -> int:
    """The seed of an arm of the claim that runs both skills where they were not trained."""
    return seed + (104_729 if arm == HELD_OUT else 1_299_709)


def derive_step_seed(seed: int, step: int) -> int:
    """The seed of the rollouts of a step of the recipe `ledger`."""
    return seed + step


def order_tasks(tasks: Sequence[Task], start: int, size: int, seed: int) -> Tasks:
    """Tasks number `start` to `start + size` of all epochs in a row, each epoch shuffled anew."""
    places = (divmod(number, len(tasks)) for number in range(start, start + size))
    return tuple(tasks[_sample_order(len(tasks), seed + 1000 * (1 + epoch))[place]] for epoch, place in places)


def _shuffle(tasks: Sequence[Task], seed: int) -> Tasks:
    return tuple(tasks[place] for place in _sample_order(len(tasks), seed))


@lru_cache(maxsize=8)  # each step of the recipe `ledger` takes a few tasks of the same epoch
def _sample_order(count: int, seed: int) -> tuple[int, ...]:
    order = list(range(count))
    Random(seed).shuffle(order)
    return tuple(order)
