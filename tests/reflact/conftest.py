"""A small world in which training is deterministic, and in which helpful, harmful and useless edits are known.

A task needs the rule that its answer names. The agent passes if its skill has that rule and no harmful one. The
optimizer is a script. It goes by the stage of a request, and proposes the rules that failed rollouts name.
"""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from tests.command_kit import folder

from ludus.env import Env
from ludus.models.scripted import ScriptedModel, say
from ludus.policy import Policy
from ludus.reflact.records import Record
from ludus.reflact.splits import Splits
from ludus.reflact.train_settings import SlowUpdate, TrainSettings
from ludus.reflact.trainer import train
from ludus.runner import Runner
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.skill import Skill
from ludus.store import MemoryStore, Store
from ludus.types import Message, Rollout, Sampling, Score, Task, ToolSpec

__all__ = ["folder", "world"]

HARM = "Answer in verse."


class RuleWorld(Env, frozen=True):
    """Tasks that need a rule in the skill."""

    name: ClassVar[str] = "rule-world"
    sandbox: ClassVar[SandboxSpec | None] = None
    system: ClassVar[str] = "You obey rules."

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        if rollout.answer == rollout.task.answer:
            return Score(1.0, True, 1.0, "right")
        return Score(0.0, False, 0.25, f"rule missing: {rollout.task.answer}")


def rule(number: int) -> str:
    return f"RULE-{number}"


def tasks(split: str, count: int, rules: int = 3, start: int = 0) -> tuple[Task, ...]:
    return tuple(
        Task(
            id=f"{split}-{n}",
            prompt=f"{split} question {n}",
            split=split,
            kind=f"kind-{n % 2}",
            answer=rule(n % rules),
        )
        for n in range(start, start + count)
    )


def splits(train: int = 6, selection: int = 6, test: int = 6, rules: int = 3) -> Splits:
    return Splits.from_tasks(
        tasks("train", train, rules), tasks("selection", selection, rules), tasks("test", test, rules)
    )


def agent(messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Message:
    """Follows the rules of its skill."""
    skill = messages[0].content
    question = messages[-1].content
    number = int(question.split()[-1])
    if HARM.lower() in skill.lower():
        return say("a poem")
    known = re.findall(r"RULE-\d+", skill)
    wanted = rule(number % _count_rules(question))
    return say(wanted if wanted in known else "no idea")


def _count_rules(question: str) -> int:
    return 3


class Request(tuple[Message, ...]):
    """The messages of one request to the optimizer, and its stage."""

    stage: str = ""

    @classmethod
    def tag(cls, messages: Sequence[Message], stage: str) -> "Request":
        request = cls(messages)
        request.stage = stage
        return request


def get_stage(request: Request) -> str:
    """The stage of a request."""
    return request.stage


def wanted_rules(text: str) -> list[str]:
    """The rules that failed rollouts were missing, in order."""
    return list(dict.fromkeys(re.findall(r"rule missing: (RULE-\d+)", text)))


def edit(content: str, op: str = "append", **more: Any) -> dict[str, Any]:
    return {"op": op, "content": content, **more}


def analyst(messages: Request) -> dict[str, Any]:
    """Proposes the missing rules, in the form that the prompt asks for."""
    system, asked = messages[0].content, messages[1].content
    rules = wanted_rules(asked) if get_stage(messages) == "analyst_failure" else []
    if '"op"' in system:
        items: list[dict[str, Any]] = [edit(f"Obey {name}.") for name in rules]
    elif '"kind"' in system:
        items = [{"kind": "add_rule", "title": name, "instruction": f"Obey {name}."} for name in rules]
    else:
        skill = asked.split("# The skill as it is", 1)[1].split("# What the agent is told besides", 1)[0].strip()
        text = "\n".join([skill, *(f"Obey {name}." for name in rules)])
        items = [{"title": "all", "changes": rules, "text": text}]
    shown = len(re.findall(r"^### Rollout", asked, re.MULTILINE))
    patterns = [{"name": "missing rule", "description": "a rule", "rollouts": list(range(1, shown + 1))}]
    return {"reasoning": "read", "patterns": patterns, "items": items, "notes": [f"Remember {name}." for name in rules]}


def line_analyst(messages: Request) -> dict[str, Any]:
    """Names the missing rule of every failed rollout as its situation, suspects what does harm, proposes the rules."""
    asked = messages[1].content
    rollouts: list[dict[str, Any]] = []
    items: dict[str, dict[str, Any]] = {}
    harmful = re.findall(rf"^(L\d+) .*{HARM}", asked, re.MULTILINE)
    for number, text in enumerate(re.split(r"^### Rollout ", asked, flags=re.MULTILINE)[1:], 1):
        present = re.findall(r"L\d+", text.splitlines()[0])
        suspects = [line for line in present if line in harmful]
        names = [] if suspects else wanted_rules(text)
        rollouts.append(
            {"rollout": number, "situations": [f"{name} is missing" for name in names], "suspects": suspects}
        )
        for name in names:
            item = items.setdefault(
                name, {"situation": f"{name} is missing", "content": f"Obey {name}.", "rollouts": []}
            )
            item["rollouts"].append(number)
    return {"reasoning": "read", "rollouts": rollouts, "items": list(items.values()), "notes": ["Remember."]}


def merge(messages: Sequence[Message]) -> dict[str, Any]:
    """Merges equal proposals."""
    system, asked = messages[0].content, messages[1].content
    proposals = re.split(r"^\[\d+\] from .*\n", asked.split("# Proposals", 1)[1], flags=re.MULTILINE)[1:]
    seen: dict[str, list[int]] = {}
    for number, text in enumerate(proposals, 1):
        seen.setdefault(text.strip(), []).append(number)
    return {
        "items": [{"item": _parse_item(text, system), "made_of": numbers} for text, numbers in seen.items()],
        "reasoning": "put together",
    }


def _parse_item(text: str, system: str) -> dict[str, Any]:
    if '"op"' in system:
        return dict(re.findall(r"^(op|target|content): (.*)", text, re.MULTILINE))
    if '"kind"' in system:
        return dict(re.findall(r"^(kind|title|instruction): (.*)", text, re.MULTILINE))
    return {"title": "merged", "changes": [], "text": text.split("document:\n", 1)[1]}


def optimizer(messages: Request) -> dict[str, Any]:
    """A sensible optimizer, in all stages."""
    asked = messages[1].content
    match get_stage(messages):
        case "analyst_failure" | "analyst_success":
            return analyst(messages)
        case "analyst_lines":
            return line_analyst(messages)
        case "merge_failure" | "merge_success" | "merge_final":
            return merge(messages)
        case "rank":
            count = int(re.search(r"# Proposals: (\d+)", asked)[1])  # type: ignore[index]
            return {"selected": list(range(count, 0, -1)), "reasoning": "last first"}
        case "budget":
            return {"budget": 1, "reasoning": "carefully", "confidence": "high", "risks": ["none"]}
        case "rewrite":
            skill = asked.split("# The skill as it is", 1)[1].split("# Suggestions", 1)[0].strip()
            rules = re.findall(r"^instruction: (.*)", asked, re.MULTILINE)
            return {"document": "\n".join([skill, *rules]), "changes": rules}
        case "slow":
            return {"guidance": "Keep to the rules you have.", "reasoning": "they work"}
        case "meta":
            return {"memory": "Adding rules helps.", "reasoning": "it did"}
        case "consolidate":
            return {"notes": ["Remember all rules."]}
        case other:
            raise AssertionError(other)


Replies = Callable[[Request], Any]


def optimizer_model(replies: Replies = optimizer, log: list[Request] | None = None) -> ScriptedModel:
    """A model that answers with the result of `replies`: a text unchanged, anything else as JSON."""

    def script(messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Any:
        request = Request.tag(messages, sampling.stage)
        if log is not None:
            log.append(request)
        reply = replies(request)
        return reply if isinstance(reply, str | Message) or hasattr(reply, "message") else say(json.dumps(reply))

    return ScriptedModel(script, name="scripted-optimizer")


SETTINGS = TrainSettings(
    recipe="reflact",
    epochs=2,
    batch_size=3,
    minibatch_size=2,
    merge_batch_size=2,
    edit_budget=2,
    min_edit_budget=1,
    slow=SlowUpdate(samples=3),
)


def policy(skill: str = "# Skill\n", script: Any = agent) -> Policy:
    return Policy(ScriptedModel(script, name="scripted-agent"), skill=Skill(skill))


async def collect(records: AsyncGenerator[Record, None]) -> list[Record]:
    return [record async for record in records]


def run(
    *,
    settings: TrainSettings = SETTINGS,
    optimizer: Any = None,
    policy: Policy | None = None,
    splits: Splits | None = None,
    env: Env | None = None,
    store: Store | None = None,
    **more: Any,
) -> list[Record]:
    """Train in the small world, to the end."""
    return asyncio.run(
        collect(
            train(
                Runner(env or RuleWorld(), store=store or MemoryStore()),
                policy or WORLD.policy(),
                splits or WORLD.splits(),
                settings,
                optimizer=optimizer_model() if optimizer is None else optimizer or None,
                **more,
            )
        )
    )


WORLD = SimpleNamespace(
    HARM=HARM,
    SETTINGS=SETTINGS,
    Env=RuleWorld,
    agent=agent,
    analyst=analyst,
    collect=collect,
    edit=edit,
    line_analyst=line_analyst,
    merge=merge,
    optimizer=optimizer,
    optimizer_model=optimizer_model,
    policy=policy,
    get_stage=get_stage,
    rule=rule,
    run=run,
    splits=splits,
    tag=Request.tag,
    tasks=tasks,
    wanted_rules=wanted_rules,
)


@pytest.fixture
def world() -> SimpleNamespace:
    return WORLD
