"""The definitions of the tools that rollouts were offered."""

from tests.build import make_rollout

from ludus.rl.exporters.tool_list import ToolDefinitions
from ludus.types import Provenance, ToolSpec

LOOK = ToolSpec("look", "Look around.", {"type": "object", "properties": {}})


def test_known_tools_are_found_in_their_order_and_unknown_ones_are_named_once():
    tools = ToolDefinitions({"look": LOOK}, None, "the file is gone")
    rollout = make_rollout(1.0, provenance=Provenance(policy="p", model="m", tools=("jump", "look")))
    assert tools.describe_unknown() == ""
    assert tools.find(rollout) == [LOOK] == tools.find(rollout)
    assert tools.describe_unknown() == (
        "the run's settings do not give the definitions of these tools: jump (the file is gone)"
    )
