"""What an episode of a taskset is worth: the score of the rollout, the agent's fault, or no measurement. Pure.

An episode has a trace for each run of a role. The roles that are trained are the policy: the reward is the mean of
theirs. The other roles (a simulated user, a judge) belong to the world.

| what failed | it is |
|---|---|
| the program of a role, after the model replied | the agent's fault: it could end that program itself |
| the place where it ran, after the model replied | the agent's fault if a new one works |
| the conversation is longer than the model's context | the agent's fault |
| the model, tools, a place, before any reply anything | the world's, and tried again |
| the task's or the environment's own code | the world's. It is not tried again after a reply: no second chance |
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from ludus.compat.verifiers_env.package_release import RolloutOutcome
from ludus.errors import (
    HarnessError,
    ModelError,
    RolloutError,
    SandboxError,
    SetupError,
    ToolBroken,
    VerifierError,
)
from ludus.types import StopReason

ERRORS: dict[str, type[RolloutError]] = {
    "ProviderError": ModelError,
    "InterceptionError": ModelError,
    "TunnelError": ModelError,
    "HarnessError": HarnessError,
    "SandboxError": SandboxError,
    "ToolsetError": ToolBroken,
}
"""Our errors by the package's; any other is code of the task or of the environment."""
PLACE, PROGRAM = "SandboxError", "HarnessError"
STOPS = {
    "max_turns": StopReason.MAX_TURNS,
    "max_input_tokens": StopReason.CONTEXT,
    "max_output_tokens": StopReason.LENGTH,
    "max_total_tokens": StopReason.CONTEXT,
    "compaction_failed": StopReason.CONTEXT,
    "agent_timeout": StopReason.TIMEOUT,
}


class EpisodeError(Struct, frozen=True):
    """An error that the package has recorded."""

    kind: str
    message: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


class RoleTrace(Struct, frozen=True, kw_only=True):
    """One run of a role."""

    role: str
    trained: bool
    rewards: Mapping[str, tuple[float, float] | None] = {}
    """Score and weight of each reward; None: its function was not run."""
    metrics: Mapping[str, float | None] = {}
    stop: str = ""
    truncated: bool = False
    error: EpisodeError | None = None

    @property
    def reward(self) -> float:
        return sum(score * weight for score, weight in filter(None, self.rewards.values()))


class EpisodeFacts(Struct, frozen=True, kw_only=True):
    """What is known about an episode that has ended."""

    traces: tuple[RoleTrace, ...]
    error: EpisodeError | None = None
    """That of the environment itself."""
    replies: int = 0
    """How often the model replied to the policy's roles."""
    context_over: bool = False
    """The model refused a conversation that is longer than its context."""
    place_works: bool | None = None
    """Whether a new place (a container, a folder) runs a command; None: not asked."""


def read_episode(episode: Any, replies: int, *, context_over: bool) -> EpisodeFacts:
    """The facts of an episode of the package."""
    return EpisodeFacts(
        traces=tuple(_read_trace(trace) for trace in episode.traces),
        error=_read_error(episode.errors) if not episode.ok else None,
        replies=replies,
        context_over=context_over,
    )


def _read_trace(trace: Any) -> RoleTrace:
    rewards = {name: None if one is None else (one.score, one.weight) for name, one in trace.rewards.items()}
    return RoleTrace(
        role=trace.agent.name,
        trained=trace.agent.trainable,
        rewards=rewards,
        metrics=dict(trace.metrics),
        stop=trace.stop_condition or "",
        truncated=trace.is_truncated,
        error=_read_error(trace.errors) if not trace.ok else None,
    )


def _read_error(errors: Sequence[Any]) -> EpisodeError | None:
    return EpisodeError(errors[-1].type, errors[-1].message) if errors else None


def find_episode_error(facts: EpisodeFacts) -> EpisodeError | None:
    """The error that ended the episode. That of a role is the cause of the environment's."""
    found = [trace.error for trace in facts.traces if trace.error is not None]
    return found[0] if found else facts.error


def needs_place_check(facts: EpisodeFacts) -> bool:
    """Whether `place_works` must be known to decide."""
    error = find_episode_error(facts)
    return error is not None and error.kind == PLACE and facts.replies > 0 and not facts.context_over


def decide_outcome(facts: EpisodeFacts) -> RolloutOutcome | RolloutError:
    """The outcome of an episode, or the error that is the reason why it has none."""
    error = find_episode_error(facts)
    if error is not None:
        return _weigh_error(facts, error)
    trained = [trace for trace in facts.traces if trace.trained]
    if not trained:
        return VerifierError("the episode has no trace of a role that is trained", retryable=False)
    if not facts.replies:
        return HarnessError(f"the agent ended ({trained[0].stop or 'no reason given'}) and got no reply of the model")
    missing = [name for trace in trained for name, reward in trace.rewards.items() if reward is None]
    if missing:
        return VerifierError(f"the reward {missing[0]} was not computed ({trained[0].stop})", retryable=False)
    reward = sum(trace.reward for trace in trained) / len(trained)
    if not math.isfinite(reward):
        return VerifierError(f"the reward is {reward}", retryable=False)
    last = trained[-1]
    return RolloutOutcome(reward=reward, parts=_list_parts(trained), stop=_find_stop(last), condition=last.stop)


def _weigh_error(facts: EpisodeFacts, error: EpisodeError) -> RolloutOutcome | RolloutError:
    """The agent's fault is a reward of 0. Anything else is an error."""
    if facts.replies and facts.context_over:
        words = "The conversation is longer than the model's context."
        return RolloutOutcome(reward=0.0, stop=StopReason.CONTEXT, condition=str(error), fault=words)
    if facts.replies and error.kind == PROGRAM:
        words = f"The agent's program ended with an error: {error.message}"
        return RolloutOutcome(reward=0.0, stop=StopReason.CRASHED, condition=str(error), fault=words)
    if facts.replies and error.kind == PLACE and facts.place_works:
        words = f"The agent broke the place where it ran: {error.message}"
        return RolloutOutcome(reward=0.0, stop=StopReason.BROKEN, condition=str(error), fault=words)
    own = VerifierError if facts.replies else SetupError
    kind = ERRORS.get(error.kind, own)
    return kind(str(error), retryable=kind is not VerifierError)


def _list_parts(traces: Sequence[RoleTrace]) -> dict[str, float]:
    """Rewards and metrics by name. If there are several traces, names begin with the role and the trace's number."""
    parts: dict[str, float] = {}
    for number, trace in enumerate(traces, 1):
        scores = {name: reward[0] for name, reward in trace.rewards.items() if reward is not None}
        values = {**{name: value for name, value in trace.metrics.items() if value is not None}, **scores}
        before = f"{trace.role} {number}: " if len(traces) > 1 else ""
        parts |= {f"{before}{name}": value for name, value in values.items() if math.isfinite(value)}
    return parts


def _find_stop(trace: RoleTrace) -> StopReason:
    return STOPS.get(trace.stop) or (StopReason.LENGTH if trace.truncated else StopReason.FINISHED)
