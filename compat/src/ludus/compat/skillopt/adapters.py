"""SkillOpt's `EnvAdapter`s inside our trainer.

    env = AdapterEnv(adapter="my_bench:MyAdapter", settings={"split_dir": "data"})
    policy = Policy(ScriptedModel(acts_itself), skill, agent=AdapterAgent(env))
    async for record in train(Runner(env), policy, splits, settings, optimizer=model): …

An adapter is agent and judge at once: its `rollout` calls a model of its own and scores the result. Here it is an
environment (`AdapterEnv`) and an agent that acts in place of the loop (`AdapterAgent`). It runs one task at a time, in
an empty folder that is removed afterwards, so it cannot find rows of an earlier skill there. A task that raises, has no
row or reports an error is a failure, not a zero. The whole row and conversation are in `Rollout.details`. An adapter
with a reflection of its own keeps it (`make_proposer`).

The cost of an adapter's model is not known. Adapters run in several threads at once; for one that cannot, set
`run.concurrency` to 1. A thread cannot be stopped: after a time-out the adapter continues until it returns, and its
result is dropped. The client of the package is process-wide, so two runs in one process share it.
"""

import asyncio
import copy
import inspect
import json
import math
import re
import shutil
import sys
import tempfile
import time
import weakref
from collections.abc import AsyncIterator, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Protocol

import msgspec

from ludus.compat.skillopt.config_file import list_parameters, load_adapter
from ludus.compat.skillopt.history_rows import FIELDS, PAYLOADS
from ludus.compat.skillopt.names import list_defaults
from ludus.config.reading import is_tree
from ludus.env import Env
from ludus.env_code import find_class_files
from ludus.errors import ConfigError, ModelError, VerifierError, boundary
from ludus.models import Model
from ludus.policy import Agent, AgentResult, Scene, seed_sampling
from ludus.reflact.items import FORMS, Item, credit_item
from ludus.reflact.measure import is_success
from ludus.reflact.proposers import Proposer, View
from ludus.reflact.proposers.analysts import Analysts
from ludus.reflact.records import Reflection
from ludus.reflact.splits import derive_batch_seed
from ludus.reflact.stages.reflect import parse_notes
from ludus.reflact.train_settings import UpdateMode
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.skill import Source
from ludus.types import Completion, Message, Rollout, Sampling, Score, StopReason, Task, ToolSpec, Turn

# ---- adapters -----------------------------------------------------------------------------------------------------


class EnvAdapter(Protocol):
    """The methods of an adapter that are used here."""

    def setup(self, cfg: dict[str, Any]) -> None: ...
    def get_dataloader(self) -> Any: ...
    def requires_ray(self) -> bool: ...
    def build_env_from_batch(self, batch: Any, /, **more: Any) -> Any: ...
    def rollout(self, env: Any, skill: str, out_dir: str, /, **more: Any) -> list[dict[str, Any]]: ...
    def reflect(self, results: list[dict[str, Any]], skill: str, out_dir: str, /, **more: Any) -> list[Any]: ...


@dataclass(frozen=True)
class BatchSpec:
    """The items that an adapter should run, with the fields of SkillOpt's own class."""

    phase: str
    split: str
    seed: int
    batch_size: int
    payload: Any = None
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])


class AdapterEnv(Env, frozen=True, kw_only=True, dict=True, weakref=True):
    """Tasks and scores of an `EnvAdapter`. It brings its agent too."""

    name: ClassVar[str] = "skillopt-adapter"
    sandbox: ClassVar[SandboxSpec | None] = None
    adapter: str
    """`module:Class` or `file.py:Class`."""
    settings: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])
    """Arguments and settings of the adapter, by SkillOpt's flat names."""
    cfg: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])
    """Further settings that the adapter's `setup` may look up, by the same names."""

    def list_code(self) -> Iterable[Path]:
        return find_class_files(load_adapter(self.adapter))

    @property
    def title(self) -> str:
        return self.adapter.rpartition(":")[2]

    def make_agent(self, model: Model) -> "AdapterAgent":
        return AdapterAgent(self)

    def make_proposer(self) -> Proposer | None:
        """A proposer with the adapter's own reflection; None if it has none: then Ludus's analysts reflect."""
        own = ("reflect", "get_error_minibatch_prompt", "get_success_minibatch_prompt")
        base = ("skillopt.envs.base", __name__)
        found = (getattr(type(self.live), name, None) for name in own)
        overrides = any(getattr(method, "__module__", base[0]) not in base for method in found)
        return AdapterReflection(self) if overrides else None

    @cached_property
    def live(self) -> EnvAdapter:
        """The adapter, made and set up."""
        kind = load_adapter(self.adapter)
        names = list_parameters(kind)
        values = {**list_defaults(), **self.cfg, **self.settings, "out_root": self.folder}
        arguments = {name: values[name] for name in names if name in self.settings}
        with _explain_errors(self.adapter):
            adapter: EnvAdapter = kind(**arguments)
            _select_model(values)
            adapter.setup(values)
            if adapter.requires_ray():
                _start_ray()
        return adapter

    @cached_property
    def folder(self) -> str:
        """A folder that the adapter may write to. It is removed with the environment."""
        folder = tempfile.mkdtemp(prefix="ludus-skillopt-")
        weakref.finalize(self, shutil.rmtree, folder, True)
        return folder

    def tasks(self, split: str) -> Iterable[Task]:
        """The tasks of a split, by the name here or one of SkillOpt's. A loader may take an unknown name for another
        split, so it is not asked."""
        name = _OTHER_NAMES.get(split, split)
        return (
            [_make_task(item, name, self._only_type) for item in self.load_items(name)] if name in SPLIT_NAMES else []
        )

    @cached_property
    def _only_type(self) -> str:
        """The type of all tasks, if the adapter has only one; empty if items or rows say it."""
        types = getattr(self.live, "get_task_types", list[str])()
        return str(types[0]) if len(types) == 1 else ""

    @cached_property
    def metadata(self) -> Mapping[tuple[str, str], dict[str, Any]]:
        """What the loader says of each item beside the item itself (ALFWorld: its game file), by split and id."""
        loader = self.live.get_dataloader()
        found: dict[tuple[str, str], dict[str, Any]] = {}
        with _explain_errors(self.adapter):
            for split in SPLIT_NAMES if loader is not None else ():
                found |= _read_metadata(loader, split, int(self.settings.get("seed", 42)), self.folder)
        return found

    def load_items(self, split: str) -> list[dict[str, Any]]:
        """The items of a split, as the adapter has them. A simulator has seeds in place of items."""
        loader = self.live.get_dataloader()
        with _explain_errors(self.adapter):
            seed = int(self.settings.get("seed", 42))
            found = None if loader is None else _read_items(loader, split, seed, self.folder)
        if found is None:
            count = {"train": "train_size", "val": "sel_env_num", "test": "test_env_num"}.get(split, "")
            number = int(self.settings.get(count, 0))
            return [{"id": f"{split}-{seed}", "seed": seed} for seed in range(number)]
        size = int(self.settings.get("train_size", 0))
        if split == "train" and size not in (0, len(found)):
            raise ConfigError(f"train.train_size is {size}, but the adapter has {len(found)} train items; set it to 0")
        return found

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        """The score that the adapter gave."""
        row = read_row(rollout)
        if row is None:
            raise VerifierError("no row: the policy's agent must be that of this environment")
        hard, soft = float(row["hard"]), float(row.get("soft", row["hard"]))
        return Score(hard, hard >= 1.0, min(1.0, max(0.0, soft)), str(row.get("fail_reason") or ""))


@contextmanager
def _explain_errors(adapter: str) -> Generator[None]:
    """Raise errors of the adapter's setup as `ConfigError`: an adapter is foreign code, and the user can fix it."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"adapter {adapter}: {error}") from None
    except Exception as error:
        raise ConfigError(f"adapter {adapter}: {type(error).__name__}: {error}") from error


def _select_model(values: Mapping[str, Any]) -> None:
    """Select the model in SkillOpt's own client. It reads keys and addresses from its environment variables."""
    client = sys.modules.get("skillopt.model")
    if client is None:
        return
    if values.get("target_backend"):
        client.set_target_backend(values["target_backend"])
    if values.get("target_model"):
        client.set_target_deployment(values["target_model"])


def _start_ray() -> None:
    """Start Ray for an adapter that needs it, as SkillOpt's trainer does, unless its `setup` has."""
    try:
        ray = import_module("ray")
    except ImportError:
        raise ConfigError("it needs Ray, which is not installed here: pip install ray") from None
    if not ray.is_initialized():
        ray.init(num_gpus=0)


def _read_items(loader: Any, split: str, seed: int, folder: str) -> list[dict[str, Any]] | None:
    """The items of a loader; None for a simulator, which has seeds in place of items."""
    if hasattr(loader, "get_split_items"):
        return list(loader.get_split_items(split))
    payload = _build_batch(loader, split, seed, folder).payload
    return list(payload) if isinstance(payload, list) else None  # pyright: ignore[reportUnknownArgumentType]


def _build_batch(loader: Any, split: str, seed: int, folder: str, size: int | None = None) -> Any:
    """A batch of the loader; by default, all items of a split."""
    if split == "train":
        count = (loader.get_train_size() or 0) if size is None else size
        return _call_hook(loader.build_train_batch, folder, batch_size=count, seed=seed)
    return _call_hook(loader.build_eval_batch, folder, env_num=size or 0, split=SPLIT_NAMES[split], seed=seed)


def _call_hook(hook: Any, folder: str, *given: Any, **named: Any) -> Any:
    """Call a method as SkillOpt's trainer does, which also passes the folder of the run."""
    takes = inspect.signature(hook).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD or parameter.name == "out_root" for parameter in takes):
        named["out_root"] = folder
    return hook(*given, **named)


def _read_metadata(loader: Any, split: str, seed: int, folder: str) -> dict[tuple[str, str], dict[str, Any]]:
    """The metadata of each item. A list with as many entries as there are items has one for each of them."""
    if not hasattr(loader, "build_train_batch" if split == "train" else "build_eval_batch"):
        return {}
    batch = _build_batch(loader, split, seed, folder)
    payload: Any = batch.payload
    items: list[Any] = payload if isinstance(payload, list) else []  # pyright: ignore[reportUnknownVariableType]
    given: Mapping[str, Any] = getattr(batch, "metadata", None) or {}
    return {
        (split, str(item["id"])): {name: _slice_metadata(value, index, len(items)) for name, value in given.items()}
        for index, item in enumerate(items)
        if given
    }


def _slice_metadata(value: Any, index: int, count: int) -> Any:
    return value[index : index + 1] if isinstance(value, list) and len(value) == count else value  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def _make_task(item: Mapping[str, Any], split: str, kind: str = "") -> Task:
    prompt = next((item[key] for key in ("question", "task_description", "instruction") if item.get(key)), item["id"])
    kind = item.get("task_type") or item.get("instruction_type") or kind
    return Task(id=str(item["id"]), prompt=str(prompt), split=split, kind=str(kind), answer=_to_plain(dict(item)))


def _to_plain(value: Any) -> Any:
    """Convert a value to plain JSON. Values that JSON does not have become text."""
    return json.loads(json.dumps(value, default=str))


class AdapterAgent(Agent):
    """Runs the adapter in place of the agent loop: one rollout is one item."""

    def __init__(self, env: AdapterEnv, threads: int = 256) -> None:
        self._env = env
        self._adapter = env.live
        self._items = {(split, str(item["id"])): item for split in SPLIT_NAMES for item in env.load_items(split)}
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="skillopt-adapter")
        self._stage = ""

    @property
    def name(self) -> str:
        return f"{self._env.adapter}/{self._env.settings.get('target_model', '')}".rstrip("/")

    @property
    def brings_model(self) -> bool:
        return True

    async def act(self, scene: Scene) -> StopReason:
        task, opening = scene.task, scene.opening
        item, seed = self._items[task.split, task.id], seed_sampling(scene.policy.sampling, scene.seed).seed or 0
        skill = opening[0].content if opening and opening[0].role == "system" else ""
        loop, started = asyncio.get_running_loop(), time.monotonic()
        with boundary(ModelError, f"adapter {self._env.adapter}, item '{task.id}'"):
            row, talk = await loop.run_in_executor(self._pool, self._run_item, item, task.split, skill, seed)
        if trouble := find_trouble(row):
            raise ModelError(f"adapter {self._env.adapter}, item '{task.id}': {trouble}")
        completion = Completion(Message("assistant", format_conversation(talk)), model=self.name)
        turn = Turn(completion, stop=StopReason.FINISHED, seconds=time.monotonic() - started)
        details = {"row": row, "conversation": talk}
        if kind := row.get("task_type") or row.get("instruction_type"):
            details["kind"] = str(kind)
        return scene.keep(AgentResult((), (), (turn,), StopReason.FINISHED, exit=None, error=None, details=details))

    def use_stage(self, stage: str) -> "AdapterAgent":
        found = copy.copy(self)
        found._stage = stage
        return found

    @property
    def stage(self) -> str:
        return self._stage

    def use_model(self, model: Model) -> "AdapterAgent":
        raise ConfigError("env.name: an adapter of SkillOpt brings a model of its own, which rl cannot train")

    async def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run_item(self, item: dict[str, Any], split: str, skill: str, seed: int) -> tuple[Any, list[Any]]:
        """Run the adapter on one item, in a folder of its own. Returns the row and the conversation."""
        with tempfile.TemporaryDirectory(dir=self._env.folder, ignore_cleanup_errors=True) as folder:
            more = {"use_eval_feedback": True} if self._stage == TRAINING_STAGE else {}
            rows = self._adapter.rollout(self._build_env(item, split, seed), skill, folder, **more)
            row = next((row for row in rows if str(row.get("id")) == str(item["id"])), None)
            if row is None and len(rows) == 1 and "seed" in item:
                row = rows[0]  # a simulator chooses the ids of its episodes
            id = str((row or item).get("id"))
            return _to_plain(row), _read_conversation(Path(folder) / "predictions", id)

    def _build_env(self, item: dict[str, Any], split: str, seed: int) -> Any:
        """The adapter's environment for one item, or for one episode of a simulator."""
        adapter, folder = self._adapter, self._env.folder
        if set(item) == {"id", "seed"}:
            return self._build_episode(split, item["seed"])
        metadata = self._env.metadata.get((split, str(item["id"])), {})
        spec = _make_spec(split, seed, [item], dict(metadata))
        return _call_hook(adapter.build_env_from_batch, folder, spec)

    def _build_episode(self, split: str, seed: int) -> Any:
        """Without a loader SkillOpt's trainer calls the two builders. A loader makes the batch of an episode."""
        adapter, folder, loader = self._adapter, self._env.folder, self._adapter.get_dataloader()
        if loader is not None:
            return _call_hook(adapter.build_env_from_batch, folder, _build_batch(loader, split, seed, folder, 1))
        train, evaluate = (getattr(adapter, name, None) for name in ("build_train_env", "build_eval_env"))
        if train is None or evaluate is None:
            return _call_hook(adapter.build_env_from_batch, folder, _make_spec(split, seed, None, {}))
        if split == "train":
            return _call_hook(train, folder, batch_size=1, seed=seed)
        return _call_hook(evaluate, folder, env_num=1, split=SPLIT_NAMES[split], seed=seed)


def _make_spec(split: str, seed: int, payload: Any, metadata: dict[str, Any]) -> Any:
    return _find_spec_class()("train" if split == "train" else "eval", SPLIT_NAMES[split], seed, 1, payload, metadata)


def acts_itself(messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> str:
    """The model in the settings of an adapter: it is never called, because `AdapterAgent` acts."""
    raise ModelError("an adapter acts by itself; `ludus train`, `evaluate` and `headroom` can run it", retryable=False)


TRAINING_STAGE = "rollout"
"""The stage whose rollouts the analysts read. An adapter may give its agent feedback in it, and in no other."""
SPLIT_NAMES = {"train": "train", "val": "valid_seen", "test": "valid_unseen"}
"""The splits, and the names that SkillOpt's trainer gives them."""
_OTHER_NAMES = {"valid_seen": "val", "selection": "val", "valid_unseen": "test"}


def _find_spec_class() -> type[Any]:
    """SkillOpt's own class if it is installed, because adapters may check the type; else `BatchSpec`."""
    module = sys.modules.get("skillopt.datasets.base")
    return BatchSpec if module is None else module.BatchSpec


def _read_conversation(predictions: Path, id: str) -> list[Any]:
    """The conversation in the folder of the item. An adapter may use another folder name; there is only one item."""
    path = predictions / id / "conversation.json"
    if not path.resolve().is_relative_to(predictions.resolve()) or not path.is_file():
        found = list(predictions.rglob("conversation.json"))
        if len(found) != 1:
            return []
        (path,) = found
    return msgspec.json.decode(path.read_bytes(), type=list[Any])


_BROKE = re.compile(r"(error|agent-error|unexpected|exception|task-timeout|no-test-cases)\b", re.IGNORECASE)


def find_trouble(row: Any) -> str:
    """Why a row is not a measurement of the skill; empty if it is one."""
    if row is None:
        return "it returned no row for the item"
    hard, soft = row.get("hard"), row.get("soft", row.get("hard"))
    for name, value in (("hard", hard), ("soft", soft)):
        if not isinstance(value, int | float) or not math.isfinite(value):
            return f"its row has no usable '{name}': {value!r}"
    reason = str(row.get("fail_reason") or "")
    return reason if not hard and _BROKE.match(reason) else ""


def read_row(rollout: Rollout) -> dict[str, Any] | None:
    """The adapter's row for a rollout; None if it has none."""
    return _read_details(rollout).get("row")


def _read_details(rollout: Rollout) -> Mapping[str, Any]:
    """What the adapter returned for a rollout: its row and its conversation."""
    return _read_reasoning(rollout) if rollout.details is None else rollout.details


def _read_reasoning(rollout: Rollout) -> Mapping[str, Any]:
    """The same from a rollout of an older Ludus, which stored it with the reasoning of the last message."""
    reasoning = rollout.turns[-1].completion.message.reasoning if rollout.turns else None
    raw: Any = reasoning.raw if reasoning is not None else None
    return raw if is_tree(raw) else {}


def format_conversation(conversation: Iterable[Any]) -> str:
    """A conversation of an adapter as text."""
    return (
        "\n".join(line for entry in conversation for line in _format_entry(entry))
        or "(the adapter kept no conversation)"
    )


def _format_entry(entry: Any) -> Iterator[str]:
    if not is_tree(entry):
        yield f"[agent] {entry}"
    elif entry.get("type") == "tool_call":
        yield f"[does] {entry.get('cmd', '')}"
        yield f"[sees] {entry.get('obs', '')}"
    elif "action" in entry and "env_feedback" in entry:
        if entry.get("reasoning"):
            yield f"[thinks] {entry['reasoning']}"
        yield f"[does] {entry['action']}"
        yield f"[sees] {entry['env_feedback']}"
    else:
        role = {"system": "judge"}.get(str(entry.get("role", "")), entry.get("role") or "agent")
        yield f"[{role}] {entry.get('content', '')}"


# ---- reflection of an adapter ------------------------------------------------------------------------------------


class AdapterReflection(Analysts):
    """Reflects with the adapter's own method, then merges and ranks like `Analysts`. If the adapter calls a model, it
    uses SkillOpt's client. It reads a batch as a whole, and its result is found again when a step is resumed."""

    name: ClassVar[str] = "skillopt-reflect"

    def __init__(self, env: AdapterEnv) -> None:
        self._env = env

    @property
    def identity(self) -> str:
        return f"{self.name}@{self.version}/{self._env.adapter}"

    async def reflect(self, view: View, batch: int, rollouts: AsyncIterator[Rollout]) -> tuple[Reflection, ...]:
        judged = [rollout async for rollout in rollouts if rollout.score is not None]

        async def ask() -> Any:
            with boundary(ModelError, f"adapter {self._env.adapter}: reflect"):
                return _to_plain(await asyncio.to_thread(self._call_reflect, view, batch, judged))

        read = [(rollout.task.id, _read_details(rollout)) for rollout in judged]
        what = (self.identity, self._env.settings, view.epoch, view.step, batch, view.skill, view.history, view.memory)
        patches = await view.require_optimizer().remember("adapter-reflect", (*what, read), ask)
        tasks: dict[Source, tuple[str, ...]] = {
            source: tuple(r.task.id for r in judged if is_success(r, view.settings.success_at) == (source == "success"))
            for source in ("failure", "success")
        }
        found = [_make_reflection(patch, tasks, view.settings.update_mode) for patch in patches if is_tree(patch)]
        return tuple(sorted(found, key=lambda reflection: reflection.source))  # failures first

    def _call_reflect(self, view: View, batch: int, judged: Sequence[Rollout]) -> list[Any]:
        with tempfile.TemporaryDirectory(dir=self._env.folder, ignore_cleanup_errors=True) as folder:
            predictions = Path(folder).resolve() / "predictions"
            for rollout in judged:
                place = predictions / str((read_row(rollout) or {}).get("id", rollout.task.id))
                if not place.resolve().is_relative_to(predictions):
                    continue  # the id is a path to another folder
                place.mkdir(parents=True, exist_ok=True)
                (place / "conversation.json").write_text(
                    json.dumps(_read_details(rollout).get("conversation")), "utf-8"
                )
            return self._env.live.reflect(
                [row for rollout in judged if (row := read_row(rollout)) is not None],
                view.skill.text,
                folder,
                prediction_dir=str(Path(folder, "predictions")),
                patches_dir=str(Path(folder, "patches")),
                random_seed=derive_batch_seed(view.settings.seed, view.epoch, _get_batch_index(view, batch)),
                step_buffer_context=view.history,
                meta_skill_context=view.memory,
            )


def _get_batch_index(view: View, batch: int) -> int:
    """The index of a batch within its epoch, from 0. `batch` is its number within the step, from 1."""
    return (view.place - 1) * view.settings.accumulation + batch - 1


def _make_reflection(raw: Mapping[str, Any], tasks: Mapping[Source, tuple[str, ...]], mode: UpdateMode) -> Reflection:
    """Convert one of the adapter's raw patches."""
    source: Source = "success" if raw.get("source_type") == "success" else "failure"
    given: Any = raw.get("patch", raw)
    patch: dict[str, Any] = given if is_tree(given) else {}
    payload: list[Any] = patch.get(PAYLOADS[mode]) or []
    items = [item for entry in payload if (item := _make_item(entry, mode)) is not None]
    return Reflection(
        source,
        tasks[source],
        tuple(credit_item(item, source, tasks[source]) for item in items),
        notes=parse_notes(raw.get("appendix_notes") or ()),
        reasoning=str(patch.get("reasoning") or ""),
        cut=len(payload) - len(items),
    )


def _make_item(entry: Any, mode: UpdateMode) -> Item | None:
    """Convert one of the adapter's proposals; None if it is malformed, which the reflection counts."""
    if not is_tree(entry):
        return None
    kind = FORMS[mode].item
    fields = {ours: entry[theirs] for theirs, ours in FIELDS[kind].items() if entry.get(theirs) is not None}
    try:
        return msgspec.convert(fields, kind, strict=False)
    except msgspec.ValidationError:
        return None
