"""Groups for tests of exporters: with exact tokens, tool calls, a branch and a failure."""

from tests.build import make_group, make_rollout, make_task, make_turn

from ludus.rl.exporters import ExportedGroup, GroupSource, collect_rows
from ludus.types import Call, Group, Message, Provenance, Rollout, Splice, StopReason, Tokens, ToolResult

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
