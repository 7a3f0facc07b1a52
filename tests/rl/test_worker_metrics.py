"""The metrics of a worker."""

import pytest
from tests.build import make_group, make_rollout, make_task, make_token_rollout, make_turn

from ludus.rl.group_filters import GroupRules, KeptGroup, filter_group
from ludus.rl.worker_metrics import WorkerMetrics, format_rollout
from ludus.trackers import Table
from ludus.types import Call, Message, Tokens, ToolResult


def make_kept(*counts: int) -> KeptGroup:
    rollouts = [
        make_token_rollout(
            Tokens((1, *range(2, 2 + n)), (False, *(True,) * n), (None, *(-0.1,) * n)), score=float(i), replicate=i
        )
        for i, n in enumerate(counts)
    ]
    kept = filter_group(make_group(*rollouts), GroupRules())
    assert isinstance(kept, KeptGroup)
    return kept


def test_lengths_rewards_and_counts():
    metrics = WorkerMetrics(shown=2)
    kept = make_kept(2, 6)
    metrics.add_group(kept.group, 2.0)
    metrics.add_kept(kept)
    metrics.add_sent(lag=3)
    metrics.add_rejected("equal_scores")
    values = metrics.take(row_tokens=7)
    assert values["train/completion_lengths"] == 4.0
    assert (values["train/completion_lengths_min"], values["train/completion_lengths_max"]) == (2, 6)
    assert values["train/completion_lengths_std"] == 2.0
    assert values["train/completion_lengths_p95"] == 0.5  # one of two rows has more than 95 % of seven ids
    assert (values["train/reward"], values["train/reward_std"]) == (0.5, 0.5)
    assert (values["train/items_sent_to_api"], values["train/items_rejected"]) == (1, 1)
    assert values["train/rejected_equal_scores"] == 1 and values["train/policy_lag"] == 3
    assert values["train_perf/succeeded_task_duration_mean"] == 2.0
    empty = metrics.take(row_tokens=7)
    assert empty["train/items_sent_to_api"] == 0 and "train/reward" not in empty  # no mean of nothing


def test_failed_groups_have_their_own_duration_and_no_reward():
    metrics = WorkerMetrics(shown=2)
    metrics.add_group(make_group(None, None), 1.5)
    values = metrics.take(None)
    assert values["train_perf/failed_task_duration_max"] == 1.5
    assert "train_perf/succeeded_task_duration_max" not in values and "train/reward" not in values


def test_tool_errors_are_counted_and_listed():
    bad = ToolResult(Call("1", "calc", "x" * 300), "no", error="bad arguments")
    good = ToolResult(Call("2", "calc", "{}"), "4")
    rollout = make_rollout(0.0, make_turn("", bad, good), make_turn("", good), task=make_task("sum"))
    metrics = WorkerMetrics(shown=2)
    metrics.add_group(make_group(rollout), 1.0)
    values = metrics.take(None)
    assert values["train/tool_errors_count"] == 1
    assert values["train/tool_error_rate"] == pytest.approx(1 / 3)
    table = values["train/tool_error_details"]
    assert isinstance(table, Table)
    assert table.columns == ("task", "turn", "tool", "arguments", "error")
    assert table.rows == (("sum", 1, "calc", "x" * 200 + "…", "bad arguments"),)


def test_only_so_many_rollouts_are_shown():
    metrics = WorkerMetrics(shown=1)
    for _ in range(3):
        metrics.add_kept(make_kept(1, 1))
    table = metrics.take(None)["train/rollouts"]
    assert isinstance(table, Table) and len(table.rows) == 1 and table.rows[0][1] == 1.0  # the best of its group


def test_a_readable_rollout_has_roles_and_short_parts():
    result = ToolResult(Call("1", "ls", '{"path": "/"}'), "y" * 900)
    rollout = make_rollout(
        1.0,
        make_turn("Look.", result, thinking="z" * 400),
        make_turn("Done."),
        opening=(Message("system", "Be brief."), Message("user", "List files.")),
    )
    assert format_rollout(rollout).splitlines() == [
        "[system] Be brief.",
        "[user] List files.",
        f"[assistant thinking] {'z' * 300}…",
        "[assistant] Look.",
        '[assistant calls ls] {"path": "/"}',
        f"[tool] {'y' * 500}…",
        "[assistant] Done.",
    ]


def test_a_source_that_counts_its_tool_errors_itself_is_not_contradicted():
    values = WorkerMetrics(shown=1, counts_tools=False).take(None)
    assert not any(name.startswith("train/tool_error") for name in values)
