"""What an RL run takes, from an earlier run or from what is known without one."""

import json
from pathlib import Path

import pytest

from ludus.rl.rl_estimate import RolloutCost, estimate_cost, find_rollout_cost

CONFIG = {"env": {"name": "parcels"}, "agent": {"harness": ""}, "trainer": {"type": "grpo", "weights": "tiny"}}


def write_run(folder: Path, config: object, seconds: float = 50.0) -> None:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "summary.json").write_text(json.dumps({"rollouts": 80, "evaluated": 20, "seconds": seconds}))
    usage = {"prompt_tokens": 4000, "completion_tokens": 1000}
    (folder / "ledger.jsonl").write_text(json.dumps({"agent": {"calls": 150, "usage": usage}}) + "\n")


def test_a_rollout_costs_what_it_cost_in_a_run_of_the_same_policy(tmp_path: Path):
    assert find_rollout_cost(tmp_path, CONFIG) is None
    write_run(tmp_path / "other", {**CONFIG, "trainer": {"type": "grpo", "weights": "large"}})
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "summary.json").write_text("{")
    assert find_rollout_cost(tmp_path, CONFIG) is None
    write_run(tmp_path / "same", CONFIG)
    found = find_rollout_cost(tmp_path, CONFIG)
    assert found == RolloutCost(40.0, 10.0, 0.5, str(tmp_path / "same"))


@pytest.mark.parametrize(
    ("seconds", "hourly", "tokens", "dollars"),
    [
        (0.5, 7.2, None, 1.0),
        (0.5, 7.2, 10.0, 1.5),
        (None, 7.2, None, None),
        (None, 7.2, 10.0, 0.5),
        (0.5, None, None, None),
    ],
)
def test_money_is_known_where_a_price_and_what_it_is_for_are(
    seconds: float | None, hourly: float | None, tokens: float | None, dollars: float | None
):
    cost = estimate_cost({"train": 900, "evaluate": 100}, 90, RolloutCost(40.0, 10.0, seconds), hourly, tokens)
    assert (cost.prompt_tokens, cost.completion_tokens, cost.update_tokens) == (40_000, 10_000, 4500)
    assert cost.dollars == (None if dollars is None else pytest.approx(dollars))
    assert cost.seconds == (None if seconds is None else 500.0)
