"""The agent: `Policy`, and `take_turns`, its loop.

    messages ──> model.complete ──> calls? ──no──> stop: finished
        ^                             │yes
        └──── observations <── run the tools

A user may go on after a reply without a call (`NextMessage`): then the conversation does not end there.

The loop yields each `Turn` when it is complete and keeps nothing else, so the caller has everything that happened
before a failure. Two rules decide where a mistake goes. The model's own mistakes (an unknown tool, arguments that are
not JSON or do not fit the schema, a tool that raises or takes too long) go back to the model as an observation and are
recorded as tool errors. Failures outside the agent (`RolloutError`) and errors that the user must fix (`LudusError`)
are raised to the caller. The last turn has the reason for the stop: `Turn.stop`.
"""

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Protocol

import msgspec
from msgspec import Struct, field

from ludus.errors import LudusError, ModelError, SandboxError, ToolBroken, raise_first
from ludus.harness import AgentResult, Harness, HarnessSettings
from ludus.models import Model
from ludus.models.token_estimate import estimate_prompt, estimate_text
from ludus.settings import Settings
from ludus.skill import Skill, add_front_matter
from ludus.skill_examples import parse_examples, remove_examples
from ludus.tools import BadArguments, Tool
from ludus.tools.toolsets import BUILTIN, Registry
from ludus.types import (
    Call,
    Count,
    Finish,
    JsonObject,
    Message,
    Observation,
    Positive,
    Sampling,
    StopReason,
    Task,
    ToolResult,
    ToolSpec,
    Turn,
    Whole,
    canonical,
)

ToolHandler = Callable[[Call, JsonObject], Awaitable["str | Observation"]]
"""Runs calls in place of the tools. Takes the call and its decoded arguments, and returns the observation."""

Spill = Callable[[str, bytes], Awaitable[str]]
"""Stores a result that is too long to show. Takes a file name and the whole text, and returns the path in the slot."""


NextMessage = Callable[[Sequence[Turn]], Awaitable["tuple[Message, Sequence[Tool]] | None"]]
"""Says what the user answers to a reply without a call, and which tools there are from then on. Takes the turns so far.
None: the user has nothing more to say."""

SkillAs = Literal["text", "file", "both"]
ExamplesAs = Literal["text", "turns"]

SKILLS = "/tmp/skills"
"""The folder for skills in a slot, outside of the files that `verify` sees."""


class AgentSettings(Settings, frozen=True):
    """The agent: what it is told beside the environment's own text, and which program it is."""

    system: str = ""
    """System text, added after the environment's."""
    skill: str = ""
    """A file with instructions (such as a SKILL.md), added after the system text."""
    skill_as: SkillAs = "text"
    """How the agent gets the skill: in the system text (`text`); as a file in its slot, in the Agent Skills form, whose
    path the system text names (`file`); or `both`."""
    examples_as: ExamplesAs = "text"
    """Where the skill's worked examples are: in its text, or as earlier turns of the conversation."""
    harness: str = ""
    """A command-line agent that runs in place of Ludus's own loop: `mini-swe-agent`, `codex`, `claude-code` (see
    docs/agents.md), one of `harnesses`, or one of your own: `module:NAME` or `file.py:NAME`. Its model calls go to
    `model`."""
    harnesses: dict[str, HarnessSettings] = field(default_factory=dict[str, HarnessSettings])
    """Command-line agents of your own, or changes to known ones, by name."""


class Limits(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How far a rollout may go."""

    turns: Count = 30
    """The maximum number of model replies in a rollout."""
    rollout_seconds: Positive = 1800.0
    """Time for the agent's turns. Waiting for a slot, `setup` and `verify` are not counted."""
    tool_seconds: Positive = 300.0
    """Time for one tool call, unless the tool has its own limit."""
    result_chars: Whole = 20_000
    """A longer tool result is written to a file in the slot and shown as a preview."""
    turn_chars: Whole = 60_000
    """The maximum length of all results of one turn together. The largest are written to files first."""
    preview_chars: Whole = 4_000
    """The length of the preview of a result that is too long: 40 % from its beginning and 60 % from its end."""
    context_tokens: Count | None = None
    """The model's context window. The rollout ends, as `context`, before a prompt that would not fit in it."""
    setup_seconds: Positive = 600.0
    """Time for the environment's `setup`. A longer one is a failure, and the rollout is run again."""
    verify_seconds: Positive = 600.0
    """Time for the environment's `verify`. A longer one is a failure, and `verify` is run again."""


class Actor(Protocol):
    """An agent that acts in place of the loop, in this process and without a slot."""

    @property
    def name(self) -> str:
        """Which agent and model act: the model's name on records, and part of the policy's fingerprint."""
        ...

    async def act(self, task: Task, opening: Sequence[Message], sampling: Sampling) -> AgentResult:
        """Do the task once. `opening` starts with the system text, if there is one, and has the skill in it.

        Raises:
            ModelError: the agent or its model could not be run. The rollout is then a failure and is run again.
        """
        ...

    def use_stage(self, stage: str) -> "Actor":
        """The actor for one stage of a training run (`rollout`, `slow`, `evaluate`, `test` …); most are the same in
        all. It must have the same name."""
        ...

    def use_model(self, model: Model) -> "Actor":
        """The same agent with another model, such as a later version of the weights. Close only the first one.

        Raises:
            ConfigError: the agent brings a model of its own.
        """
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True)
class Policy:
    """A model and everything that decides how it acts. RL trains `model`; skill training trains `skill`."""

    model: Model
    skill: Skill | None = None
    sampling: Sampling = Sampling()
    limits: Limits = Limits()
    system: str = ""
    toolsets: tuple[str, ...] | None = None
    """The toolsets that were drawn for a group; None: the environment's."""
    skipped: tuple[str, ...] = ()
    """The toolsets that the draw had to leave out. For records only: they are no part of the fingerprint."""
    registry: Registry = BUILTIN
    """The toolsets by name: the built-in ones and those that the run configures."""
    skill_as: SkillAs = "text"
    """How the agent gets the skill: in the system text, as a file in its slot that the system text names, or both."""
    harness: Harness | None = None
    """A command-line agent that acts in place of the loop, in a slot, with the policy's model."""
    examples_as: ExamplesAs = "text"
    """Where the skill's worked examples are: in its text, or as earlier turns of the conversation."""
    actor: Actor | None = None
    """An agent that acts in place of the loop and of the policy's model."""

    def use_model(self, model: Model) -> "Policy":
        """The policy with another model. An agent that acts in place of the loop gets it too."""
        return replace(self, model=model, actor=self.actor and self.actor.use_model(model))

    @property
    def model_name(self) -> str:
        """The name of the model on records."""
        return self.model.name if self.actor is None else self.actor.name

    @property
    def agent_name(self) -> str:
        """The name of the agent that acts in place of the loop; empty if the loop acts."""
        return self.harness.name if self.harness else self.actor.name if self.actor else ""

    @cached_property
    def fingerprint(self) -> str:
        """A hash that is equal for policies that act alike, in every process and on every machine."""
        skill = self.skill.hash if self.skill else ""
        parts = (self.model_name, skill, self.sampling, self.limits, self.system, self.toolsets)
        if self.skill_as != "text":
            parts = (*parts, self.skill_as)
        if self.harness is not None:
            parts = (*parts, self.harness.identity)
        if self.examples_as != "text":
            parts = (*parts, "examples", self.examples_as)
        return hashlib.sha256(canonical(parts)).hexdigest()[:16]

    @cached_property
    def skill_file(self) -> tuple[str, Skill] | None:
        """The path of the skill in the slot, and the document in the Agent Skills form; None if there is no file."""
        if self.skill is None or self.skill_as == "text" or not self.skill.text.strip():
            return None
        named = add_front_matter(self.skill, "task-skill", "What to know and to do for tasks of this kind.")
        folder = self.harness.skills if self.harness and self.harness.skills else SKILLS
        return f"{folder}/{named.front.name if named.front else ''}/SKILL.md", named

    def build_system_text(self, env_system: str) -> str:
        """The environment's system text, the policy's own, and the skill, in this order."""
        text = self.skill.text if self.skill and self.skill_as != "file" else ""
        if self.examples_as == "turns":
            text = remove_examples(text)
        where = f"Your skill is in {self.skill_file[0]}. Read it before you begin." if self.skill_file else ""
        parts = (env_system, self.system, text, where)
        return "\n\n".join(part for part in parts if part)

    @cached_property
    def example_messages(self) -> tuple[Message, ...]:
        """The skill's worked examples as messages before the task's own."""
        if self.skill is None or self.examples_as == "text":
            return ()
        pairs = (
            (Message("user", one.input), Message("assistant", one.output)) for one in parse_examples(self.skill.text)
        )
        return tuple(message for pair in pairs for message in pair)


async def take_turns(
    policy: Policy,
    opening: Sequence[Message],
    tools: Sequence[Tool],
    *,
    seed: int | None = None,
    handler: ToolHandler | None = None,
    spill: Spill | None = None,
    next_message: NextMessage | None = None,
) -> AsyncGenerator[Turn, None]:
    """Run the agent from `opening` until something stops it. The last turn has the reason in `Turn.stop`.

    It has none if the next prompt did not fit the context. If the opening itself does not fit `limits`, there is no
    turn; if the server refuses a later prompt, the loop ends after the turn before it. The time limit of the whole
    rollout is the caller's: cancel the generator's task.

    Raises:
        ModelError: the model failed, or its server's content filter removed a whole reply, after the turn with it. Not
            the policy but the server decided that, so it is no zero.
        SandboxError: the slot failed, after a turn with the reply whose calls were running.
    """
    by_name, specs = _index_tools(tools)
    messages = list(opening)
    turns: list[Turn] = []
    limits = policy.limits
    if not _fits_context(limits, messages, specs):
        return
    for number in range(1, limits.turns + 1):
        started = time.monotonic()
        try:
            completion = await policy.model.complete(messages, specs, seed_sampling(policy.sampling, seed, number))
        except ModelError as error:
            if error.too_long and number > 1:
                return
            raise
        calls = completion.message.calls
        results: Sequence[ToolResult] = ()
        if calls:
            try:
                results = await _run_calls(calls, by_name, handler, limits.tool_seconds)
                results = await _apply_size_budget(results, by_name, limits, spill, number)
            except SandboxError:  # the reply may have broken the slot, so it belongs to the record
                yield Turn(completion, seconds=time.monotonic() - started)
                raise
        turn = Turn(completion, tuple(results), seconds=time.monotonic() - started)
        stop = _decide_stop(turn, number, limits.turns, by_name)
        if next_message is not None and stop in _END_OF_REPLY and (said := await next_message((*turns, turn))):
            turn = msgspec.structs.replace(turn, notices=(said[0],))
            by_name, specs = _index_tools(said[1])
            stop = StopReason.MAX_TURNS if number >= limits.turns else None
        turns.append(turn)
        messages.extend(turn.messages)
        if stop is None and not _fits_context(limits, messages, specs, turn):
            stop = StopReason.CONTEXT
        yield turn if stop is None else msgspec.structs.replace(turn, stop=stop)
        if stop is StopReason.FILTERED and not completion.message.content.strip():
            raise ModelError("the server's content filter removed the whole reply", retryable=False)
        if stop is not None:
            return


def seed_sampling(sampling: Sampling, seed: int | None, turn: int = 1) -> Sampling:
    """The sampling of one turn: its seed differs from turn to turn, so that no two draw the same noise."""
    if seed is None:
        return sampling
    return msgspec.structs.replace(sampling, seed=((sampling.seed or 0) + seed + turn * 1_000_003) % 2**31)


# ---- stopping -----------------------------------------------------------------------------------------------------

_END_OF_REPLY = (StopReason.FINISHED, StopReason.EMPTY)
"""The stops that leave the next word to the user, if there is one."""


def _decide_stop(turn: Turn, number: int, most: int, tools: Mapping[str, Tool]) -> StopReason | None:
    completion = turn.completion
    if not completion.message.calls:
        if completion.finish is Finish.LENGTH:
            return StopReason.LENGTH
        if completion.finish is Finish.FILTER:
            return StopReason.FILTERED
        return StopReason.FINISHED if completion.message.content.strip() else StopReason.EMPTY
    if any(r.call.name in tools and tools[r.call.name].ends_episode and not r.error for r in turn.results):
        return StopReason.SUBMITTED
    return StopReason.MAX_TURNS if number >= most else None


def _fits_context(
    limits: Limits, messages: Sequence[Message], specs: Sequence[ToolSpec], last: Turn | None = None
) -> bool:
    """Whether the next prompt fits the context. Its size is what the server counted for the last turn and an estimate
    of what is new since then; if nothing was counted, it is an estimate of everything."""
    if limits.context_tokens is None:
        return True
    size = last.completion.usage.tokens if last else 0
    if last and size:
        size += sum(estimate_text(new.content) + 8 for new in (*last.results, *last.notices))
    return (size or estimate_prompt(messages, specs)) < limits.context_tokens


# ---- tools --------------------------------------------------------------------------------------------------------


def _index_tools(tools: Sequence[Tool]) -> tuple[dict[str, Tool], tuple[ToolSpec, ...]]:
    return {tool.name: tool for tool in tools}, tuple(tool.spec for tool in tools)


async def _run_calls(
    calls: Sequence[Call], tools: Mapping[str, Tool], handler: ToolHandler | None, seconds: float
) -> list[ToolResult]:
    """Run the calls in order. Neighbouring calls of parallel tools run side by side."""
    results: list[ToolResult] = []
    for batch in _split_calls(calls, tools):
        if len(batch) == 1:
            results.append(await _run_call(batch[0], tools, handler, seconds))
        else:
            results.extend(await _run_parallel(batch, tools, handler, seconds))
    return results


def _split_calls(calls: Sequence[Call], tools: Mapping[str, Tool]) -> list[list[Call]]:
    """Split calls into groups of neighbours that may run in parallel. Every other call is a group of its own."""
    batches: list[list[Call]] = []
    was_parallel = False
    for call in calls:
        parallel = call.name in tools and tools[call.name].parallel
        if parallel and was_parallel:
            batches[-1].append(call)
        else:
            batches.append([call])
        was_parallel = parallel
    return batches


async def _run_parallel(
    calls: Sequence[Call], tools: Mapping[str, Tool], handler: ToolHandler | None, seconds: float
) -> list[ToolResult]:
    with raise_first():  # one failure is enough for the record
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_run_call(call, tools, handler, seconds)) for call in calls]
    return [task.result() for task in tasks]


async def _run_call(call: Call, tools: Mapping[str, Tool], handler: ToolHandler | None, seconds: float) -> ToolResult:
    started = time.monotonic()
    tool = tools.get(call.name)
    if tool is None:
        known = ", ".join(sorted(tools)) or "none"
        return _make_mistake(call, f"Unknown tool '{call.name}'. Available tools: {known}.")
    arguments = _decode(call.arguments)
    if isinstance(arguments, str):
        return _make_mistake(call, arguments)
    limit = tool.seconds or seconds
    clock = asyncio.timeout(limit)
    try:
        async with clock:
            content = await (tool.run(arguments) if handler is None else handler(call, arguments))
    except BadArguments as error:
        return _make_mistake(call, f"{error}. Call {call.name} again with arguments that fit its schema.")
    except LudusError:
        raise
    except Exception as error:  # a tool is foreign code: the model sees what it raises
        late = f"{call.name} took longer than {limit:g} s and was stopped." if clock.expired() else ""
        return _make_mistake(call, late or f"{type(error).__name__}: {error}", started)
    if isinstance(content, Observation):
        return ToolResult(call, content.text, seconds=time.monotonic() - started, images=content.images)
    if not isinstance(content, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # tools are foreign code
        raise ToolBroken(f"the tool '{call.name}' returned {type(content).__name__}, not text", retryable=False)
    return ToolResult(call, content, seconds=time.monotonic() - started)


def _decode(text: str) -> JsonObject | str:
    """The arguments as an object, or a description of what is wrong with them. Empty text is no arguments."""
    try:
        value = msgspec.json.decode(text or "{}")
    except msgspec.DecodeError as error:
        return f"The arguments are not valid JSON ({error}). Send one JSON object."
    except UnicodeError:
        return "The arguments contain half of a surrogate pair, which is not valid text. Send one JSON object."
    except RecursionError:
        return "The arguments are nested too deeply. Send one JSON object with fewer levels."
    if not isinstance(value, dict):
        kind = "null" if value is None else type(value).__name__
        return f"The arguments must be a JSON object, not {kind}."
    return value  # pyright: ignore[reportUnknownVariableType]


def _make_mistake(call: Call, error: str, started: float | None = None) -> ToolResult:
    seconds = time.monotonic() - started if started is not None else 0.0
    return ToolResult(call, json.dumps({"error": error}, ensure_ascii=False), error, seconds)


# ---- the size budget ----------------------------------------------------------------------------------------------


async def _apply_size_budget(
    results: Sequence[ToolResult], tools: Mapping[str, Tool], limits: Limits, spill: Spill | None, turn: int
) -> list[ToolResult]:
    """Replace results that are too long, alone or together, by a preview."""
    shown = list(results)
    allowances = [_get_allowance(result, tools, limits) for result in results]
    for index in _choose_long([result.content for result in results], allowances, limits.turn_chars):
        shown[index] = await _shorten(shown[index], limits.preview_chars, spill, f"turn{turn}-{index + 1}.txt")
    return shown


def _get_allowance(result: ToolResult, tools: Mapping[str, Tool], limits: Limits) -> int:
    own = tools[result.call.name].result_chars if result.call.name in tools else None
    return limits.result_chars if own is None else own


def _choose_long(contents: Sequence[str], allowances: Sequence[int], total: int) -> list[int]:
    """Choose the results to shorten: those over their own allowance, then the largest until the rest fits `total`."""
    chosen = [i for i, text in enumerate(contents) if len(text) > allowances[i]]
    rest = sorted((i for i in range(len(contents)) if i not in chosen), key=lambda i: -len(contents[i]))
    size = sum(len(contents[i]) for i in rest)
    for i in rest:
        if size <= total:
            break
        chosen.append(i)
        size -= len(contents[i])
    return sorted(chosen)


async def _shorten(result: ToolResult, preview_chars: int, spill: Spill | None, name: str) -> ToolResult:
    text = result.content
    path = await spill(name, text.encode(errors="replace")) if spill else ""
    where = f"the whole result is in {path}; read it in parts" if path else "they were dropped"
    head, tail = _cut_ends(text, preview_chars)
    left_out = len(text) - len(head) - len(tail)
    content = f"{head}\n[{left_out} of {len(text)} characters are not shown: {where}]\n{tail}"
    return msgspec.structs.replace(result, content=content, spilled=path, error=result.error[:preview_chars])


def _cut_ends(text: str, limit: int) -> tuple[str, str]:
    """The beginning and the end of a text: 40 % and 60 % of `limit`, because errors are often at the end. Where lines
    are short, they are whole lines."""
    head, tail = text[: limit * 2 // 5], text[len(text) - (limit - limit * 2 // 5) :]
    end, start = head.rfind("\n") + 1, tail.find("\n") + 1
    return head[: end if end > len(head) // 2 else None], tail[start if 0 < start < len(tail) // 2 else 0 :]
