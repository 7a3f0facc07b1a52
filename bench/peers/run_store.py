"""Measure the look-up of one outcome: `RunDir.get`, with decoding, in a store of a given size.

The store is filled in bulk and not with `put`: storing a million outcomes one by one is not measured here.
"""

import hashlib
import json
import random
import sys
import tempfile
import time
from pathlib import Path

from ludus.encoding import to_json
from ludus.store import RunDir
from ludus.types import Completion, Message, Provenance, Rollout, Score, StopReason, Task, Turn, Usage

LOOKS = 20_000


def make_rollout() -> Rollout:
    """Make a rollout of two kilobytes: an answer to a question, with a page of skill."""
    task = Task(id="question", prompt="Who wrote it? " + "word " * 40, answer="nobody")
    completion = Completion(Message("assistant", "Nobody, because " + "reason " * 40), usage=Usage(300, 60), model="m")
    return Rollout(
        task=task,
        provenance=Provenance(policy="0123456789abcdef", model="m", skill="0123456789abcdef", versions={"ludus": "0"}),
        opening=(Message("system", "skill " * 100), Message("user", task.prompt)),
        turns=(Turn(completion, stop=StopReason.FINISHED, seconds=1.25),),
        stop=StopReason.FINISHED,
        score=Score.of(1.0),
        seconds=1.3,
    )


def make_key(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()[:32]


def fill(run: RunDir, count: int) -> None:
    body = to_json(make_rollout())
    with run._db as db:
        db.executemany("INSERT INTO rollouts VALUES (?, ?)", ((number + 1, body) for number in range(count)))
        ordered = sorted((make_key(number), number + 1) for number in range(count))
        db.executemany("INSERT INTO outcomes VALUES (?, 1.0, ?)", ordered)


def time_look_ups(run: RunDir, count: int) -> float:
    """Measure random look-ups. Returns the CPU time of one, in microseconds."""
    keys = [make_key(random.randrange(count)) for _ in range(LOOKS)]
    started = time.process_time()
    for each in keys:
        assert run.get(each) is not None
    return (time.process_time() - started) / LOOKS * 1e6


if __name__ == "__main__":
    count = int(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        with RunDir.open(Path(folder) / "run", {}) as run:
            fill(run, count)
        with RunDir.open(Path(folder) / "run", {}, resume=True) as run:
            taken = sorted(time_look_ups(run, count) for _ in range(3))
    print(json.dumps({"outcomes": count, "microseconds": taken[1]}))
