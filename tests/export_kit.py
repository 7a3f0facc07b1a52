"""Groups for tests of exporters: with exact tokens, tool calls, a branch and a failure."""

import base64
from pathlib import Path

import msgspec
from tests.build import make_group, make_rollout, make_task, make_turn

from ludus.rl.exporters import ExportedGroup, GroupSource, collect_rows
from ludus.run_info import keep_info
from ludus.store import RunDir
from ludus.types import (
    Call,
    Failure,
    Finish,
    Group,
    Image,
    Message,
    Provenance,
    Replayed,
    Rollout,
    Score,
    Splice,
    StopReason,
    Tokens,
    ToolResult,
    Usage,
)

SOURCE = GroupSource("train", "rollout")
TASK = make_task("sum-1", "What is 2 + 2?", split="train")
OPENING = (Message("system", "Use the tool."), Message("user", "What is 2 + 2?"))

FIRST = Tokens((1, 2, 10, 11), (False, False, True, True), (None, None, -0.5, -0.25))
"""A prompt of two ids and a reply of two."""
SECOND = Tokens((3, 4, 12), (False, False, True), (None, None, -0.125))
"""A tool's result of two ids, and a reply of one."""


def make_sum(score: float | None, replicate: int, *, branch: bool = False, tokens: bool = True) -> Rollout:
    """A rollout that calls a tool and answers. With `branch`, the second prompt continues only the first prompt."""
    call = Call("c1", "add", '{"a": 2, "b": 2}')
    exact = (FIRST, SECOND) if tokens else (None, None)
    return make_rollout(
        score,
        make_turn("", ToolResult(call, "4", seconds=0.5), thinking="Hm.", tokens=exact[0]),
        make_turn(
            f"It is {4 if score else 5}.",
            stop=StopReason.FINISHED,
            tokens=exact[1],
            splice=Splice(0, 2) if branch else None,
        ),
        task=TASK,
        opening=OPENING,
        provenance=Provenance(policy="p" * 16, model="m", skill="s", replicate=replicate),
        seconds=2.0,
    )


def make_sums(*, branch: bool = False, tokens: bool = True) -> Group:
    """Three rollouts with scores 1, 0 and none."""
    rollouts = (make_sum(score, n, branch=branch and n == 0, tokens=tokens) for n, score in enumerate((1.0, 0.0, None)))
    return make_group(*rollouts, task=TASK)


def collect_sums(*, branch: bool = False, longest: bool = False) -> ExportedGroup:
    exported, _ = collect_rows(make_sums(branch=branch), SOURCE, branches="longest" if longest else "rows")
    assert exported is not None
    return exported


# ---- for viewers --------------------------------------------------------------------------------------------------

PNG = base64.b64decode(
    b"iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)
PICTURE = "images/" + "ab" * 16 + ".png"
"""The name of a picture in a run directory."""


def make_seen() -> list[Rollout]:
    """Rollouts with all that a viewer shows: thinking, parallel calls, errors, pictures, users, limits, failures."""
    look, bad = Call("c1", "look", '{"at": "a"}'), Call("c1", "look", "not json")
    said = Message("user", "And then?")
    task = make_task("scenes/one", "Look here.", split="test", kind="scene", answer="secret")
    origin = Provenance(policy="p", model="m", seed=3, tools=("look",), versions={"ludus": "0.2", "agent": "tiny@1.2"})
    opening = (
        Message("system", "You look."),
        Message("user", "An example."),
        Message("assistant", "", calls=(look,)),
        Message("tool", "a thing", call_id="c1"),
        Message("user", "Look here.", images=(Image(PICTURE, 4), Image("https://example.com/x.webp?y=1", 9))),
    )
    first = make_turn(
        "I look.",
        ToolResult(look, "seen", seconds=0.5, images=(PICTURE,)),
        ToolResult(bad, '{"error": "no"}', "The arguments are not valid JSON."),
        thinking="Hm.",
        model="m-2026",
        usage=Usage(100, 20, 60, 0.01),
        finish=Finish.CALLS,
        tokens=FIRST,
    )
    first = msgspec.structs.replace(first, seconds=2.0)
    second = msgspec.structs.replace(make_turn("", tokens=None), notices=(said,))
    last = make_turn("half a \ud83d", ToolResult(look, "seen"), stop=StopReason.MAX_TURNS)
    fields = {"task": task, "opening": opening, "seconds": 3.0}
    score = Score(0.5, False, 0.5, "Half.", {"style": 1.0}, ("it looks odd",))
    replayed = msgspec.structs.replace(origin, replicate=1, replayed=Replayed("/runs/first", "k" * 32, 1))
    broken = Failure("sandbox", "the slot is gone\nand more", retryable=False)
    failed = {"stop": StopReason.FAILED, "failure": broken, "provenance": msgspec.structs.replace(origin, replicate=2)}
    return [
        make_rollout(score, first, second, last, provenance=origin, stop=StopReason.MAX_TURNS, **fields),
        make_rollout(1.0, first, make_turn("Done.", stop=StopReason.FINISHED), provenance=replayed, **fields),
        make_rollout(None, task=task, **failed),
    ]


def write_run(path: str = "run") -> None:
    """A run with one rollout of each kind."""
    with (
        RunDir.open(Path(path), {"env": {"name": "scenes"}, "limits": {"turns": 3}}) as run,
        keep_info(run, "evaluate"),
    ):
        for number, rollout in enumerate(make_seen()):
            run.put(f"key{number}", rollout)
    (Path(path) / "images").mkdir()
    (Path(path) / PICTURE).write_bytes(PNG)
