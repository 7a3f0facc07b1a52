"""Ludus on the rule worlds: the real `train`, with a scripted agent and a scripted optimizer.

Variants: `ledger` (with options, as in `ledger:block_size=4`), `reflact` (the defaults of ReflACT: batches of 40, 4
edits, cosine, slow update), `reflact-tuned` (batches of 12, 8 edits, constant, no slow update), `gate-off` (the same
without the gate); each with `+store` for a complete run directory instead of a store in memory. And `random`: a search
of its own that adds random lines and keeps what scores higher on the selection split.
"""

import asyncio
import json
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import line_worlds as lw
import rule_world as rw

from ludus.env import Env
from ludus.models.scripted import ScriptedModel
from ludus.policy import Policy
from ludus.reflact.gate import Gate
from ludus.reflact.ledger.settings import LedgerSettings, LedgerTuning
from ludus.reflact.records import Baseline, Record, Step, Summary
from ludus.reflact.splits import Splits
from ludus.reflact.train_settings import SlowUpdate, TrainSettings
from ludus.reflact.trainer import train
from ludus.reflact.training_run import Resources
from ludus.runner import Runner, RunOptions
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.skill import Skill
from ludus.store import MemoryStore, RunDir, Store
from ludus.types import Completion, Finish, Message, Rollout, Sampling, Score, Task, ToolSpec

_SKILL = re.compile(r"# The skill as it is\n\n(.*?)\n\n# (?:What|Its)", re.DOTALL)
_LISTED = re.compile(r"^([LP]\d+) \[[^\n]*\((r\d+\.[xbhf]\d+)\)$", re.MULTILINE)
_TEXTS = re.compile(r"^### Rollout \d+: [^\n]*\(lines in its text: ([^)\n]*)\)$", re.MULTILINE)
_PROPOSAL = re.compile(r"^\[(\d+)\][^\n]*\nop: (\w+)(?:\ntarget: ([^\n]*))?(?:\ncontent: ([^\n]*))?", re.MULTILINE)
_TEST = 64
"""The tasks of the sealed test split. Their rollouts do not count; the true accuracy is computed."""


STORED = "+store"


class RuleItems(Env, frozen=True):
    """The items of a world. The agent's last line is the result."""

    name: ClassVar[str] = "rule-items"
    sandbox: ClassVar[SandboxSpec | None] = None

    def tasks(self, split: str) -> Iterable[Task]:
        return ()

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        return Score.of(float(rollout.answer.endswith("right")))


def make_splits(world: rw.World) -> Splits:
    def list_tasks(split: str, most: int | None = None) -> list[Task]:
        return [Task(id=i.id, prompt=f"Item {i.id}", split=split, kind=i.kind) for i in world.items[split][:most]]

    return Splits.from_tasks(list_tasks("train"), list_tasks("selection"), list_tasks("test", _TEST))


def make_agent(meter: rw.Meter) -> Callable[..., Completion]:
    world = meter.world

    def act(messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Completion:
        item = world.by_id[messages[-1].content.removeprefix("Item ")]
        text = messages[0].content if messages[0].role == "system" else ""
        meter.count(item.id)
        meter.prompt(text)
        return Completion(Message("assistant", world.run_agent(text, item, sampling.seed)), Finish.STOP)

    return act


class Optimizer:
    """The simulated optimizer: replies of each stage in the form that the trainer asks for."""

    def __init__(self, world: rw.World, edits: int) -> None:
        self.world, self.edits, self.calls = world, edits, 0
        self.tokens = 0
        """Tokens of all prompts, four characters each."""

    def __call__(self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> str:
        self.calls += 1
        self.tokens += sum(len(message.content) for message in messages) // 4
        user = messages[1].content
        rng = rw.make_random(self.world.key, "optimizer", sampling.stage, sampling.seed, user)
        return json.dumps(self._reply(sampling.stage, user, rng))

    def _reply(self, stage: str, user: str, rng: Random) -> dict[str, Any]:
        found = _SKILL.search(user)
        skill = found[1] if found else ""
        if stage == "analyst_lines":
            return self._read_lines(skill, user, rng)
        if stage.startswith("analyst"):
            history, _, shown = user.partition("\n# What you wrote down")
            history = history.partition("\n# What was tried")[2]
            if stage == "analyst_failure":
                proposals = self.world.propose(skill, rw.read_traces(shown), self.edits, rng, rw.read_codes(history))
            else:
                proposals = self.world.praise(skill, rng)
            return {"items": [edit for proposal in proposals if (edit := rw.make_edit(skill, proposal))]}
        if stage.startswith("merge"):
            edits = read_proposals(user)
            merged = rw.merge_edits([edit for _, edit in edits])
            return {"items": [{"item": e, "made_of": [edits[place][0] for place in places]} for e, places in merged]}
        if stage == "rank":
            return {"selected": [number for number, _ in read_proposals(user)]}
        lines = [proposal.text for proposal in self.world.propose("", rw.read_traces(user), 2, rng)]
        return {"guidance": "\n".join(lines) or "Go on.", "memory": "Go on."}

    def _read_lines(self, skill: str, user: str, rng: Random) -> dict[str, Any]:
        """The reply to an analyst of the recipe `ledger`: causes, suspects and lines."""
        listed, _, rest = user.partition("# Its lines")[2].partition("# Lines that were given up")
        given_up, _, rest = rest.partition("# Known situations")
        known, _, shown = rest.partition("# What the agent is told")
        ids = {code: id for id, code in _LISTED.findall(listed)}
        traces = rw.read_traces(shown)
        causes = [
            {
                "rollout": number,
                "situations": [self.world.rename(name, known, rng) for name in trace.trouble],
                "suspects": [ids[code] for code in trace.misled if code in ids],
            }
            for number, trace in enumerate(traces, 1)
        ]
        items: list[dict[str, Any]] = []
        deleted: list[dict[str, Any]] = []
        avoid = () if self.world.setting.habit == lw.AGAIN else rw.read_codes(given_up)
        for proposal in self.world.propose(skill, traces, self.edits, rng, avoid):
            numbers = [n for n, trace in enumerate(traces, 1) if trace.item in proposal.items]
            label = self.world.rename(proposal.situation, known, rng)
            item = {"situation": label, "content": proposal.text, "rollouts": numbers}
            if proposal.text:  # to delete a line, it is enough to suspect it
                items.append(item | ({"replaces": ids[proposal.code]} if proposal.code in ids else {}))
            elif proposal.code in self.world.old:
                deleted.append(item | {"op": "delete", "target": rw.find_line(skill, proposal.code)})
        old = {ids[code] for code in self.world.old if code in ids}
        texts = [[id for id in names.split(", ") if id != "none"] for names in _TEXTS.findall(shown)]
        reply = {"rollouts": causes, "items": items}
        return lw.bend_reply(self.world.setting.habit, reply, lw.Shown(deleted, old, texts), rng)


def read_proposals(prompt: str) -> list[tuple[int, dict[str, str]]]:
    """The numbered edits of a prompt."""
    return [
        (int(number), {key: value for key, value in (("op", op), ("target", target), ("content", content)) if value})
        for number, op, target, content in _PROPOSAL.findall(prompt.partition("# Proposals")[2])
    ]


def make_settings(world: rw.World, variant: str) -> TrainSettings:
    setting = world.setting
    name, _, options = variant.removesuffix(STORED).partition(":")
    if name == "ledger":
        changes = dict(option.split("=") for option in options.split(",") if option)
        own = {key: json.loads(changes.pop(key)) for key in ("batch_size", "block_size") if key in changes}
        minibatch = int(changes.pop("minibatch_size", 0))
        tuning = LedgerTuning(**{key: json.loads(value) for key, value in changes.items()})
        more = {"minibatch_size": minibatch} if minibatch else {}
        return TrainSettings(recipe="ledger", ledger=LedgerSettings(tuning=tuning, **own), seed=world.seed, **more)
    if name == "reflact":
        return TrainSettings(recipe="reflact", epochs=rw.count_epochs(setting, 40, slow=True), seed=world.seed)
    return TrainSettings(
        recipe="reflact",
        epochs=rw.count_epochs(setting, 12, slow=False) * 2,  # measures that are found in the store cost nothing
        batch_size=12,
        edit_budget=8,
        schedule="constant",
        slow=SlowUpdate(enabled=False),
        memory=False,
        gate=Gate(enabled=name != "gate-off"),
        seed=world.seed,
    )


class Stopwatch:
    """The CPU time of the simulated models and of the true accuracies, which is not the trainer's."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def time(self, script: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            started = time.process_time()
            try:
                return script(*arguments)
            finally:
                self.seconds += time.process_time() - started

        return timed


@contextmanager
def open_store(variant: str) -> Iterator[Store | None]:
    """A run directory, if the variant wants one."""
    if not variant.endswith(STORED):
        yield None
        return
    with tempfile.TemporaryDirectory() as folder, RunDir.open(Path(folder) / "run", {}) as run:
        yield run


async def train_world(world: rw.World, variant: str, store: Store | None) -> dict[str, object]:
    """Train until the budget is spent. A gated recipe ends with its best skill at that point, without shipping, which
    would cost it rollouts; the ledger ends with what it ships."""
    meter, watch = rw.Meter(world), Stopwatch()
    settings = make_settings(world, variant)
    ledger = settings.recipe == "ledger"
    optimizer = Optimizer(world, 8 if ledger else settings.edit_budget)
    tested = 2 * min(_TEST, world.setting.test)
    decide, deploy = watch.time(meter.decide), watch.time(meter.deploy)
    started = time.process_time()
    records = train(
        Runner(RuleItems(), store=store or MemoryStore(), options=RunOptions(concurrency=16)),
        Policy(ScriptedModel(watch.time(make_agent(meter)), "agent"), Skill(world.skill)),
        make_splits(world),
        settings,
        optimizer=ScriptedModel(watch.time(optimizer), "optimizer"),
        resources=Resources(rollouts=meter.budget + tested if ledger else None),
    )
    best, claim, first = world.skill, 0.0, 0.0
    before: Record | None = None
    async for record in records:
        if isinstance(record, Summary):
            best = record.best.skill.text
            claim = (record.claim.difference if record.claim else None) or 0.0
            break
        if meter.spent > meter.budget:
            break
        state = record.state
        if isinstance(record, Baseline):
            first = record.measure.hard or 0.0
        if isinstance(record, Step) and record.candidate is not None and record.verdict is not None and before:
            current = before.state.current.skill.text
            decide(record.candidate.text, current, record.verdict.decision.accepted)
        if not ledger:
            best = state.best.skill.text
            claim = ((state.best.measure.hard if state.best.measure else None) or 0.0) - first
        if not ledger or meter.spent < 400 or record.state.step % 4 == 0:  # the true accuracy takes time, too
            deploy(state.current.skill.text if ledger else best)
        before = record
    await records.aclose()
    trainer = time.process_time() - started - watch.seconds
    tokens = {**meter.tokens, "optimizer": optimizer.tokens}
    return meter.report(best, claim, calls=optimizer.calls, trainer_cpu=trainer, tokens=tokens)


def search_randomly(world: rw.World) -> dict[str, object]:
    """Random search: add four random lines to the best text, measure it, keep it if it scores higher."""
    meter = rw.Meter(world)
    rng = rw.make_random(world.key, "random search")
    selection = world.items["selection"]

    def measure(text: str) -> float:
        return sum(meter.buy(text, item).endswith("right") for item in selection) / len(selection)

    first = score = measure(world.skill)
    best = world.skill
    meter.deploy(best)
    try:
        while True:
            lines = [world.make_line(rng.choice(world.situations), rng) for _ in range(4)]
            text = best.rstrip() + "\n" + "\n".join(lines) + "\n"
            found = measure(text)
            meter.decide(text, best, found > score)
            if found > score:
                best, score = text, found
                meter.deploy(best)
    except rw.BudgetSpent:
        return meter.report(best, score - first, calls=0)


def run(world: rw.World, variant: str) -> dict[str, object]:
    if variant == "random":
        return search_randomly(world)
    with open_store(variant) as store:
        return asyncio.run(train_world(world, variant, store))


if __name__ == "__main__":
    rw.serve(run)
