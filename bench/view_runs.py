"""Runs for `bench/view.py`: one of very many rollouts, a folder of many runs, and one rollout that is very long.

    $ python bench/view_runs.py FOLDER --rollouts 100000 --runs 1000 --turns 5000

They are written by the store's own code, so they are what a command leaves. The texts are made up and short: 100,000
rollouts take about 300 MB.
"""

import argparse
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ludus.config import Config, to_record
from ludus.run_info import keep_info, note_planned
from ludus.store import RunDir
from ludus.types import (
    Call,
    Completion,
    Failure,
    Finish,
    Message,
    Provenance,
    Rollout,
    RolloutTimes,
    Score,
    StopReason,
    Task,
    ToolResult,
    Turn,
    Usage,
)

GROUP = 8
"""Rollouts of a task."""
BIG = "big"
LONG = "long"
MANY = "many"


def make_record(env: str, model: str) -> dict[str, Any]:
    """The settings that a run of `ludus evaluate` records."""
    record = to_record(Config())
    record["env"] = {**record["env"], "name": env, "group_size": GROUP}
    record["model"] = {"type": "openai", "name": model, "base_url": "http://127.0.0.1:1/v1"}
    return {name: value for name, value in record.items() if name not in ("train", "data", "optimizer", "rl", "serve")}


def make_rollout(number: int, rng: random.Random) -> Rollout:
    """A rollout of two turns with a tool call. One of 200 has no score."""
    task = Task(id=f"task-{number // GROUP:06d}", prompt=f"Find the value of item {number // GROUP}.", kind="lookup")
    call = Call(f"c{number}", "terminal", f'{{"command": "grep -n item-{number // GROUP} table.csv"}}')
    error = "exit code 1" if rng.random() < 0.05 else ""
    result = ToolResult(call, f"{number}: item-{number // GROUP},{rng.random():.6f}", error, seconds=rng.random())
    first = Completion(Message("assistant", "I look it up.", (call,)), Finish.STOP, Usage(420, 38))
    last = Completion(Message("assistant", f"The value is {rng.randrange(1000)}."), Finish.STOP, Usage(510, 12))
    failed = rng.random() < 0.005
    times = RolloutTimes(1_780_000_000.0 + number / 50, {"slot": 0.01, "model": 2.0 * rng.random(), "verify": 0.02})
    return Rollout(
        task=task,
        provenance=Provenance(policy="p0", model="bench-model", replicate=number % GROUP, seed=number),
        opening=(Message("user", task.prompt),),
        turns=(Turn(first, (result,), seconds=1.0), Turn(last, (), StopReason.FINISHED, 0.5)),
        stop=StopReason.FAILED if failed else StopReason.FINISHED,
        score=None if failed else Score.of(float(rng.random() < 0.6), "compared with the table"),
        failure=Failure("sandbox", "the slot was lost") if failed else None,
        seconds=2.0,
        times=times,
    )


def write_run(path: Path, count: int, env: str = "lookup", model: str = "bench-model", seed: int = 0) -> None:
    """A finished run of `ludus evaluate` with this many rollouts."""
    rng = random.Random(seed)
    with RunDir.open(path, make_record(env, model)) as run, keep_info(run, "evaluate", f"ludus evaluate {env}"):
        note_planned(run, count)
        for number in range(count):
            run.put(f"{seed:08x}{number:024x}", make_rollout(number, rng))


def make_long_rollout(turns: int, result_bytes: int) -> Rollout:
    """A rollout of very many turns, one of which has a tool result of so many bytes."""
    line = "2026-01-01 00:00:00 INFO worker: the quick brown fox jumps over the lazy dog\n"

    def list_turns() -> Iterator[Turn]:
        for number in range(turns):
            call = Call(f"c{number}", "terminal", f'{{"command": "step {number}"}}')
            content = line * (result_bytes // len(line)) if number == turns // 2 else f"step {number} done\n" * 3
            message = Message("assistant", f"Step {number}: I go on.", (call,))
            yield Turn(Completion(message, Finish.STOP, Usage(1000, 30)), (ToolResult(call, content, seconds=0.1),))

    return Rollout(
        task=Task(id="endless", prompt="Work until it is done."),
        provenance=Provenance(policy="p0", model="bench-model"),
        opening=(Message("user", "Work until it is done."),),
        turns=tuple(list_turns()),
        stop=StopReason.MAX_TURNS,
        score=Score.of(0.0, "it was not done"),
        seconds=1000.0,
    )


def write_long_run(path: Path, turns: int, result_bytes: int) -> None:
    with RunDir.open(path, make_record("endless", "bench-model")) as run, keep_info(run, "evaluate"):
        run.put("f" * 32, make_long_rollout(turns, result_bytes))
        run.put("e" * 32, make_rollout(1, random.Random(1)))


def write_all(folder: Path, rollouts: int, runs: int, turns: int, result_bytes: int) -> dict[str, float]:
    """Write the three kinds of runs. Returns how many seconds each took."""
    took: dict[str, float] = {}
    for name in (BIG, LONG, MANY):
        began = time.monotonic()
        if name == BIG:
            write_run(folder / BIG / "big", rollouts)
        elif name == LONG:
            write_long_run(folder / LONG / "long", turns, result_bytes)
        else:
            for number in range(runs):
                path = folder / MANY / f"run-{number:04d}"
                write_run(path, 2 * GROUP, f"env-{number % 7}", f"model-{number % 5}", number)
        took[name] = time.monotonic() - began
    return took


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rollouts", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=5000)
    parser.add_argument("--result-bytes", type=int, default=20_000_000)
    given = parser.parse_args()
    for name, seconds in write_all(given.folder, given.rollouts, given.runs, given.turns, given.result_bytes).items():
        print(f"{given.folder / name}: {seconds:.1f} s")
