"""Ludus's own agent: the loop in which a model calls tools.

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
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing

import msgspec

from ludus.activity import enter_phase
from ludus.errors import LudusError, ModelError, SandboxError, ToolBroken, raise_first
from ludus.models.token_estimate import estimate_prompt, estimate_text
from ludus.policy import Agent, Limits, NextMessage, Policy, Scene, seed_sampling
from ludus.result_budget import Spill, apply_size_budget, make_spill
from ludus.tools import BadArguments, Tool
from ludus.types import (
    Call,
    Completion,
    Finish,
    JsonObject,
    Message,
    Observation,
    StopReason,
    ToolResult,
    ToolSpec,
    Turn,
)

ToolHandler = Callable[[Call, JsonObject], Awaitable["str | Observation"]]
"""Runs calls in place of the tools. Takes the call and its decoded arguments, and returns the observation."""


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
    limits, messages, turns = policy.limits, list(opening), list[Turn]()
    by_name, specs = _index_tools(tools)
    if not _fits_context(limits, messages, specs):
        return
    for number in range(1, limits.turns + 1):
        started = time.monotonic()
        completion = await _ask(policy, messages, specs, seed, number)
        if completion is None:
            return
        try:
            with enter_phase("tool"):
                results = await _run_calls(completion.message.calls, by_name, handler, limits.tool_seconds)
                results = await apply_size_budget(results, by_name, limits, spill, number)
        except SandboxError:  # the reply may have broken the slot, so it belongs to the record
            yield Turn(completion, seconds=time.monotonic() - started)
            raise
        turn = Turn(completion, tuple(results), seconds=time.monotonic() - started)
        stop = _decide_stop(turn, number, limits.turns, by_name)
        if next_message is not None and stop in _END_OF_REPLY and (said := await next_message((*turns, turn))):
            turn, (by_name, specs) = msgspec.structs.replace(turn, notices=(said[0],)), _index_tools(said[1])
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


async def _ask(
    policy: Policy, messages: Sequence[Message], specs: Sequence[ToolSpec], seed: int | None, number: int
) -> Completion | None:
    """The model's reply. None: the server says that a later prompt is too long."""
    try:
        with enter_phase("model"):
            return await policy.model.complete(messages, specs, seed_sampling(policy.sampling, seed, number))
    except ModelError as error:
        if error.too_long and number > 1:
            return None
        raise


class Loop(Agent):
    """The loop as an agent."""

    @property
    def name(self) -> str:
        return ""

    async def act(self, scene: Scene) -> StopReason:
        turns = take_turns(
            scene.policy,
            scene.opening,
            scene.offer,
            seed=scene.seed,
            spill=make_spill(scene.box) if scene.box else None,
            next_message=scene.next_message,
        )
        async with aclosing(turns):
            async for turn in turns:
                scene.add(turn)
        # A loop that ends without a reason has reached a prompt that does not fit the context.
        return (scene.turns[-1].stop if scene.turns else None) or StopReason.CONTEXT


LOOP = Loop()


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
