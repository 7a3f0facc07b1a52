"""The state of a run as a function of its events, and what environments are told about the queue."""

import msgspec
import pytest
from tests.api_kit import ENV, TRAINER

from ludus.rl.api.state import (
    KEPT_KEYS,
    ApiState,
    BatchAcknowledged,
    BatchDelivered,
    BatchMoved,
    DataReset,
    EnvDisconnected,
    EnvRegistered,
    EnvRegistration,
    GroupsDropped,
    GroupsPosted,
    PostedGroup,
    Registration,
    TrainerRegistered,
    TrainerStarted,
    Wait,
)


def start(**fields) -> ApiState:
    state = ApiState()
    state.apply(TrainerRegistered(Registration(**(TRAINER | fields))))
    state.apply(TrainerStarted())
    return state


def add_env(state: ApiState, now: float = 0.0, **fields) -> None:
    state.apply(EnvRegistered(EnvRegistration(**(ENV | fields))), now=now)


def post(state: ApiState, *sizes: int, env_id: int | None = None, version: int = 0, key: str = ""):
    return state.apply(GroupsPosted([PostedGroup(size, env_id, version, 10, 0) for size in sizes], key))


def choose(state: ApiState, now: float = 0.0):
    chosen = state.choose_batch(now, env_timeout=120, patience=60, full=False)
    return chosen.reason if isinstance(chosen, Wait) else [group.id for group in chosen]


def test_names_count_environments_of_the_same_name():
    state = start()
    for name in ("a", "b", "a"):
        add_env(state, desired_name=name)
    assert [env.name for env in state.envs] == ["a_0", "b_0", "a_1"]


def test_the_numbers_that_environments_see():
    """The figures of the original with three environments, one with a minimum and one without weight."""
    state = start(batch_size=8)
    add_env(state, desired_name="a", max_token_length=2048, group_size=4, min_batch_allocation=0.25)
    add_env(state, desired_name="b", max_token_length=1024, weight=2.0, group_size=2)
    add_env(state, desired_name="a", max_token_length=2048, weight=-1.0, group_size=4)
    empty = [state.describe_queue(env_id) for env_id in range(3)]
    assert [each["env_weight"] for each in empty] == [0.5, 0.5, 0.01]
    assert [each["queue_size"] for each in empty] == [0, 0, 0]
    assert {each["unallocated_fraction"] for each in empty} == {0.75}
    assert {each["max_group_size"] for each in empty} == {1}
    for _ in range(3):
        post(state, 4, env_id=0)
    for _ in range(5):
        post(state, 2, env_id=1)
    seen = [state.describe_queue(env_id) for env_id in range(3)]
    assert [each["queue_size"] for each in seen] == [6, 10, 5]
    assert [each["self_queue_size"] for each in seen] == [3, 5, 0]
    assert {each["max_group_size"] for each in seen} == {4}
    assert state.queue_size == 8


def test_without_any_weight_the_floor_is_told():
    state = start()
    add_env(state, weight=0.0)
    assert state.describe_queue(0)["env_weight"] == 0.01
    state.apply(EnvDisconnected(0))
    assert state.describe_queue(0)["env_weight"] == 0.01


def test_groups_of_another_size_are_told_as_buffered_until_others_complete_them():
    """The answers of the original, except that groups larger than its groups are not stuck."""
    state = start(batch_size=64)
    add_env(state, group_size=4)
    answers = [(post(state, size, env_id=0)[0]["buffer_size"], state.queue_size) for size in (3, 2, 1, 1, 5, 2, 2)]
    assert answers == [(3, 0), (5, 0), (2, 2), (3, 2), (8, 2), (6, 4), (8, 4)]
    replies = [post(state, size, env_id=env_id)[0] for size, env_id in ((4, 0), (3, 0), (1, 0), (4, None), (3, 7))]
    assert [reply["status"] for reply in replies] == ["received", "buffered", "buffered", "received", "received"]
    assert replies[2]["buffer_size"] == 8
    assert state.queue_size == 9


def test_a_buffered_group_is_delivered_like_any_other():
    state = start(batch_size=8)
    add_env(state, group_size=4)
    post(state, 5, env_id=0)
    post(state, 3)
    assert choose(state) == [0, 1]
    state.apply(BatchDelivered([0, 1]))
    assert state.envs[0].short == []
    assert state.queue_size == 0


def test_a_step_is_a_delivered_batch():
    state = start(starting_step=7)
    for _ in range(3):
        post(state, 4)
    assert state.step == 7
    state.apply(BatchDelivered([0]))
    assert state.step == 8


def test_a_batch_waits_for_the_minimum_of_a_live_environment_but_not_for_ever():
    state = start()
    add_env(state, min_batch_allocation=0.5)
    post(state, 2)
    post(state, 2)
    assert "minimum share of e_0" in choose(state, now=0)
    assert "minimum share" in choose(state, now=59)
    assert choose(state, now=60) == [0, 1]


@pytest.mark.parametrize("end", ["disconnected", "silent"])
def test_a_dead_environment_holds_up_no_batch(end):
    state = start()
    add_env(state, min_batch_allocation=0.5)
    post(state, 2)
    post(state, 2)
    if end == "disconnected":
        state.apply(EnvDisconnected(0))
    assert choose(state, now=121 if end == "silent" else 0) == [0, 1]


def test_groups_without_an_environment_are_used_beside_a_minimum():
    state = start()
    add_env(state, min_batch_allocation=0.5)
    post(state, 2)
    post(state, 2, env_id=0)
    assert choose(state) == [0, 1]


def test_leases_move_and_end():
    state = start()
    post(state, 4)
    lease = state.apply(BatchDelivered([0], "a"), now=0.0)
    assert state.find_lease("a") is lease
    assert state.find_expired_lease(599.0, 600.0) is None
    assert state.find_expired_lease(601.0, 600.0) is lease
    state.apply(BatchMoved(lease.batch_id, "b"), now=601.0)
    assert state.find_lease("a") is None
    assert state.find_expired_lease(700.0, 600.0) is None
    assert [group.id for group in state.live_groups] == [0]
    state.apply(BatchAcknowledged(lease.batch_id))
    assert list(state.live_groups) == []


def test_stale_groups_are_those_whose_policy_is_too_old():
    state = start(starting_step=5)
    post(state, 2, version=2)
    post(state, 2, version=3)
    groups = list(state.backlog)
    assert state.list_stale(2, groups) == [0]
    assert state.list_stale(None, groups) == []
    state.apply(GroupsDropped([0], "stale"))
    assert (len(state.backlog), state.dropped) == (1, 1)


def test_a_reset_keeps_only_the_last_registration():
    state = start()
    add_env(state)
    post(state, 2, key="k")
    state.apply(DataReset())
    assert (state.batch_size, state.step, state.envs, len(state.backlog), state.started) == (-1, 0, [], 0, False)
    assert state.registration and state.registration.max_token_len == 64
    assert not state.keys


def test_only_so_many_keys_are_remembered():
    state = start()
    state.keys.update((str(number), b"[]") for number in range(KEPT_KEYS))
    post(state, 2, key="new")
    assert len(state.keys) == KEPT_KEYS
    assert "new" in state.keys
    assert "0" not in state.keys


def test_a_record_gives_the_same_state_again():
    state = start()
    add_env(state)
    post(state, 2, 1, env_id=0, key="k")
    post(state, 4)
    state.apply(BatchDelivered([2], "a"))
    record = msgspec.msgpack.encode(state.to_record())
    again = ApiState.from_record(msgspec.msgpack.decode(record, type=type(state.to_record())), now=50.0)
    assert msgspec.msgpack.encode(again.to_record()) == record
    assert again.is_alive(0, 100.0, 120.0)
    assert again.find_expired_lease(100.0, 600.0) is None
