"""`ludus envs`."""

import json

from tests.cli_kit import (
    Ludus,
)


def test_environments_are_listed(ludus: Ludus):
    rows = {row["name"]: row for row in json.loads(ludus("envs", "--json").out)}
    assert rows["gsm8k"]["tasks"] == {"train": 8, "validation": 0, "test": 4}
    assert rows["orders"]["tasks"] == {"train": 24, "validation": 32, "test": 64}
    assert list(rows["gsm8k"]["options"]) == ["path"]
    assert rows["terminal-test"]["sandbox"] is True
    text = ludus("envs").out
    assert "--env.path" in text and "--env.version" not in text
