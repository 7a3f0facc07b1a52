"""Which tasks train, which decide and which judge: splits, and the plan of an epoch.

Three splits: `train` is rolled out and shown to the optimizer, `selection` decides whether a candidate is accepted,
`test` says at the end what was gained. The test split is `Sealed`: it can be counted and recognised, and it gives its
tasks only in exchange for a `Finished`, the skills to be tested, which the trainer has when it has stopped training. A
task that is in two splits would let one part of the run leak into another; `Splits.of` refuses that.

Plans are deterministic: the batches of an epoch, their seeds and the slow update's sample follow from the run's seed
and the epoch's number alone.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal, TypeVar

import msgspec
from msgspec import Struct

from ludus.batch import load_tasks
from ludus.env import Env
from ludus.errors import ConfigError
from ludus.reflact.train_settings import DataSettings
from ludus.skill import Skill
from ludus.types import Task, canonical

T = TypeVar("T")
Tasks = tuple[Task, ...]


class Finished(Struct, frozen=True):
    """Training is over: these skills are the ones to be tested, and they will not change any more."""

    initial: Skill
    best: Skill
    final: Skill


class Sealed:
    """The tasks of the test split, out of reach until training is over."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        self.__tasks = tuple(tasks)
        self.digest = digest(self.__tasks)
        """Equal for equal tasks."""

    def __len__(self) -> int:
        return len(self.__tasks)

    def __repr__(self) -> str:
        return f"<Sealed: {len(self)} tasks>"

    def unseal(self, finished: Finished) -> Tasks:
        """The tasks, now that nothing can be learned from them any more."""
        if not isinstance(finished, Finished):  # pyright: ignore[reportUnnecessaryIsInstance]  # the seal itself
            raise TypeError("the test split is sealed until training is over: unseal takes a Finished")
        return self.__tasks


@dataclass(frozen=True)
class Splits:
    """The three splits of a run. Made by `of`, which checks them."""

    train: Tasks
    selection: Tasks
    test: Sealed

    @classmethod
    def of(
        cls,
        train: Iterable[Task],
        selection: Iterable[Task],
        test: Iterable[Task] = (),
        *,
        overlap: Literal["refuse", "drop"] = "refuse",
    ) -> "Splits":
        """The splits, checked: none of the first two is empty, ids are unique in each, no task is in two.

        `overlap="drop"` takes a task that is in two out of the one that is seen earlier.
        """
        parts = {"train": tuple(train), "selection": tuple(selection), "test": tuple(test)}
        for name, tasks in parts.items():
            _check_ids(name, tasks)
        parts = _apart(parts, overlap)
        for name in ("train", "selection"):
            if not parts[name]:
                sizes = ", ".join(f"{n} {len(t)}" for n, t in parts.items())
                raise ConfigError(
                    f"data: the {name} split is empty ({sizes}). Nothing could be "
                    f"{'learned' if name == 'train' else 'decided'} from it: add tasks, or give it a larger share"
                )
        return cls(parts["train"], parts["selection"], Sealed(parts["test"]))

    @property
    def digest(self) -> str:
        """Equal for equal splits."""
        whole = (digest(self.train), digest(self.selection), self.test.digest)
        return hashlib.sha256(canonical(whole)).hexdigest()[:16]


def digest(tasks: Iterable[Task]) -> str:
    return hashlib.sha256(canonical(tuple(tasks))).hexdigest()[:16]


def _check_ids(split: str, tasks: Sequence[Task]) -> None:
    twice = [id for id, count in Counter(task.id for task in tasks).items() if count > 1]
    if twice:
        raise ConfigError(f"data: ids must be unique in the {split} split; these are not: {_some(twice)}")


def _apart(parts: dict[str, Tasks], overlap: Literal["refuse", "drop"]) -> dict[str, Tasks]:
    """The splits without what a later split has too."""
    seen: dict[bytes, str] = {}
    kept: dict[str, Tasks] = {}
    for name in reversed(parts):
        shared = [task for task in parts[name] if _content(task) in seen]
        if shared and overlap == "refuse":
            raise ConfigError(
                f"data: {len(shared)} tasks of the {name} split are also in the {seen[_content(shared[0])]} split: "
                f"{_some([task.id for task in shared])}. Take them out of one of them, or set data.overlap to 'drop'"
            )
        kept[name] = tuple(task for task in parts[name] if _content(task) not in seen)
        seen |= {_content(task): name for task in kept[name]}
    return {name: kept[name] for name in parts}


def _content(task: Task) -> bytes:
    """What makes two tasks the same. Where there is no answer to compare, prompts may be alike by design: the id
    counts then."""
    return canonical((task.prompt, task.files, task.answer, task.id if task.answer is None else ""))


def _some(ids: Sequence[str]) -> str:
    return ", ".join(map(repr, ids[:5])) + (" …" if len(ids) > 5 else "")


# ---- where splits come from ---------------------------------------------------------------------------------------


def load(env: Env, settings: DataSettings) -> Splits:
    """The splits that the settings ask for."""
    if settings.mode == "ratio":
        pool = [task for name in settings.pool for task in load_tasks(env, name)]
        _check_ids("pool", pool)
        parts = divide(pool, parse_ratio(settings.ratio), settings.seed)
        names = ("train", "selection", "test")
        parts = tuple(tuple(_in(name, task) for task in part) for name, part in zip(names, parts, strict=True))
    elif settings.mode == "splits":
        parts = tuple(load_tasks(env, name) for name in (settings.train, settings.selection, settings.test))
    else:
        parts = read_folder(Path(settings.folder))
    cut = [part[: settings.limit or None] for part in parts]
    return Splits.of(*cut, overlap=settings.overlap)


def _in(split: str, task: Task) -> Task:
    return msgspec.structs.replace(task, split=split)


def parse_ratio(text: str) -> tuple[int, int, int]:
    """Three positive whole numbers with colons between them."""
    parts = text.split(":")
    if len(parts) != 3 or not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise ConfigError(f"data.ratio: {text!r} must be three positive whole numbers such as '2:1:7'")
    train, selection, test = (int(part) for part in parts)
    return train, selection, test


def divide(items: Sequence[T], ratio: tuple[int, int, int], seed: int) -> tuple[tuple[T, ...], ...]:
    """Shuffle and cut into consecutive parts."""
    shuffled = list(items)
    Random(seed).shuffle(shuffled)
    train, selection, _ = counts(len(shuffled), ratio)
    middle = train + selection
    return tuple(shuffled[:train]), tuple(shuffled[train:middle]), tuple(shuffled[middle:])


def counts(total: int, ratio: tuple[int, int, int]) -> tuple[int, int, int]:
    """How many go where: whole shares first, what is left to the largest remainders, then to the larger weights."""
    # In floating point, rounding and all, so that a pool is divided exactly as SkillOpt divides it.
    shares = [total * weight / sum(ratio) for weight in ratio]
    sizes = [math.floor(share) for share in shares]
    order = sorted(range(3), key=lambda i: (-(shares[i] - sizes[i]), -ratio[i], i))
    for i in order[: total - sum(sizes)]:
        sizes[i] += 1
    return sizes[0], sizes[1], sizes[2]


def read_folder(folder: Path) -> tuple[Tasks, Tasks, Tasks]:
    """The three splits of a directory. Each is read from the first `*.json` or `*.jsonl` in its folder."""
    return _read_split(folder, "train"), _read_split(folder, "selection", "val"), _read_split(folder, "test")


def _read_split(folder: Path, *names: str) -> Tasks:
    places = [folder / name for name in names if (folder / name).is_dir()]
    files = sorted(path for place in places for path in place.iterdir() if path.suffix in (".json", ".jsonl"))
    if not files:
        raise ConfigError(f"data.folder: {folder / names[0]} must be a folder with a .json or .jsonl file of tasks")
    try:
        data = files[0].read_bytes()
        if files[0].suffix == ".json":
            tasks = msgspec.json.decode(data, type=tuple[Task, ...])
        else:
            tasks = tuple(msgspec.json.Decoder(Task).decode_lines(data))
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"data.folder: {files[0]} has no tasks that can be read: {error}") from None
    return tuple(_in(names[0], task) for task in tasks)


# ---- the plan of an epoch -----------------------------------------------------------------------------------------


class Batch(Struct, frozen=True):
    """Tasks that are rolled out together. The seed also orders the reflection on them."""

    seed: int
    tasks: Tasks


def steps_per_epoch(train: int, batch_size: int, accumulation: int) -> int:
    return math.ceil(train / (batch_size * accumulation))


def plan_epoch(
    tasks: Sequence[Task], epoch: int, *, batch_size: int, accumulation: int, seed: int
) -> list[tuple[Batch, ...]]:
    """The batches of an epoch (from 1), step by step: every task once, and a batch that would be empty filled anew."""
    order = _shuffled(tasks, seed + 1000 * epoch)
    steps: list[tuple[Batch, ...]] = []
    for step in range(steps_per_epoch(len(tasks), batch_size, accumulation)):
        batches: list[Batch] = []
        for index in range(step * accumulation, (step + 1) * accumulation):
            part = order[index * batch_size : (index + 1) * batch_size]
            its = batch_seed(seed, epoch, index)
            batches.append(Batch(its, part or sample(order, batch_size, its)))
        steps.append(tuple(batches))
    return steps


def batch_seed(seed: int, epoch: int, index: int) -> int:
    """The seed of a batch: `index` is its place in the epoch, from 0."""
    return seed + 1000 * epoch + index + 1


def sample(tasks: Sequence[Task], size: int, seed: int) -> Tasks:
    """Some of the tasks, drawn without putting back."""
    return _shuffled(tasks, seed)[:size]


def slow_seed(seed: int, epoch: int) -> int:
    """The seed of an epoch's longitudinal sample."""
    return seed + 2000 * epoch


def _shuffled(tasks: Sequence[Task], seed: int) -> Tasks:
    shuffled = list(tasks)
    Random(seed).shuffle(shuffled)
    return tuple(shuffled)
