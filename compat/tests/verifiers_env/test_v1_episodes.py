"""What an episode is worth, by table."""

from types import SimpleNamespace
from typing import Any

import pytest

from ludus.compat.verifiers_env.package_release import RolloutOutcome
from ludus.compat.verifiers_env.v1_episodes import (
    EpisodeError,
    EpisodeFacts,
    RoleTrace,
    decide_outcome,
    needs_place_check,
    read_episode,
)
from ludus.errors import RolloutError
from ludus.types import StopReason


def make_trace(**fields: Any) -> RoleTrace:
    values: dict[str, Any] = {"role": "agent", "trained": True, "rewards": {"exact": (1.0, 1.0)}, "stop": "done"}
    return RoleTrace(**values | fields)


def decide(*traces: RoleTrace, **facts: Any) -> RolloutOutcome | RolloutError:
    return decide_outcome(EpisodeFacts(**{"traces": traces, "replies": 1, **facts}))


def test_rewards_are_weighted_and_metrics_are_parts():
    found = decide(make_trace(rewards={"exact": (1.0, 0.5), "form": (0.5, 2.0)}, metrics={"words": 3.0, "later": None}))
    assert isinstance(found, RolloutOutcome)
    assert (found.reward, found.parts) == (1.5, {"words": 3.0, "exact": 1.0, "form": 0.5})
    assert (found.stop, found.condition, found.fault) == (StopReason.FINISHED, "done", "")


def test_only_trained_roles_count_and_several_have_the_mean():
    user = make_trace(role="user", trained=False, rewards={"exact": (9.0, 1.0)})
    found = decide(make_trace(), user, make_trace(rewards={"exact": (0.0, 1.0)}))
    assert isinstance(found, RolloutOutcome)
    assert (found.reward, found.parts) == (0.5, {"agent 1: exact": 1.0, "agent 2: exact": 0.0})


@pytest.mark.parametrize(
    ("stop", "truncated", "expected"),
    [
        ("agent_completed", False, StopReason.FINISHED),
        ("agent_completed", True, StopReason.LENGTH),
        ("max_turns", True, StopReason.MAX_TURNS),
        ("agent_timeout", False, StopReason.TIMEOUT),
        ("max_total_tokens", True, StopReason.CONTEXT),
    ],
)
def test_why_it_ended(stop: str, truncated: bool, expected: StopReason):
    found = decide(make_trace(stop=stop, truncated=truncated))
    assert isinstance(found, RolloutOutcome) and found.stop is expected


@pytest.mark.parametrize(
    ("kind", "facts", "expected"),
    [
        ("HarnessError", {}, StopReason.CRASHED),
        ("SandboxError", {"place_works": True}, StopReason.BROKEN),
        ("ProviderError", {"context_over": True}, StopReason.CONTEXT),
    ],
)
def test_what_the_agent_caused_is_a_zero(kind: str, facts: dict[str, Any], expected: StopReason):
    found = decide(make_trace(error=EpisodeError(kind, "gone"), rewards={}), **facts)
    assert isinstance(found, RolloutOutcome)
    assert (found.reward, found.stop, bool(found.fault)) == (0.0, expected, True)


@pytest.mark.parametrize(
    ("kind", "facts", "boundary", "retryable"),
    [
        ("HarnessError", {"replies": 0}, "agent", True),
        ("SandboxError", {"place_works": False}, "sandbox", True),
        ("SandboxError", {"replies": 0}, "sandbox", True),
        ("ToolsetError", {}, "tool", True),
        ("ProviderError", {}, "model", True),
        ("TaskError", {"replies": 0}, "setup", True),
        ("TaskError", {}, "verifier", False),
        ("KeyError", {}, "verifier", False),
    ],
)
def test_what_the_world_caused_has_no_score(kind: str, facts: dict[str, Any], boundary: str, retryable: bool):
    found = decide(make_trace(error=EpisodeError(kind, "gone")), **facts)
    assert isinstance(found, RolloutError)
    assert (found.boundary, found.retryable, "gone" in str(found)) == (boundary, retryable, True)


def test_an_error_of_a_role_comes_before_that_of_the_environment():
    role, own = EpisodeError("SandboxError", "no box"), EpisodeError("EnvError", "run() failed")
    found = decide(make_trace(error=role), error=own)
    assert isinstance(found, RolloutError) and "no box" in str(found)
    alone = decide(make_trace(), error=own)
    assert isinstance(alone, RolloutError) and (alone.boundary, alone.retryable) == ("verifier", False)


@pytest.mark.parametrize(
    ("trace", "facts", "words"),
    [
        (make_trace(trained=False), {}, "no trace of a role that is trained"),
        (make_trace(), {"replies": 0}, "no reply of the model"),
        (
            make_trace(rewards={"exact": None}, stop="scoring_timeout"),
            {},
            r"exact was not computed \(scoring_timeout\)",
        ),
        (make_trace(rewards={"exact": (float("nan"), 1.0)}), {}, "the reward is nan"),
        (make_trace(rewards={"exact": (float("inf"), 1.0)}), {}, "the reward is inf"),
    ],
)
def test_what_is_no_measurement(trace: RoleTrace, facts: dict[str, Any], words: str):
    found = decide(trace, **facts)
    assert isinstance(found, RolloutError)
    with pytest.raises(RolloutError, match=words):
        raise found


def test_a_new_place_is_tried_only_if_the_agent_may_have_broken_its_own():
    broken = make_trace(error=EpisodeError("SandboxError", "gone"))
    assert needs_place_check(EpisodeFacts(traces=(broken,), replies=1))
    assert not needs_place_check(EpisodeFacts(traces=(broken,), replies=0))
    assert not needs_place_check(EpisodeFacts(traces=(make_trace(),), replies=1))


def test_the_facts_of_an_episode():
    error = SimpleNamespace(type="TaskError", message="gone")
    trace = SimpleNamespace(
        agent=SimpleNamespace(name="solver", trainable=True),
        rewards={"exact": SimpleNamespace(score=0.5, weight=2.0), "late": None},
        metrics={"words": 3.0},
        stop_condition=None,
        is_truncated=False,
        ok=True,
        errors=[error],
    )
    facts = read_episode(SimpleNamespace(traces=[trace], ok=False, errors=[error]), 2, context_over=False)
    expected = RoleTrace(
        role="solver", trained=True, rewards={"exact": (0.5, 2.0), "late": None}, metrics={"words": 3.0}
    )
    assert facts == EpisodeFacts(traces=(expected,), error=EpisodeError("TaskError", "gone"), replies=2)
