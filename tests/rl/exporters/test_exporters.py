"""Which rows are exported, and what they say about themselves."""

import pytest
from tests.build import make_group
from tests.export_kit import SOURCE, collect_sums, make_sum, make_sums

from ludus.rl.exporters import collect_rows, describe_source
from ludus.rl.rows import NotExact


def test_rows_say_where_they_come_from():
    exported = collect_sums()
    assert [exported.describe(member) for member in exported.members] == [
        {
            "reward": score,
            "advantage": advantage,
            "task": "sum-1",
            "split": "train",
            "stage": "rollout",
            "policy": "p" * 16,
            "skill": "s",
            "replicate": replicate,
        }
        for replicate, (score, advantage) in enumerate([(1.0, 1.0), (0.0, -1.0)])
    ]
    assert describe_source(make_sum(1.0, 0), SOURCE).keys() == {"task", "split", "stage", "policy", "skill"}


def test_a_branched_rollout_counts_once_and_may_have_one_row():
    exported = collect_sums(branch=True)
    assert [(member.replicate, len(member.tokens)) for member in exported.members] == [(0, 4), (0, 5), (1, 7)]
    assert exported.advantages == {0: 1.0, 1: -1.0}
    assert [len(member.tokens) for member in collect_sums(branch=True, longest=True).members] == [4, 7]


def test_chat_mode_is_refused_and_a_group_without_scores_has_no_rows():
    with pytest.raises(NotExact):
        collect_rows(make_sums(tokens=False), SOURCE)
    exported, report = collect_rows(make_group(make_sum(None, 0)), SOURCE)
    assert exported is None and not report.fatal
