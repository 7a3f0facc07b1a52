"""The page of trajectories of a training run: every rollout once, in its part of the run."""

import json
import re
from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace

from ludus.reflact.records import Step
from ludus.reflact.report.transcripts_page import UNFINISHED, make_link, name_part, render_transcripts
from ludus.reflact.training_run import RECORDS
from ludus.store import MemoryStore


def read_rows(store: MemoryStore) -> list[dict[str, Any]]:
    page = b"".join(render_transcripts("run", {}, store)).decode()
    (rows,) = re.findall(r'id="rows">(.*?)</script>', page, re.S)
    return [json.loads(line) for line in rows.splitlines() if line.strip()]


def test_every_rollout_is_on_the_page_once_with_its_part_and_role(world: SimpleNamespace):
    store = MemoryStore()
    records = world.run(settings=replace(world.SETTINGS, selection_replicates=2), store=store)
    rows = read_rows(store)
    assert sum(len(row["rollouts"]) for row in rows) == len(store.outcomes)
    assert [row["index"] for row in rows] == list(range(len(rows)))
    assert list(dict.fromkeys(row["part"] for row in rows)) == [
        name for name in map(name_part, records) if name in {row["part"] for row in rows}
    ]
    first = next(record for record in records if isinstance(record, Step))
    assert first.candidate is not None
    for row in rows:
        skills = {rollout["provenance"]["skill"] for rollout in row["rollouts"]}
        if row["part"] == "step 1" and row["role"] == "candidate":
            assert skills == {first.candidate.hash} and len(row["rollouts"]) == 2
        if row["part"] == "baseline":
            assert row["role"] == "initial skill" and row["task"]["id"].startswith("selection-")
    roles = {row["role"] for row in rows}
    assert {"train", "candidate", "initial skill", "comparison of epochs"} <= roles
    assert any(role.startswith("test: ") and "best" in role for role in roles)
    assert "answer" not in json.dumps(rows[0]["task"])


def test_rollouts_of_a_part_that_has_not_ended_are_shown_too(world: SimpleNamespace):
    store = MemoryStore()
    world.run(store=store)
    last = [key for key, (kind, _) in store.bodies.items() if kind == RECORDS][-1]
    del store.bodies[last]
    assert any(row["part"] == UNFINISHED for row in read_rows(store))


def test_links_are_safe_addresses():
    assert make_link("step 3") == "trajectories.html#step%203"
    assert make_link("step 3", 'a/b#c "<') == "trajectories.html#step%203/a%2Fb%23c%20%22%3C"
