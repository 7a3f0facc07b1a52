"""SkillOpt's adapters inside our trainer. Those of the package itself are run where it is installed."""

import asyncio
import json
import re
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.build import make_rollout

from ludus.cli import main
from ludus.compat.skillopt.adapters import (
    AdapterAgent,
    AdapterEnv,
    AdapterReflection,
    _read_conversation,
    _read_details,
    acts_itself,
    find_trouble,
    format_conversation,
    read_row,
)
from ludus.compat.skillopt.config_file import read_config
from ludus.config.references import load_object
from ludus.errors import ConfigError
from ludus.models.scripted import ScriptedModel
from ludus.policy import Policy
from ludus.reflact.records import Record, Step, Summary
from ludus.reflact.splits import Splits, load_splits
from ludus.reflact.train_settings import DataSettings, SlowUpdate, TrainSettings
from ludus.reflact.trainer import train
from ludus.reflact.training_run import RECORDS, Resources
from ludus.rollout import run
from ludus.runner import Job, Runner
from ludus.skill import Skill
from ludus.store import MemoryStore, RunDir, Store
from ludus.types import Completion, Message, Reasoning, Rollout, Sampling, StopReason, Task

ADAPTER = '''
"""An adapter as SkillOpt's documentation shapes it, without the package."""
import json
from pathlib import Path


class Loader:
    def __init__(self, split_dir):
        self.split_dir = split_dir

    def setup(self, cfg):
        self.items = {
            split: json.loads(Path(self.split_dir, split, "items.json").read_text())
            for split in ("train", "val", "test")
        }

    def get_split_items(self, split):
        return self.items[split]

    def get_train_size(self):
        return len(self.items["train"])


class Rules:
    """A task is solved when the skill has its rule."""

    def __init__(self, split_dir="", workers=4, mood="fair"):
        self.loader, self.mood = Loader(split_dir), mood
        self.seen = []

    def setup(self, cfg):
        print("setting up")
        self.loader.setup(cfg)
        self.cfg = dict(cfg)

    def get_dataloader(self):
        return self.loader

    def requires_ray(self):
        return self.mood == "distributed"

    def build_env_from_batch(self, batch, **more):
        return list(batch.payload)

    def rollout(self, env_manager, skill_content, out_dir, **more):
        print("rolling")
        self.seen.append((more, Path(out_dir).exists(), list(Path(out_dir).iterdir())))
        rows = []
        for item in env_manager:
            if self.mood == "broken":
                raise ConnectionError("no server")
            if self.mood == "forgetful":
                continue
            right = item["rule"] in skill_content
            reason = "" if right else f"rule missing: {item['rule']}"
            if self.mood == "late":
                right, reason = False, "task-timeout-180s"
            place = Path(out_dir, "predictions", str(item["id"]))
            place.mkdir(parents=True)
            talk = [{"role": "user", "content": item["question"]}, {"role": "assistant", "content": str(right)}]
            (place / "conversation.json").write_text(json.dumps(talk))
            rows.append({"id": item["id"], "hard": int(right), "soft": 1.0 if right else 0.25, "fail_reason": reason})
        return rows

    def get_task_types(self):
        return ["rule"]


class Reflecting(Rules):
    """Has ideas of its own."""

    def reflect(self, results, skill_content, out_dir, *, prediction_dir, patches_dir, random_seed, **more):
        self.seeds = [*getattr(self, "seeds", []), random_seed]
        failed = [row for row in results if not row["hard"]]
        talks = [json.loads(Path(prediction_dir, str(row["id"]), "conversation.json").read_text()) for row in failed]
        assert all(talks) and "step_buffer_context" in more and "meta_skill_context" in more
        rules = sorted({row["fail_reason"].split(": ")[1] for row in failed})
        edits = [{"op": "append", "content": f"Obey {rule}.", "target": ""} for rule in rules]
        return [None, {"patch": {"reasoning": "r", "edits": [*edits, "not an edit"]}, "source_type": "failure"}]


class Escaping(Rules):
    """Has ids that would be paths to somewhere else."""

    def rollout(self, env_manager, skill_content, out_dir, **more):
        return [{"id": item["id"], "hard": 0, "soft": 0.0, "fail_reason": "no"} for item in env_manager]

    def reflect(self, results, skill_content, out_dir, *, prediction_dir, **more):
        self.escaped = [row["id"] for row in results if Path(prediction_dir, row["id"]).exists()]
        return []


class Games(Rules):
    """Its loader says more of a batch than the items."""

    def setup(self, cfg):
        super().setup(cfg)
        self.batches = []
        self.loader.build_train_batch = self.build_train_batch
        self.loader.build_eval_batch = self.build_eval_batch

    def build_train_batch(self, *, batch_size, seed, out_root):
        return self.make_batch("train")

    def build_eval_batch(self, *, env_num, split, seed, **kwargs):
        return self.make_batch({"valid_seen": "val", "valid_unseen": "test"}[split])

    def make_batch(self, split):
        class Batch:
            payload = self.loader.items[split]
            metadata = {
                "eval_dataset": "eval_in_distribution" if split == "val" else split,
                "gamefiles": [f"game-{index}" for index, _ in enumerate(payload)],
            }

        return Batch

    def build_env_from_batch(self, batch, out_root=""):
        self.batches.append((batch, {"out_root": out_root}))
        return list(batch.payload)


class Watching(Rules):
    """Notes which items come with feedback."""

    def rollout(self, env_manager, skill_content, out_dir, **more):
        with Path(self.cfg["split_dir"], "feedback.txt").open("a") as file:
            for item in env_manager:
                print(item["id"].split(":")[0], more.get("use_eval_feedback"), file=file)
        return super().rollout(env_manager, skill_content, out_dir, **more)


class Simulator(Rules):
    """Has seeds instead of items."""

    def get_dataloader(self):
        return None

    def setup(self, cfg):
        pass

    def build_env_from_batch(self, batch, **more):
        return [{"id": f"episode-{batch.seed}", "rule": f"RULE-{batch.seed % 3}", "question": str(batch.seed)}]


class Episodes(Rules):
    """Has the two builders and no loader. The rows say what kind of task an episode was."""

    def __init__(self, **kwargs):
        self.built, self.mood = [], "fair"
        self.seen = []

    def setup(self, cfg):
        self.cfg = cfg

    def get_dataloader(self):
        return None

    build_env_from_batch = None

    def build_train_env(self, batch_size, seed, **kwargs):
        return self.build("train", batch_size, seed, kwargs)

    def build_eval_env(self, env_num, split, seed, **kwargs):
        return self.build(split, env_num, seed, kwargs)

    def build(self, split, count, seed, more):
        self.built.append((split, count, seed, sorted(more)))
        return [{"id": f"{split}-episode-{seed}", "rule": f"RULE-{seed % 2}", "question": str(seed)}]

    def rollout(self, env_manager, skill_content, out_dir, **more):
        rows = super().rollout(env_manager, skill_content, out_dir, **more)
        return [{**row, "task_type": "even" if row["id"].endswith(("0", "2")) else "odd"} for row in rows]

    def get_task_types(self):
        return ["even", "odd"]


class Planned(Rules):
    """A simulator whose loader plans episodes."""

    def setup(self, cfg):
        self.planned = []
        outer = self

        class Batch:
            payload = None

            def __init__(self, split, seed):
                self.split, self.seed, self.metadata = split, seed, {"game": f"{split}-{seed}"}

        class Planner:
            def get_train_size(self):
                return 3

            def build_train_batch(self, batch_size, seed, **kwargs):
                return Batch("train", seed)

            def build_eval_batch(self, env_num, split, seed, **kwargs):
                return Batch(split, seed)

        self.planner = Planner()

    def get_dataloader(self):
        return self.planner

    def build_env_from_batch(self, batch, **more):
        self.planned.append(batch.metadata["game"])
        assert batch.payload is None
        return [{"id": f"episode-{batch.seed}", "rule": f"RULE-{batch.seed % 3}", "question": str(batch.seed)}]
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rules_adapter.py"
    path.write_text(ADAPTER)
    for split, count in (("train", 6), ("val", 6), ("test", 3)):
        items = [{"id": f"{split}:{n}", "question": f"{split} {n}?", "rule": f"RULE-{n % 3}"} for n in range(count)]
        (tmp_path / "data" / split).mkdir(parents=True)
        (tmp_path / "data" / split / "items.json").write_text(json.dumps(items))
    return path


def made(file: Path, kind: str = "Rules", **settings: Any) -> AdapterEnv:
    return AdapterEnv(adapter=f"{file}:{kind}", settings={"split_dir": str(file.parent / "data"), **settings})


DATA = DataSettings(mode="splits", train="train", selection="val", test="test")
SETTINGS = TrainSettings(
    recipe="reflact",
    epochs=2,
    batch_size=3,
    minibatch_size=2,
    slow=SlowUpdate(enabled=False),
    memory=False,
    edit_budget=2,
)


def optimizer(messages: Sequence[Message], tools: Any, sampling: Sampling) -> str:
    """Proposes the rules that failures name, and merges nothing away."""
    asked = messages[1].content
    if not sampling.stage.startswith("analyst"):
        count = asked.count("content: ")
        return json.dumps({"selected": list(range(1, count + 1)), "items": []})
    rules = re.findall(r"rule missing: (RULE-\d)", asked) if sampling.stage == "analyst_failure" else []
    return json.dumps({"items": [{"op": "append", "content": f"Obey {rule}."} for rule in dict.fromkeys(rules)]})


async def collect(records: AsyncGenerator[Record, None]) -> list[Record]:
    return [record async for record in records]


async def trained(
    env: AdapterEnv, settings: TrainSettings = SETTINGS, *, store: Store | None = None, **resources: Any
) -> list[Record]:
    agent = AdapterAgent(env)
    try:
        return await collect(
            train(
                Runner(env, store=store or MemoryStore()),
                Policy(ScriptedModel(acts_itself), Skill("# Rules\n"), agent=agent),
                load_splits(env, DATA),
                settings,
                optimizer=ScriptedModel(optimizer, name="optimizer"),
                proposer=env.make_proposer(),
                resources=Resources(**resources),
            )
        )
    finally:
        await agent.close()


def rolled(env: AdapterEnv, task: Task, skill: str = "RULE-0", stage: str = "") -> Rollout:
    async def go() -> Rollout:
        agent = AdapterAgent(env)
        policy = Policy(ScriptedModel(acts_itself), Skill(skill), agent=agent.use_stage(stage))
        try:
            return await run(Job(task, policy, seed=5), Runner(env))
        finally:
            await agent.close()

    return asyncio.run(go())


async def test_an_adapter_trains(file: Path, tmp_path: Path):
    env = made(file)
    with RunDir.open(tmp_path / "run", {}) as store:
        records = await trained(env, store=store)
    summary = records[-1]
    assert isinstance(summary, Summary)
    assert summary.best.test is not None and summary.best.test.overall.hard == 1.0
    assert summary.initial.test is not None and summary.initial.test.overall.hard == 0.0
    assert all(rule in summary.best.skill.text for rule in ("RULE-0", "RULE-1", "RULE-2"))
    with RunDir.open(tmp_path / "run", {}, resume=True) as store:
        again = made(file)
        assert await trained(again, store=store) == records
        assert again.live.seen == []  # everything was found


async def test_feedback_is_for_training_rollouts_and_not_for_slow_updates(file: Path, tmp_path: Path):
    env = made(file, "Watching")
    await trained(env, msgspec.structs.replace(SETTINGS, slow=SlowUpdate(enabled=True, samples=2)))
    given = Counter((tmp_path / "data" / "feedback.txt").read_text().splitlines())
    assert given["train True"] == 12 and given["train None"] == 2  # both skills are one text by then
    assert not given["val True"] and not given["test True"] and given["val None"] and given["test None"]


async def test_its_own_reflection_is_used(file: Path):
    env = made(file, "Reflecting")
    assert isinstance(env.make_proposer(), AdapterReflection)
    assert made(file).make_proposer() is None
    steps = [record for record in await trained(env) if isinstance(record, Step)]
    first = steps[0].reflections[0]
    assert first.source == "failure" and first.items and first.reasoning == "r"
    assert first.cut == 1  # what was not in form is counted
    assert all(item.support == len(first.tasks) for item in first.items)
    assert steps[0].action == "accept_new_best"
    assert env.live.seeds == [batch.seed for step in steps for batch in step.batches] == [1043, 1044, 2043, 2044]


async def test_what_its_own_reflection_said_is_found_when_an_unfinished_step_is_resumed(file: Path):
    store = MemoryStore()
    records = await trained(made(file, "Reflecting"), store=store)
    for key in [key for key, (kind, _) in store.bodies.items() if kind == RECORDS]:
        del store.bodies[key]  # as if no step had been finished
    again = made(file, "Reflecting")
    assert [record.state for record in await trained(again, store=store)] == [record.state for record in records]
    assert again.live.seen == [] and not hasattr(again.live, "seeds")


def test_a_simulator_has_seeds_for_tasks(file: Path):
    env = made(file, "Simulator", train_size=4, sel_env_num=2, test_env_num=1)
    splits = load_splits(env, DATA)
    assert [task.id for task in splits.train] == ["train-0", "train-1", "train-2", "train-3"]
    rollout = rolled(env, splits.train[0])
    assert rollout.score is not None and rollout.score.passed
    assert (read_row(rollout) or {})["id"] == "episode-0"


async def test_an_adapter_without_a_loader_gets_the_calls_of_its_builders(file: Path, tmp_path: Path):
    config = tmp_path / "theirs.yaml"
    config.write_text(
        f"env: {{name: '{file}:Episodes'}}\ntrain: {{train_size: 4}}\nevaluation: {{sel_env_num: 3, test_env_num: 2}}\n"
    )
    found = read_config(config).tree["env"]
    env = AdapterEnv(adapter=found["adapter"], settings=found["settings"], cfg=found["cfg"])
    splits = load_splits(env, DATA)
    assert [len(split) for split in (splits.train, splits.selection)] == [4, 3]
    await trained(env)
    calls = set(map(tuple, (call[:3] for call in env.live.built)))
    assert {("train", 1, seed) for seed in range(4)} | {("valid_seen", 1, seed) for seed in range(3)} <= calls
    assert ("valid_unseen", 1, 1) in calls and all(call[3] == ["out_root"] for call in env.live.built)


def test_splits_have_the_names_of_both_systems(file: Path):
    env = made(file)
    for name, ours in {"valid_seen": "val", "selection": "val", "valid_unseen": "test", "train": "train"}.items():
        tasks = list(env.tasks(name))
        assert tasks and tasks == list(env.tasks(ours)), name
        assert rolled(env, tasks[0]).score is not None
    assert list(env.tasks("validation")) == []  # SkillOpt's loaders take an unknown name for `val`


async def test_task_types_are_those_of_the_rows_if_items_have_none(file: Path):
    env = made(file, "Episodes", train_size=4, sel_env_num=2, test_env_num=4)
    assert {task.kind for task in env.tasks("test")} == {""}
    summary = (await trained(env))[-1]
    assert isinstance(summary, Summary) and summary.best.test is not None
    assert {kind: bucket.tasks for kind, bucket in summary.best.test.kinds.items()} == {"even": 2, "odd": 2}


def test_a_loader_makes_the_batch_of_an_episode(file: Path):
    env = made(file, "Planned", train_size=3, sel_env_num=2, test_env_num=1)
    assert rolled(env, list(env.tasks("val"))[1]).score is not None
    assert rolled(env, list(env.tasks("train"))[2]).score is not None
    assert env.live.planned == ["valid_seen-1", "train-2"]


def test_items_come_with_the_metadata_of_their_batch_and_splits_have_their_names(file: Path):
    env = made(file, "Games", sel_env_num=2, mood="fair")
    task = next(iter(env.tasks("val")))
    assert rolled(env, task).score is not None
    ((batch, more),) = env.live.batches
    assert (batch.phase, batch.split, batch.payload[0]["id"]) == ("eval", "valid_seen", "val:0")
    assert batch.metadata == {"eval_dataset": "eval_in_distribution", "gamefiles": ["game-0"]}
    assert more == {"out_root": env.folder}
    assert task.kind == "rule"


def test_setup_sees_the_whole_configuration(file: Path, tmp_path: Path):
    config = tmp_path / "theirs.yaml"
    config.write_text(
        f"env: {{name: '{file}:Simulator', mood: fair}}\ntrain: {{train_size: 4}}\n"
        "evaluation: {sel_env_num: 3, test_env_num: 2, gate_metric: soft}\noptimizer: {learning_rate: 7}\n"
        "model: {backend: qwen, optimizer: big, target: small, reasoning_effort: low, qwen_chat_temperature: 0.2}\n"
    )
    env = read_config(config).tree["env"]
    made_env = AdapterEnv(adapter=env["adapter"], settings=env["settings"], cfg=env["cfg"])
    assert [len(list(made_env.tasks(split))) for split in ("train", "val", "test")] == [4, 3, 2]
    assert {"gate_metric": "soft", "edit_budget": 7, "optimizer_model": "big", "model_backend": "qwen"}.items() <= (
        made_env.cfg.items()
    )
    given = AdapterEnv(adapter=f"{file}:Episodes", settings=env["settings"], cfg=env["cfg"]).live.cfg
    for name, value in {
        "optimizer_model": "big",
        "target_model": "small",
        "optimizer_backend": "openai_chat",
        "target_backend": "qwen_chat",
        "reasoning_effort": "low",
        "qwen_chat_temperature": 0.2,
        "sel_env_num": 3,
        "num_epochs": 4,
        "mood": "fair",
        "env": f"{file}:Simulator",
    }.items():
        assert given[name] == value, name


def test_the_record_has_what_the_adapter_said(file: Path):
    env = made(file)
    tasks = list(env.tasks("train"))
    assert (tasks[0].id, tasks[0].prompt, tasks[0].answer["rule"]) == ("train:0", "train 0?", "RULE-0")
    good, bad = rolled(env, tasks[0], stage="rollout"), rolled(env, tasks[1], stage="rollout")
    assert good.score is not None and (good.score.value, good.score.passed, good.score.soft) == (1.0, True, 1.0)
    assert bad.score is not None and (bad.score.passed, bad.score.feedback) == (False, "rule missing: RULE-1")
    assert bad.answer == "[user] train 1?\n[assistant] False"
    assert env.live.seen == [({"use_eval_feedback": True}, True, [])] * 2  # each in an empty folder of its own
    assert rolled(env, next(iter(env.tasks("val")))).score is not None
    assert env.live.seen[-1][0] == {}


def test_the_row_is_in_the_details_of_the_rollout_and_in_no_message(file: Path):
    env = made(file)
    (task, *_) = env.tasks("train")
    rollout = rolled(env, task)
    assert rollout.opening == (Message("system", "RULE-0"), Message("user", "train 0?"))
    (turn,) = rollout.turns
    assert turn.completion.message.reasoning is None and rollout.stop == turn.stop == StopReason.FINISHED
    assert rollout.details is not None and set(rollout.details) == {"row", "conversation"}
    assert rollout.provenance.model == f"{file}:Rules"
    assert read_row(rollout) == {"id": "train:0", "hard": 1, "soft": 1.0, "fail_reason": ""}


async def test_rollouts_of_older_runs_have_their_row_with_the_reasoning(file: Path):
    """They are found by the same content address, so an unfinished run of an older Ludus can be resumed."""
    row = {"id": "train:0", "hard": 1, "soft": 1.0, "fail_reason": ""}
    raw = {"row": row, "conversation": ["said"]}
    message = Message("assistant", "[agent] said", reasoning=Reasoning("", "reasoning_details", raw))
    older = make_rollout(1.0, Completion(message), stop=StopReason.FINISHED)
    assert read_row(older) == row
    assert _read_details(older) == raw
    score = await made(file).verify(older, None)
    assert score.passed
    assert read_row(make_rollout(1.0, "words")) is None


def test_settings_of_older_runs_name_another_module():
    assert load_object("ludus.compat.skillopt_adapters:AdapterEnv", "env.name") is AdapterEnv


async def test_the_fingerprint_of_an_adapter_is_that_of_older_runs(file: Path):
    """A model of the same name stood in its place."""
    env = made(file, target_model="gpt")
    agent = AdapterAgent(env)
    await agent.close()
    older = Policy(ScriptedModel([], name=f"{file}:Rules/gpt"), Skill("s"))
    assert Policy(ScriptedModel(acts_itself), Skill("s"), agent=agent).fingerprint == older.fingerprint


@pytest.mark.parametrize(
    ("mood", "words"),
    [("broken", "ConnectionError: no server"), ("forgetful", "no row"), ("late", "task-timeout-180s")],
)
def test_what_could_not_be_measured_is_a_failure_and_not_a_zero(file: Path, mood: str, words: str):
    env = made(file, mood=mood)
    rollout = rolled(env, next(iter(env.tasks("train"))))
    assert rollout.score is None
    assert rollout.failure is not None and rollout.failure.boundary == "model" and words in rollout.failure.message


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (None, "no row"),
        ({"hard": None}, "no usable 'hard'"),
        ({"hard": float("nan"), "soft": 0.0}, "no usable 'hard'"),
        ({"hard": 0, "soft": "x"}, "no usable 'soft'"),
        ({"hard": 0, "soft": 0.0, "fail_reason": "error: 429"}, "error: 429"),
        ({"hard": 0, "soft": 0.0, "fail_reason": "unexpected: KeyError: 'x'"}, "unexpected"),
        ({"hard": 0, "soft": 0.0, "fail_reason": "EM=0: errors are made"}, ""),
        ({"hard": 0, "fail_reason": None}, ""),
        ({"hard": 0.5, "soft": 0.5, "fail_reason": "error in 1 of 2"}, ""),
    ],
)
def test_which_rows_say_nothing(row: Any, words: str):
    assert (words in find_trouble(row)) if words else find_trouble(row) == ""


def test_a_conversation_is_found_whatever_the_adapter_made_of_the_id(tmp_path: Path):
    (tmp_path / "a_b").mkdir()
    (tmp_path / "a_b" / "conversation.json").write_text('["said"]')
    assert _read_conversation(tmp_path, "a/b") == ["said"] == _read_conversation(tmp_path, "../../a_b")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "conversation.json").write_text('["other"]')
    assert _read_conversation(tmp_path, "a/b") == []  # it could be either
    assert _read_conversation(tmp_path, "c") == ["other"]


async def test_an_id_is_no_path_to_somewhere_else(file: Path, tmp_path: Path):
    for split in ("train", "val", "test"):
        items = [{"id": f"../../{split}{n}", "question": "?", "rule": f"RULE-{n}"} for n in range(2)]
        (tmp_path / "data" / split / "items.json").write_text(json.dumps(items))
    env = made(file, "Escaping")
    assert isinstance((await trained(env))[-1], Summary)
    assert env.live.escaped == []


def test_conversations_in_words():
    talk = [
        {"role": "user", "content": "go"},
        {"type": "tool_call", "cmd": "ls", "obs": "a.txt"},
        {"step": 1, "reasoning": "hm", "action": "look", "env_feedback": "a door"},
        {"role": "system", "content": "EM=0"},
        "bare",
    ]
    assert format_conversation(talk).splitlines() == [
        "[user] go",
        "[does] ls",
        "[sees] a.txt",
        "[thinks] hm",
        "[does] look",
        "[sees] a door",
        "[judge] EM=0",
        "[agent] bare",
    ]
    assert "no conversation" in format_conversation([])


def test_what_cannot_be_run_is_refused(file: Path):
    with pytest.raises(ConfigError, match="FileNotFoundError"):
        _ = AdapterEnv(adapter=f"{file}:Rules", settings={"split_dir": "nowhere"}).live
    with pytest.raises(ConfigError, match="is no EnvAdapter: it has no get_dataloader, build_env_from_batch, rollout"):
        _ = AdapterEnv(adapter=f"{file}:Loader").live
    with pytest.raises(ConfigError, match="the adapter has 6 train items"):
        list(made(file, train_size=400).tasks("train"))


HOOKS = ("build_reference_text", "get_reference_metadata", "attach_reference_context", "select_representative_items")
"""Hooks of SkillOpt's base class that its trainer never calls."""


async def test_reference_and_diagnostic_hooks_are_not_called(file: Path, monkeypatch: pytest.MonkeyPatch):
    env = made(file)

    def refuse(*given: Any, **named: Any) -> Any:
        raise AssertionError("it was called")

    for name in HOOKS:
        monkeypatch.setattr(type(env.live), name, refuse, raising=False)
    summary = (await trained(env))[-1]
    assert isinstance(summary, Summary) and summary.best.selection == 1.0


GUARDED = """
class Guarded(Rules):
    def reflect(self, results, skill_content, out_dir, **more):
        rules = sorted({row["fail_reason"].split(": ")[1] for row in results if not row["hard"]})
        texts = [f"Obey {rule}. The password is hunter2hunter2x1" for rule in rules]
        edits = [{"op": "append", "content": text, "target": ""} for text in texts]
        return [{"patch": {"reasoning": "r", "edits": edits}, "source_type": "failure"}]
"""


def test_a_file_of_theirs_ships_the_best_on_few_tasks_and_guards_warn(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Two tasks are too few to be certain, and each edit looks like a secret: Ludus alone would ship nothing."""
    file.write_text(file.read_text() + GUARDED)
    config = tmp_path / "theirs.yaml"
    config.write_text(
        f"env: {{name: '{file}:Guarded', split_dir: '{tmp_path / 'data'}'}}\n"
        "train: {num_epochs: 1, batch_size: 3}\nevaluation: {sel_env_num: 3}\n"
    )
    flags = ["train", "--skillopt", str(config), "--optimizer.type", "scripted"]
    flags += ["--optimizer.script", f"{file}:Guarded", "--json"]
    assert main([*flags, "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr()
    summary = json.loads(said.out)["summary"]
    assert "will stay" not in said.err and summary["best"]["origin"] != "initial_skill"
    assert [summary[name]["test"]["overall"]["hard"] for name in ("initial", "best", "final")] == [0.0, 1.0, 1.0]
    steps = [json.loads(line) for line in (tmp_path / "out" / "steps.jsonl").read_text().splitlines()]
    assert any("looks like a secret" in warning for step in steps for warning in step.get("warnings", ()))
    certain = ["--train.shipping.rule", "certain", "--train.selection_size", "2"]
    assert main([*flags, *certain, "--out", str(tmp_path / "certain")]) == 0
    said = capsys.readouterr()
    assert "the initial skill will stay" in said.err
    assert json.loads(said.out)["summary"]["best"]["origin"] == "initial_skill"
    kept = (tmp_path / "certain" / "best-on-selection" / "SKILL.md").read_text()
    assert "RULE-0" in kept and "RULE-0" not in (tmp_path / "certain" / "best" / "SKILL.md").read_text()
    assert main([*flags, *certain, "--dry-run"]) == 0
    assert "the initial skill will stay" in capsys.readouterr().err


RAY = """
started = []
def is_initialized(): return bool(started)
def init(**options): started.append(options)
"""


def test_ray_is_started_for_an_adapter_that_needs_it(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match="needs Ray, which is not installed here: pip install ray"):
        _ = made(file, mood="distributed").live
    monkeypatch.delitem(sys.modules, "ray")
    (tmp_path / "ray.py").write_text(RAY)
    monkeypatch.syspath_prepend(tmp_path)
    _ = made(file, mood="distributed").live, made(file, mood="distributed").live
    assert sys.modules["ray"].started == [{"num_gpus": 0}]
    monkeypatch.delitem(sys.modules, "ray")


GREEDY = """
class Greedy:
    def __init__(self, split_dir="", edit_budget=8, **more):
        self.told = {"split_dir": split_dir, "edit_budget": edit_budget, **more}
    def setup(self, cfg): self.cfg = dict(cfg)
    def get_dataloader(self): ...
    def requires_ray(self): return False
    def build_env_from_batch(self, batch): return batch.payload
    def rollout(self, env, skill, out_dir, **more): return []
"""


def test_only_named_parameters_are_passed_and_setup_gets_the_rest(tmp_path: Path):
    """Even if the constructor takes any. A parameter that the file does not name keeps the adapter's default."""
    (tmp_path / "greedy.py").write_text(GREEDY)
    path = tmp_path / "greedy.yaml"
    name = f"{tmp_path / 'greedy.py'}:Greedy"
    path.write_text(f"env: {{name: '{name}', split_dir: d, flavour: salty}}\ntrain: {{num_epochs: 2}}\n")
    given = read_config(path)
    assert given.notes == ("env.flavour is no parameter of the adapter: only its setup() gets it",)
    env = AdapterEnv(**{key: value for key, value in given.tree["env"].items() if key != "name"})
    adapter: Any = env.live
    assert adapter.told == {"split_dir": "d", "edit_budget": 8}
    assert (adapter.cfg["flavour"], adapter.cfg["num_epochs"]) == ("salty", 2)


# ---- the package itself -------------------------------------------------------------------------------------------

SEARCHQA = [
    {"id": f"q{n}", "question": f"Question {n}?", "context": "[DOC] nothing", "answers": [f"answer {n % 2}"]}
    for n in range(8)
]


@pytest.mark.filterwarnings("ignore")
def test_an_adapter_of_the_package_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("skillopt", reason="runs an original adapter, if it is installed", exc_type=ImportError)
    from skillopt.envs.searchqa import rollout as theirs

    def chat(system: str, user: str, **_: Any) -> tuple[str, dict[str, int]]:
        if "Question 7?" in user:
            raise RuntimeError("the server is down")
        return ("<answer>answer 0</answer>" if "ZERO" in system else "<answer>no idea</answer>"), {}

    monkeypatch.setattr(theirs, "chat_target", chat)
    monkeypatch.setattr(theirs, "load_prompt", lambda *_, **__: "{skill_section}")  # the package comes without them
    for split in ("train", "val", "test"):
        (tmp_path / split).mkdir()
        items = [item | {"id": f"{split}-{item['id']}"} for item in SEARCHQA]
        (tmp_path / split / "items.json").write_text(json.dumps(items))
    env = AdapterEnv(
        adapter="skillopt.envs.searchqa.adapter:SearchQAAdapter",
        settings={"split_dir": str(tmp_path), "split_mode": "split_dir", "workers": 2},
    )
    splits: Splits = load_splits(env, DataSettings(mode="splits", selection="val", overlap="refuse"))
    assert len(splits.train) == len(splits.selection) == 8
    right, wrong, broken = (rolled(env, splits.train[n], "ZERO") for n in (0, 1, 7))
    assert right.score is not None and right.score.passed
    assert wrong.score is not None and not wrong.score.passed and "[judge]" in wrong.answer
    assert broken.score is None and broken.failure is not None and "the server is down" in broken.failure.message


# ---- from the command line ----------------------------------------------------------------------------------------

OPTIMIZER = """
import json, re

def optimizer(messages, tools, sampling):
    asked = messages[1].content
    if not sampling.stage.startswith("analyst"):
        return json.dumps({"selected": [1, 2], "items": []})
    failed = asked if sampling.stage == "analyst_failure" else ""
    rules = dict.fromkeys(re.findall(r"rule missing: (RULE-\\d)", failed))
    return json.dumps({"items": [{"op": "append", "content": f"Obey {rule}."} for rule in rules]})
"""


def test_a_file_of_theirs_trains_from_the_command_line(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "optimizer.py").write_text(OPTIMIZER)
    config = tmp_path / "theirs.yaml"
    config.write_text(
        f"env: {{name: '{file}:Rules', split_dir: '{tmp_path / 'data'}', workers: 4}}\n"
        "train: {num_epochs: 2, batch_size: 3, steps_per_epoch: 9}\ngradient: {minibatch_size: 2}\n"
        "optimizer: {use_slow_update: false, use_meta_skill: false}\n"
    )
    flags = ["--skillopt", str(config), "--out", str(tmp_path / "out"), "--json"]
    script = ["--optimizer.type", "scripted", "--optimizer.script", f"{tmp_path / 'optimizer.py'}:optimizer"]
    assert main(["train", *flags, *script]) == 0
    said = capsys.readouterr()
    summary = json.loads(said.out)["summary"]
    assert summary["best"]["test"]["overall"]["hard"] == 1.0
    assert "steps_per_epoch does nothing" in said.err
    assert "setting up" in said.err and "rolling" in said.err  # and stdout was one JSON
    assert main(["train", "--resume", "--out", str(tmp_path / "out"), "--json"]) == 0
    capsys.readouterr()
    best = str(tmp_path / "theirs" / "best_skill.md")
    assert main(["export", str(tmp_path / "out"), "--format", "skillopt", "--to", str(tmp_path / "theirs")]) == 0
    assert "RULE-0" in Path(best).read_text()
    exported = json.loads((tmp_path / "theirs" / "summary.json").read_text())
    assert [(each["epoch"], each["steps"]) for each in exported["epoch_stats"]] == [(1, [1, 2]), (2, [3, 4])]
    assert exported["total_accepts"] == sum(each["accepts"] for each in exported["epoch_stats"])
    history = json.loads((tmp_path / "theirs" / "history.json").read_text())
    assert {row["lr_control_mode"] for row in history} <= {"fixed", None}
    flags = ["--skillopt", str(config), "--env.split", "test", "--agent.skill", best, "--out", str(tmp_path / "eval")]
    assert main(["evaluate", *flags, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["summary"]["overall"]["mean"] == 1.0
