"""Run a stored rollout again with its recorded replies: wholly, to compare it with its record, or up to a turn.

    record ──> ReplayAgent: its replies are played ──> tools, users and verdicts of now ──> find_differences
                          └─> and from a turn on, a model goes on: a fork

The agent of the record acts again in a fresh slot: the loop, a command-line agent, or one of another system that takes
the policy's model. Only the model is another: `RecordedModel` plays the replies in their order. So every tool is
called again, and what it returns now can be compared with what it returned then. A command-line agent is deterministic
only as far as its program is: its requests get the replies in the order in which they come.

In token mode a fork keeps the exact ids of the replies that it plays, if they are ids of its model
(`tokens.AdoptingModel`). They are context and not trained on: this policy did not sample them.
"""

import difflib
import hashlib
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import msgspec
from msgspec import Struct

from ludus.agent import LOOP
from ludus.env import Env
from ludus.errors import ConfigError, ModelError
from ludus.models import Model, find_capability
from ludus.policy import Agent, Policy, Scene
from ludus.sandbox import SandboxSpec
from ludus.skill import Skill
from ludus.skill_library import SkillLibrary
from ludus.tokens import AdoptingModel
from ludus.types import (
    Completion,
    Message,
    Replayed,
    Rollout,
    Sampling,
    Score,
    StopReason,
    ToolResult,
    ToolSpec,
    Turn,
)

# ---- playing ------------------------------------------------------------------------------------------------------


class RecordedModel:
    """Plays replies of a record, one after the other, and then asks the model `after` it, if there is one. It has a
    place in the record, so every rollout has one of its own."""

    def __init__(
        self, replies: Sequence[Completion], name: str, after: Model | None = None, *, exact: bool = True
    ) -> None:
        self.ran_out = False
        """Whether it was asked for a reply that the record does not have."""
        self._replies = list(replies)
        self._name = name
        self._after = after
        self._exact = exact
        self._adopting = find_capability(after, AdoptingModel) if after is not None and exact else None
        self._played: list[Completion] = []

    @property
    def name(self) -> str:
        return self._name

    async def complete(self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Completion:
        if len(self._played) < len(self._replies):
            return self._play(messages, tools)
        if self._after is None:
            self.ran_out = True
            raise ModelError(f"the record has {len(self._replies)} replies, and another was asked for", retryable=False)
        reply = await self._after.complete(messages, tools, sampling)
        return reply if self._exact else _drop_tokens(reply)

    def _play(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Completion:
        reply, before = self._replies[len(self._played)], self._played.copy()
        self._played.append(reply)
        if self._after is None:
            return reply
        adopted = self._adopting.adopt_reply(messages, tools, before, reply) if self._adopting is not None else None
        if adopted is None:
            self._adopting = None
            return _drop_tokens(reply)
        return msgspec.structs.replace(adopted, guided=True)

    async def close(self) -> None:
        """There is nothing to close: the model after it is the run's."""


def _drop_tokens(reply: Completion) -> Completion:
    """The reply as of chat mode: its ids do not fit those of the others."""
    return msgspec.structs.replace(reply, tokens=None, splice=None)


@dataclass(frozen=True)
class ReplayAgent(Agent):
    """Acts as the agent of a record did, with the replies of the record."""

    inner: Agent
    """The agent of the record; `LOOP` for Ludus's own."""
    record: Rollout = field(repr=False)
    origin: Replayed
    goes_on: bool = False
    """Whether the policy's model goes on after the replies. Otherwise the rollout ends where the record does."""

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def needs_slot(self) -> bool:
        return self.inner.needs_slot

    @property
    def skills(self) -> str:
        return self.inner.skills

    @property
    def label(self) -> str:
        return self.inner.label

    @property
    def identity(self) -> object:
        """What is played decides how it acts: such rollouts are not those of the policy alone."""
        return self.inner.identity, self.origin.outcome, self.origin.turns

    @property
    def replayed(self) -> Replayed:
        return self.origin

    def extend_spec(self, spec: SandboxSpec) -> SandboxSpec:
        return self.inner.extend_spec(spec)

    def use_model(self, model: Model) -> "ReplayAgent":
        return replace(self, inner=self.inner.use_model(model))

    async def act(self, scene: Scene) -> StopReason:
        is_loop = self.inner is LOOP
        replies = [turn.completion for turn in self.record.turns[: self.origin.turns]]
        after = scene.policy.model if self.goes_on else None
        model = RecordedModel(replies, scene.policy.model.name, after, exact=is_loop)
        scene.policy = replace(scene.policy, agent=None if is_loop else self.inner).use_model(model)
        if is_loop and self.goes_on:
            scene.opening = self.record.opening
        try:
            return await (scene.policy.agent or LOOP).act(scene)
        except ModelError:
            if not model.ran_out:
                raise
            return self.record.agent_stop

    async def close(self) -> None:
        await self.inner.close()


def restore_policy(policy: Policy, env: Env, origin: Replayed, record: Rollout, *, goes_on: bool = False) -> Policy:
    """The policy that acted in a record, with its replies; `policy` is that of the run's settings. With `goes_on`, its
    model goes on after them.

    Raises:
        ConfigError: the agent brings a model of its own, or the skill of the record is not known.
    """
    inner = policy.agent or LOOP
    if inner.brings_model:
        raise ConfigError(f"{inner.name} brings a model of its own: the recorded replies cannot be played to it")
    return replace(
        policy,
        skill=None if policy.library else _find_skill(policy, env, record),
        library=policy.library and _find_library(policy.library, record),
        toolsets=policy.toolsets if policy.agent_name else record.provenance.toolsets,
        skipped=record.provenance.skipped,
        agent=ReplayAgent(inner, record, origin, goes_on),
    )


def _find_skill(policy: Policy, env: Env, record: Rollout) -> Skill | None:
    """The skill of a record. In a training run it is none that the settings name, but it is in the system text."""
    wanted = record.provenance.skill
    if not wanted:
        return None
    base = replace(policy, skill=None).build_system_text(env.system)
    system = next((message.content for message in record.opening if message.role == "system"), "")
    said = Skill(system.removeprefix(base).removeprefix("\n\n"))
    found = next((skill for skill in (policy.skill, said) if skill is not None and skill.hash == wanted), None)
    if found is None:
        raise ConfigError(
            f"agent.skill: the rollout had the skill {wanted}, which the settings do not have: name the file that has "
            "it with --agent.skill"
        )
    return found


def _find_library(library: SkillLibrary, record: Rollout) -> SkillLibrary:
    """The library of a record: the one of the settings, or that without one of its packages."""
    wanted = record.provenance.skill
    candidates = (library, *(library.leave_out(name) for name in library.names))
    found = next((each for each in candidates if each.hash == wanted), None)
    if found is None:
        raise ConfigError(
            f"agent.library: the rollout had the library {wanted}, which is neither the one in the folder now nor that "
            "without one of its packages: restore the folder as it was"
        )
    return found


# ---- comparing ----------------------------------------------------------------------------------------------------


class Difference(Struct, frozen=True, kw_only=True):
    """Where a rollout is not as its record says."""

    turn: int
    """1-based; 0: before the first turn."""
    part: str
    """`opening`, `result`, `user`, `turns`, `stop` or `score`."""
    tool: str = ""
    recorded: str
    now: str
    diff: str
    """The lines that differ, shortened."""


def find_differences(
    record: Rollout, now: Rollout, ignore: Sequence[re.Pattern[str]] = (), *, judged: bool = True
) -> list[Difference]:
    """What differs between a record and the rollout that repeated it. What `ignore` matches is the same everywhere.
    With `judged`, the verdicts are compared too."""
    found = [_compare(0, "opening", _show_opening(record), _show_opening(now), ignore)]
    found += find_turn_differences(record.turns, now.turns, ignore)
    last = max(len(record.turns), len(now.turns))
    if len(record.turns) != len(now.turns):
        first = min(len(record.turns), len(now.turns)) + 1
        found.append(_compare(first, "turns", f"{len(record.turns)} turns", f"{len(now.turns)} turns", ()))
    if not judged:
        found.append(_compare(last, "stop", record.agent_stop, now.agent_stop, ()))
    else:
        found.append(_compare(last, "stop", record.stop, now.stop, ()))
        found.append(_compare(last, "score", _show_score(record.score), _show_score(now.score), ()))
    return [each for each in found if each is not None]


def find_turn_differences(
    record: Sequence[Turn], now: Sequence[Turn], ignore: Sequence[re.Pattern[str]] = ()
) -> list[Difference]:
    """What differs between the results of tools, and the words of users, in turns that both have."""
    return [
        difference
        for number, (old, new) in enumerate(zip(record, now, strict=False), 1)
        for difference in _compare_turns(number, old, new, ignore)
        if difference is not None
    ]


def _compare_turns(number: int, old: Turn, new: Turn, ignore: Sequence[re.Pattern[str]]) -> Iterator[Difference | None]:
    for one, other in itertools.zip_longest(old.results, new.results):
        call = (one or other).call
        yield _compare(number, "result", _show_result(one), _show_result(other), ignore, call.name)
    yield _compare(number, "user", _show_messages(old.notices), _show_messages(new.notices), ignore)


def _compare(
    turn: int, part: str, old: str, new: str, ignore: Sequence[re.Pattern[str]], tool: str = ""
) -> Difference | None:
    old, new = _mask(old, ignore), _mask(new, ignore)
    if old == new:
        return None
    return Difference(turn=turn, part=part, tool=tool, recorded=old, now=new, diff=make_diff(old, new))


MASKED = "…"


def _mask(text: str, ignore: Sequence[re.Pattern[str]]) -> str:
    for pattern in ignore:
        text = pattern.sub(MASKED, text)
    return text


def _show_opening(rollout: Rollout) -> str:
    return _show_messages(rollout.opening)


def _show_messages(messages: Sequence[Message]) -> str:
    return "\n".join(
        "\n".join([f"{message.role}: {message.content}", *_show_images([image.url for image in message.images])])
        for message in messages
    )


def _show_result(result: ToolResult | None) -> str:
    return "(no result)" if result is None else "\n".join([result.content, *_show_images(result.images)])


def _show_images(urls: Sequence[str]) -> list[str]:
    """Pictures by their content: as text they would be longer than anything else."""
    return [f"[picture {hashlib.sha256(url.encode()).hexdigest()[:16]}]" for url in urls]


def _show_score(score: Score | None) -> str:
    return "no score" if score is None else f"{score.value:g}, {'passed' if score.passed else 'not passed'}"


# ---- a short diff -------------------------------------------------------------------------------------------------

DIFF_LINES = 12
DIFF_WIDTH = 160


def make_diff(old: str, new: str) -> str:
    """The first lines in which two texts differ, with `-` and `+`, each shortened around the place where it differs.
    In results that are JSON, line breaks within texts begin a line too."""
    every = difflib.unified_diff(_split(old), _split(new), lineterm="", n=0)
    lines = [line for line in itertools.islice(every, 2, None) if not line.startswith("@@")]
    shown = [_shorten(line, other) for line, other in _pair(lines[:DIFF_LINES])]
    more = len(lines) - len(shown)
    return "\n".join([*shown, f"({more} more lines)"] if more else shown)


def _split(text: str) -> list[str]:
    return (text.replace("\\n", "\n") if text.startswith(("{", "[")) else text).split("\n")


def _pair(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each line with the one of the other side that it replaces, if there is one beside it."""
    for index, line in enumerate(lines):
        beside = lines[index + 1 : index + 2] if line[0] == "-" else lines[max(0, index - 1) : index]
        yield line, next((each for each in beside if each[0] != line[0]), "")


def _shorten(line: str, other: str) -> str:
    if len(line) <= DIFF_WIDTH:
        return line
    text = line[1:]
    common = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(text, other[1:], strict=False))
    start = max(0, len(list(common)) - DIFF_WIDTH // 2)
    end = start + DIFF_WIDTH
    return f"{line[0]}{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}"
