"""A finished run whose models wrote markup into everything."""

from types import SimpleNamespace
from typing import Any

import pytest
from tests.reflact_kit import EVIL, REPORT_SETTINGS

from ludus.reflact.records import Record


def replies(world: SimpleNamespace, messages: Any) -> Any:
    """Helps, misplaces an edit, and writes markup into everything it can."""
    reply = world.optimizer(messages)
    if world.get_stage(messages).startswith("analyst"):
        reply["items"] = [*reply["items"][:1], world.edit(EVIL, "replace", target="no such text")]
        reply["reasoning"] = f"because {EVIL}"
        reply["patterns"][0]["name"] = EVIL
    if world.get_stage(messages) == "slow":
        reply["guidance"] = f"Keep to it. {EVIL}"
    return reply if world.get_stage(messages) != "meta" else EVIL


@pytest.fixture
def records(world: SimpleNamespace) -> list[Record]:
    return world.run(
        settings=REPORT_SETTINGS, optimizer=world.optimizer_model(lambda messages: replies(world, messages))
    )
