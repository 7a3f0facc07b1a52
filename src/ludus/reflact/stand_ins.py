"""Stand-ins for what a training run pays for: rollouts without an agent, replies without a model.

With them the real trainer can be run for nothing, to see what it asks for (`ludus.reflact.estimate`). No method of the
environment is called, and no slot is leased.

Rollouts fail by chance. Some failures have one of a few causes, and a rule about the cause in the skill prevents them;
nothing prevents the others. The optimizer proposes a rule for every cause that it is shown. So the skill gets better
for a while, and later candidates are no better than the current skill. How much better is the world's `curable`.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from zlib import crc32

from msgspec import Struct

from ludus.engine import derive_seed
from ludus.models.token_estimate import estimate_prompt, estimate_text
from ludus.reflact.measure import OnRollout, SkillRunner, Trial
from ludus.reflact.rollout_origins import STAGE_SPLITS
from ludus.skill import Skill
from ludus.store import MemoryStore
from ludus.types import (
    Completion,
    Finish,
    Message,
    Provenance,
    Rollout,
    Sampling,
    Score,
    StopReason,
    ToolSpec,
    Turn,
    Usage,
)

_MOST_CAUSES = 12
_TASKS_PER_CAUSE = 4
"""The least number of train tasks per cause, so that small splits share their causes."""


class Assumptions(Struct, frozen=True, kw_only=True):
    """Assumptions about what is not known before the run."""

    failing: float = 0.5
    """The share of train rollouts that fail at first."""
    turns: int = 1
    """Replies per rollout."""
    opening_tokens: int = 300
    """The first prompt without the skill: system text, tools and task."""
    reply_tokens: int = 300
    """One reply of the agent."""
    result_tokens: int = 300
    """The tool results after a reply, if there are more turns."""
    rule_tokens: int = 40
    """One rule that is proposed."""
    proposal_tokens: int = 800
    """One reply of the optimizer."""


@dataclass(frozen=True)
class StandInWorld:
    """What stands in for agent, environment and optimizer. Nothing in it is random: it depends on tasks and seeds."""

    initial: Skill
    train: int
    """The number of train tasks."""
    assumed: Assumptions = Assumptions()
    curable: float = 0.5
    """The share of the failures that a rule prevents. If it is 0, the optimizer proposes nothing."""

    def make_rollout(self, trial: Trial) -> Rollout:
        """A rollout that was not run."""
        task, skill = trial.task, trial.skill.text
        return Rollout(
            task=task,
            provenance=_PROVENANCE,
            turns=_make_turns(self.assumed, estimate_text(skill)),
            stop=StopReason.FINISHED,
            score=self.judge(skill, task.id, derive_seed(trial.seed, task.id, trial.replicate)),
        )

    def judge(self, skill: str, task: str, seed: int) -> Score:
        """Whether a rollout with this text and this seed passes. With equal seeds, a better skill loses no task."""
        luck, failing = seed % 1_000 / 1_000, self.assumed.failing
        cause = 0 if luck < failing * (1 - self.curable) else 1 + crc32(task.encode()) % self._causes
        return _PASSED if luck >= failing or (cause and f"rule {cause}:" in skill) else _FAILED[cause]

    @property
    def _causes(self) -> int:
        """How many causes of failures a rule can prevent."""
        return max(1, min(_MOST_CAUSES, self.train // _TASKS_PER_CAUSE))

    def answer(self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Completion:
        """The optimizer's reply to a request: the script of a `ScriptedModel`."""
        text = json.dumps(self._make_reply(sampling.stage, messages[-1].content))
        usage = Usage(estimate_prompt(messages, tools), self.assumed.proposal_tokens)
        return Completion(Message("assistant", text), Finish.STOP, usage)

    def _make_reply(self, prompt: str, asked: str) -> dict[str, Any]:
        new = f"x{crc32(asked.encode()):08x}"  # the name of a rule that prevents nothing
        match prompt.partition("_")[0]:
            case "analyst":
                return self._propose(_find_causes(asked), new, _find_rules(asked)) if self.curable else {"items": []}
            case "plain":
                return {"rule": self.write_rule(self._choose_cause(asked) if self.curable else new)}
            case "merge":
                rules = _find_rules(asked[asked.find("[1] from ") :])
                return {"items": [{"item": self._make_item(rule, rules), "made_of": [1]} for rule in rules]}
            case "rank":
                return {"selected": list(range(1, 100))}
            case "budget":
                return {"budget": 3}
            case "rewrite":
                return {"document": self._write_document(_find_rules(asked))}
            case "slow":
                return {"guidance": self.write_rule(new)}
            case "meta":
                return {"memory": "Rules about causes help."}
            case "consolidate":
                return {"notes": ["Mind all causes."]}
            case _:
                raise NotImplementedError(f"there is no stand-in for the reply to '{prompt}'")

    def _propose(self, causes: Sequence[str], new: str, known: Sequence[str]) -> dict[str, Any]:
        """The reply of an analyst who is shown rollouts with these causes and a skill with these rules."""
        rules = {cause: new if cause == "0" else cause for cause in causes}
        return {
            "rollouts": [{"rollout": n, "situations": [_CAUSE + cause]} for n, cause in enumerate(causes, 1)],
            "items": [
                {
                    **self._make_item(rule, [*known, *rules.values()]),
                    "situation": _CAUSE + cause,
                    "rollouts": [n for n, its in enumerate(causes, 1) if its == cause],
                }
                for cause, rule in rules.items()
            ],
            "notes": [f"Mind cause {cause}." for cause in rules],
        }

    def _choose_cause(self, asked: str) -> str:
        """A cause that is shown, or any: where tasks are shown with their references, no feedback names one."""
        shown = [cause for cause in re.findall(rf"{_CAUSE}(\d+)", asked) if cause != "0"]
        return shown[0] if shown else str(1 + crc32(asked.encode()) % self._causes)

    def _make_item(self, rule: str, every: Iterable[str]) -> dict[str, str]:
        """A proposal in all forms: an edit, a suggestion, a line, and a document with every rule."""
        text = self.write_rule(rule)
        added = {"op": "append", "kind": "add_rule", "content": text, "instruction": text}
        return {**added, "text": self._write_document(every)}

    def _write_document(self, rules: Iterable[str]) -> str:
        return "\n\n".join([self.initial.text, *(self.write_rule(rule) for rule in dict.fromkeys(rules))])

    def write_rule(self, rule: str) -> str:
        """The text of a rule: about the cause of this number, or any other."""
        return f"stand-in rule {rule}: ".ljust(4 * self.assumed.rule_tokens, "-")


_CAUSE = "stand-in cause "
_PROVENANCE = Provenance(policy="", model="")
_PASSED = Score(1.0, True, 1.0)
_FAILED = [Score(0.0, False, 0.0, f"{_CAUSE}{cause}") for cause in range(_MOST_CAUSES + 1)]


def _find_causes(asked: str) -> list[str]:
    """The cause of each rollout that an analyst is shown."""
    shown = re.split(r"^### Rollout \d+: ", asked, flags=re.MULTILINE)[1:]
    return [found[1] if (found := re.search(rf"{_CAUSE}(\d+)", text)) else "0" for text in shown]


def _find_rules(text: str) -> list[str]:
    return list(dict.fromkeys(re.findall(r"stand-in rule (\w+):", text)))


@lru_cache(maxsize=256)
def _make_turns(assumed: Assumptions, skill_tokens: int) -> tuple[Turn, ...]:
    """What was said in a rollout, as one turn. Every turn of a real one sends the conversation so far again."""
    turns, reply, result = assumed.turns, assumed.reply_tokens, assumed.result_tokens
    sent = turns * (assumed.opening_tokens + skill_tokens) + (reply + result) * turns * (turns - 1) // 2
    said = "-" * 4 * (turns * reply + (turns - 1) * result)
    return (Turn(Completion(Message("assistant", said), Finish.STOP, Usage(sent, turns * reply))),)


@dataclass(frozen=True)
class StandInRunner(SkillRunner):
    """Makes rollouts up in place of running them, and counts them as a run does."""

    world: StandInWorld = field(kw_only=True)

    async def run_trials(
        self,
        trials: Sequence[Trial],
        stage: str,
        on_rollout: OnRollout | None = None,
        earlier: Sequence[Rollout] = (),
    ) -> list[Rollout]:
        split = STAGE_SPLITS[stage]  # ids are unique in each split of the run
        rollouts = [self.world.make_rollout(trial) for trial in trials]
        for index, (trial, rollout) in enumerate(zip(trials, rollouts, strict=True)):
            key = f"{trial.skill.hash}/{split}/{trial.task.id}/{trial.seed}/{trial.replicate}"
            self.journal.book_outcome(key, stage, rollout.usage)
            if on_rollout is not None:
                on_rollout(index, rollout)
        return rollouts


class StandInStore(MemoryStore):
    """Keeps no records: the run is never resumed, and all its states would fill the memory."""

    def put_record(self, key: str, kind: str, body: bytes) -> bytes:
        return body
