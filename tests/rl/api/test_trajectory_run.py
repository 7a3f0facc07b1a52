"""State and log together: with a kill at any point, accepted groups are neither lost nor doubled."""

import json
import os
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.api_kit import ENV, TRAINER, make_wire_group

from ludus.rl.api.posted_groups import check_groups
from ludus.rl.api.state import EnvRegistered, EnvRegistration, Registration, TrainerRegistered, Wait
from ludus.rl.api.trajectory_run import BacklogFull, Delivery, Oversize, TrajectoryRun
from ludus.rl.server_settings import ApiSettings


def open_run(folder: Path, segment_bytes: int = 4000, **fields: Any) -> TrajectoryRun:
    return TrajectoryRun(folder, ApiSettings(**fields), 0.0, lambda text: None, segment_bytes=segment_bytes)


def start(run: TrajectoryRun, batch_size: int = 4) -> None:
    run.record(TrainerRegistered(Registration(**(TRAINER | {"batch_size": batch_size}))), 0.0)
    run.take_batch(0.0)
    run.record(EnvRegistered(EnvRegistration(**ENV)), 0.0)


def post(run: TrajectoryRun, *groups: dict[str, Any], key: str = "", now: float = 0.0) -> list[dict[str, Any]]:
    return run.post(check_groups(json.dumps(list(groups)).encode()), key, now)


def read(taken: Delivery | Wait) -> list[int]:
    assert isinstance(taken, Delivery)
    return [json.loads(body)["tokens"][0][0] for body in taken.bodies]


# ---- kills --------------------------------------------------------------------------------------------------------

SIZES = st.lists(st.sampled_from([1, 2, 2, 3, 4]), min_size=1, max_size=3)
STEPS = st.lists(
    st.tuples(st.just("post"), SIZES, st.booleans())
    | st.tuples(st.just("take"), st.sampled_from(["", "a", "b"]), st.booleans())
    | st.tuples(st.just("kill"), st.floats(0, 1), st.sampled_from(["post", "take", "lease"])),
    min_size=4,
    max_size=24,
)


class World:
    """Clients of the server, and what they know."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = open_run(folder, lease_seconds=1e9)
        start(self.run)
        self.tags = 0
        self.accepted: set[int] = set()
        self.plain: Counter[int] = Counter()
        """Groups that came without an acknowledgement."""
        self.leased: dict[int, list[int]] = {}
        """Groups of each batch id that a consumer got."""
        self.maybe_lost: set[int] = set()
        """Groups of plain batches that were recorded and not sent: the only ones that a kill may take."""

    def make_groups(self, sizes: list[int]) -> list[dict[str, Any]]:
        made = [make_wire_group(size, self.tags + place) for place, size in enumerate(sizes)]
        self.tags += len(sizes)
        return made

    def send(self, groups: list[dict[str, Any]], key: str) -> None:
        """Post and get the answer."""
        post(self.run, *groups, key=key)
        self.accepted |= {group["tokens"][0][0] for group in groups}

    def take(self, consumer: str, acknowledge: bool) -> None:
        held = (id for id, lease in self.run.state.leases.items() if lease.consumer == consumer)
        seen = next((id for id in held if id in self.leased), None)  # nobody acknowledges what a kill kept from them
        taken = self.run.take_batch(0.0, consumer, seen if acknowledge and consumer else None)
        if isinstance(taken, Wait):
            return
        if consumer:
            assert self.leased.setdefault(taken.batch_id, read(taken)) == read(taken), "another batch under the same id"
        else:
            self.plain.update(read(taken))

    def kill(self, share: float, during: str) -> None:
        """Kill the server when it has written a share of the record of one more request, and start it again."""
        before, kept = self.measure(), self.keep_segments()
        groups, key = self.make_groups([2, 1]), f"killed-{self.tags}"
        waiting = {json.loads(self.run._log.read(g))["tokens"][0][0] for g in self.run.state.backlog}  # pyright: ignore[reportPrivateUsage]
        if during == "post":
            post(self.run, *groups, key=key)
        else:
            self.run.take_batch(0.0, "a" if during == "lease" else "")
        after = self.measure()
        self.run.close()
        if before[0] == after[0] and after[1] > before[1]:
            os.truncate(self.folder / before[0], before[1] + int(share * (after[1] - before[1])))
            for path in kept.iterdir():  # segments are removed after the record that makes them unused
                if not (self.folder / path.name).exists():
                    os.link(path, self.folder / path.name)
        shutil.rmtree(kept)
        self.run = open_run(self.folder, lease_seconds=1e9)
        if during == "post":
            self.send(groups, key)  # the client saw no answer, and repeats the post with its key
        elif during == "take":
            left = {json.loads(self.run._log.read(g))["tokens"][0][0] for g in self.run.state.backlog}  # pyright: ignore[reportPrivateUsage]
            self.maybe_lost |= waiting - left

    def keep_segments(self) -> Path:
        """A folder with another link to each segment, so that a request cannot remove them."""
        kept = Path(tempfile.mkdtemp(dir=self.folder))
        for path in self.folder.glob("segment-*.log"):
            os.link(path, kept / path.name)
        return kept

    def measure(self) -> tuple[str, int]:
        newest = max(self.folder.glob("segment-*.log"))
        return newest.name, newest.stat().st_size

    def finish(self) -> None:
        """Take everything that is left, one group at a time."""
        self.run.record(TrainerRegistered(Registration(**(TRAINER | {"batch_size": 1}))), 0.0)
        for consumer in ("a", "b"):
            self.take(consumer, acknowledge=False)
            self.take(consumer, acknowledge=True)
        left = [json.loads(self.run._log.read(g))["tokens"][0][0] for g in self.run.state.live_groups]  # pyright: ignore[reportPrivateUsage]
        leased = Counter(tag for tags in self.leased.values() for tag in tags)
        held = Counter(tag for tag in left if not leased[tag])
        total = self.plain + leased + held
        assert set(total) | self.maybe_lost == self.accepted, "lost or invented"
        assert all(count == 1 for count in total.values()), "doubled"
        assert not set(total) & self.maybe_lost
        self.run.close()


@settings(max_examples=120)
@given(STEPS)
def test_a_kill_at_any_point_loses_no_accepted_group_and_doubles_none(steps):
    folder = Path(tempfile.mkdtemp())
    try:
        world = World(folder)
        for kind, first, second in steps:
            if kind == "post":
                world.send(world.make_groups(first), f"key-{world.tags}" if second else "")
            elif kind == "take":
                world.take(first, second)
            else:
                world.kill(first, second)
        world.finish()
    finally:
        shutil.rmtree(folder)


def test_a_restart_gives_the_same_state(tmp_path):
    run = open_run(tmp_path)
    start(run)
    for tag in range(40):
        post(run, make_wire_group(2, tag, env_id=0), key=f"k{tag}")
    run.take_batch(0.0)
    run.take_batch(0.0, "a")
    before = msgspec.msgpack.encode(run.state.to_record())
    assert run.segments > 1
    run.close()
    run = open_run(tmp_path)
    assert msgspec.msgpack.encode(run.state.to_record()) == before
    run.close()


# ---- posts --------------------------------------------------------------------------------------------------------


def test_a_post_with_a_known_key_counts_once_also_after_a_restart(tmp_path):
    run = open_run(tmp_path)
    first = post(run, make_wire_group(2), make_wire_group(1), key="k")
    assert post(run, make_wire_group(2), make_wire_group(1), key="k") == first
    run.close()
    run = open_run(tmp_path)
    assert post(run, make_wire_group(2), make_wire_group(1), key="k") == first
    assert len(run.state.backlog) == 2
    run.close()


def test_posts_are_pushed_back_when_the_backlog_is_full_and_taken_again_after_a_batch(tmp_path):
    run = open_run(tmp_path, backlog_groups=2)
    start(run)
    post(run, make_wire_group())
    post(run, make_wire_group())
    with pytest.raises(BacklogFull):
        post(run, make_wire_group())
    run.take_batch(0.0)
    post(run, make_wire_group())
    assert len(run.state.backlog) == 1
    run.close()


def test_a_group_larger_than_a_batch_is_refused(tmp_path):
    run = open_run(tmp_path)
    start(run)
    with pytest.raises(Oversize, match="5 sequences, and a batch 4"):
        post(run, make_wire_group(5))
    run.close()


def test_a_post_before_registration_is_kept(tmp_path):
    run = open_run(tmp_path)
    post(run, make_wire_group(4, 9))
    start(run)
    assert run.state.batch_size == 4
    assert run.state.delivered == 1  # the first call to /batch, in `start`, took it
    run.close()


# ---- batches ------------------------------------------------------------------------------------------------------


def test_batches_come_in_the_order_of_arrival_and_each_is_a_step(tmp_path):
    run = open_run(tmp_path)
    start(run)
    for tag in range(6):
        post(run, make_wire_group(2, tag))
    assert [read(run.take_batch(0.0)) for _ in range(3)] == [[0, 1], [2, 3], [4, 5]]
    assert isinstance(run.take_batch(0.0), Wait)
    assert run.state.step == 3
    run.close()


def test_a_consumer_gets_its_batch_again_until_it_acknowledges(tmp_path):
    run = open_run(tmp_path)
    start(run)
    for tag in range(4):
        post(run, make_wire_group(2, tag))
    first = run.take_batch(0.0, "a")
    run.close()
    run = open_run(tmp_path)
    again = run.take_batch(0.0, "a")
    assert isinstance(first, Delivery)
    assert isinstance(again, Delivery)
    assert (again.batch_id, again.bodies, again.repeated) == (first.batch_id, first.bodies, True)
    assert run.state.step == 1
    following = run.take_batch(0.0, "a", first.batch_id)
    assert read(following) == [2, 3]
    assert not run.acknowledge(first.batch_id, 0.0)
    run.close()


def test_a_batch_that_a_dead_consumer_left_goes_to_the_next_one_under_its_id(tmp_path):
    run = open_run(tmp_path, lease_seconds=10.0)
    start(run)
    post(run, make_wire_group(4, 5))
    left = run.take_batch(0.0, "a")
    assert isinstance(run.take_batch(9.0, "b"), Wait)
    taken = run.take_batch(11.0, "b")
    assert isinstance(left, Delivery)
    assert isinstance(taken, Delivery)
    assert (taken.batch_id, read(taken)) == (left.batch_id, [5])
    assert isinstance(run.take_batch(12.0), Wait)  # never to a trainer that does not acknowledge
    run.close()


def test_stale_groups_are_dropped_and_do_not_come(tmp_path):
    run = open_run(tmp_path, max_staleness=1)
    start(run)
    old = {"generation_params": {"policy_version": 0}}
    for tag in range(4):
        post(run, make_wire_group(4, tag))
    post(run, make_wire_group(4, 8, **old), make_wire_group(4, 9, generation_params={"policy_version": 4}))
    assert [read(run.take_batch(0.0)) for _ in range(3)] == [[0], [1], [9]]
    assert run.state.stale == 3
    assert run.explain_wait(0.0).endswith("3 groups were dropped for their age (api.max_staleness)")
    run.close()
    run = open_run(tmp_path)
    assert run.state.stale == 3, "also after a restart"
    run.close()


@pytest.mark.parametrize(("limit", "slow"), [(None, 10), (1, 0)])
def test_slow_tasks_are_delivered_like_fast_ones_unless_old_groups_are_dropped_by_name(
    tmp_path: Path, limit: int | None, slow: int
):
    """Every second task is slow: its group comes three steps after the policy that sampled it, and it pays more."""
    run = open_run(tmp_path, max_staleness=limit)
    start(run)
    taken: list[int] = []
    for step in range(40):
        is_slow = step % 2 == 1 and step >= 20
        version = run.state.step - 3 if is_slow else run.state.step
        post(run, make_wire_group(4, step if is_slow else 100 + step, generation_params={"policy_version": version}))
        batch = run.take_batch(float(step))
        taken += read(batch) if isinstance(batch, Delivery) else []
    assert (sum(tag < 100 for tag in taken), sum(tag >= 100 for tag in taken)) == (slow, 30)
    assert run.state.stale == 10 - slow, "what is dropped is counted"
    run.close()


def test_a_damaged_group_is_left_out_and_counted(tmp_path):
    told: list[str] = []
    run = TrajectoryRun(tmp_path, ApiSettings(), 0.0, told.append)
    start(run)
    for tag in range(3):
        post(run, make_wire_group(2, tag))
    group = next(iter(run.state.backlog))
    with (tmp_path / "segment-00000000.log").open("r+b") as file:
        file.seek(group.offset)
        file.write(b"?")
    assert read(run.take_batch(0.0)) == [1, 2]
    assert (run.state.losses.groups, run.state.stale) == (1, 0)
    assert "damaged" in told[0]
    run.close()


def test_a_batch_with_a_damaged_group_is_made_anew_for_its_consumer(tmp_path):
    run = open_run(tmp_path)
    start(run)
    for tag in range(5):
        post(run, make_wire_group(2, tag))
    first = run.take_batch(0.0, "me")
    assert read(first) == [0, 1] and run.state.step == 1
    group = run.state.leases[1].groups[0]
    with (tmp_path / f"segment-{group.segment:08}.log").open("r+b") as file:
        file.seek(group.offset)
        file.write(b"?")
    again = run.take_batch(0.0, "me")
    assert read(again) == [1, 2] and isinstance(again, Delivery) and again.batch_id == 2
    assert (run.state.step, run.state.losses.groups) == (1, 1)
    run.acknowledge(again.batch_id, 0.0)
    assert read(run.take_batch(0.0, "me")) == [3, 4]
    run.close()
    run = open_run(tmp_path)
    assert (run.state.step, run.state.losses.groups) == (2, 1)
    run.close()


def test_the_disk_is_freed_as_batches_leave(tmp_path):
    run = open_run(tmp_path)
    start(run)
    for tag in range(200):
        post(run, make_wire_group(2, tag))
        run.take_batch(0.0)
        assert run.segments <= 3
    assert sum(path.stat().st_size for path in tmp_path.glob("segment-*")) < 40_000
    run.close()


def test_a_reset_frees_everything(tmp_path):
    run = open_run(tmp_path)
    start(run)
    for tag in range(40):
        post(run, make_wire_group(2, tag))
    run.reset(0.0)
    assert run.segments == 1
    assert run.explain_wait(0.0) == "no trainer is registered"
    run.close()


def test_the_state_says_when_a_batch_can_never_come(tmp_path):
    run = open_run(tmp_path, backlog_groups=2)
    start(run, batch_size=64)
    post(run, make_wire_group())
    assert "64 sequences, 2 wait" in run.explain_wait(0.0)
    post(run, make_wire_group())
    assert "backlog is full with 4" in run.explain_wait(0.0)
    run.close()
