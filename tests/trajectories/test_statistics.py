"""The numbers of a batch."""

from tests.build import make_rollout, make_turn

from ludus.stats import ToolUse
from ludus.trajectories.statistics import ReasoningCount, StatisticsCounter
from ludus.types import Call, Provenance, ToolResult


def test_tools_thinking_and_failures_are_counted():
    offered = Provenance(policy="p", model="m", tools=("terminal", "todo"), toolsets=("a", "b"))
    good, bad = ToolResult(Call("1", "terminal", "{}"), "x"), ToolResult(Call("2", "rm", "{}"), "x", "unknown tool")
    counter = StatisticsCounter()
    counter.add(make_rollout(1.0, make_turn("", good, good, bad, thinking="hm"), "done", provenance=offered))
    counter.add(make_rollout(0.0, "no", provenance=offered))
    counter.add(make_rollout(None))
    assert counter.list_tools() == (ToolUse("terminal", 2, 0), ToolUse("rm", 1, 1), ToolUse("todo", 0, 0))
    assert counter.reasoning == ReasoningCount(turns=3, with_reasoning=1, rollouts_without=1)
    assert counter.reasoning.share == 1 / 3
    assert (counter.rollouts, counter.checked, counter.passed, counter.total) == (3, 2, 1, 1.0)
    assert (counter.failures, counter.toolsets) == ({"sandbox": 1}, {"a": 2, "b": 2})
    assert counter.stops == {"finished": 2, "failed": 1}
    assert ReasoningCount().share is None
