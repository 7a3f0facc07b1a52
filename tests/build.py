"""Builders of tasks, completions, turns, rollouts and groups for tests.

Each has defaults for what a test does not care about. Further keywords are the fields of the type itself.

    make_rollout(0.5, "It is 41.")                      a scored rollout of one turn
    make_rollout(None, failure=Failure("model", "down"))  a failed one
    make_turn("", ToolResult(call, "41"))               a turn with one tool call
    make_group(1.0, 0.0, None, size=4)                  a group of three rollouts, one of them failed
    make_token_rollout(tokens, tokens)                  a scored rollout in token mode
"""

from collections.abc import Mapping
from typing import Any

from ludus.types import (
    Completion,
    Failure,
    Group,
    Message,
    Provenance,
    Reasoning,
    Rollout,
    Score,
    Splice,
    StopReason,
    Task,
    Tokens,
    ToolResult,
    Turn,
)


def make_task(id: str = "t1", prompt: str = "do it", **fields: Any) -> Task:
    return Task(id=id, prompt=prompt, **fields)


def make_completion(text: str = "", *, thinking: str = "", **fields: Any) -> Completion:
    """A reply in words. For one with calls, see `make_turn`."""
    reasoning = Reasoning(thinking, "think") if thinking else None
    return Completion(Message("assistant", text, reasoning=reasoning), **fields)


def make_turn(
    text: str = "", *results: ToolResult, thinking: str = "", stop: StopReason | None = None, **fields: Any
) -> Turn:
    """A reply that makes the calls of `results`. Further fields are the completion's."""
    reasoning = Reasoning(thinking, "think") if thinking else None
    message = Message("assistant", text, tuple(result.call for result in results), reasoning=reasoning)
    return Turn(Completion(message, **fields), results, stop=stop)


def make_rollout(
    score: Score | float | None = 1.0,
    *turns: Turn | Completion | str,
    task: Task | None = None,
    failure: Failure | None = None,
    feedback: str = "",
    **fields: Any,
) -> Rollout:
    """A rollout with this score, or a failed one if it is None. A turn may be given as its completion or its text."""
    if isinstance(score, int | float):
        score = Score.of(score, feedback)
    if score is None and failure is None:
        failure = Failure("sandbox", "gone")
    values: dict[str, Any] = {
        "task": task or make_task(),
        "provenance": Provenance(policy="p", model="m"),
        "turns": tuple(map(_to_turn, turns)),
        "stop": StopReason.FINISHED if failure is None else StopReason.FAILED,
        "score": score,
        "failure": failure,
    }
    return Rollout(**values | fields)


def make_token_rollout(
    *tokens: Tokens | None,
    splices: Mapping[int, Splice] | None = None,
    score: float | None = 1.0,
    replicate: int = 0,
    **fields: Any,
) -> Rollout:
    """A rollout with the exact ids of each turn, or None for a turn without. `splices` are by the index of the turn."""
    splices = splices or {}
    turns = [make_completion("x", tokens=each, splice=splices.get(index)) for index, each in enumerate(tokens)]
    provenance = Provenance(policy="p", model="m", replicate=replicate)
    return make_rollout(score, *turns, provenance=provenance, **fields)


def _to_turn(turn: Turn | Completion | str) -> Turn:
    if isinstance(turn, str):
        return make_turn(turn, stop=StopReason.FINISHED)
    return Turn(turn) if isinstance(turn, Completion) else turn


def make_group(*members: Rollout | float | None, task: Task | None = None, size: int | None = None) -> Group:
    """A group of these rollouts, or of rollouts with these scores. It is partial if `size` is larger."""
    if task is None:
        task = next((member.task for member in members if isinstance(member, Rollout)), None) or make_task()
    rollouts = tuple(m if isinstance(m, Rollout) else make_rollout(m, task=task) for m in members)
    return Group(task=task, rollouts=rollouts, size=size or len(rollouts))
