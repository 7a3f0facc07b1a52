"""The table of built-in gate rules, and what takes its names from it."""

from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from ludus.config.build_training import build_rule
from ludus.config.references import GATE
from ludus.errors import ConfigError
from ludus.reflact.gate import Gate, judge
from ludus.reflact.gate_rules import RULES, find_rule
from ludus.reflact.train_settings import TrainSettings


def test_the_settings_know_exactly_the_rules_of_the_table():
    assert GATE.builtin.keys() == RULES.keys() == {"mean", "curtailed", "sequential"}
    for name in RULES:
        built, found = build_rule(TrainSettings(gate=Gate(rule=name))), find_rule(name)
        assert built is found or type(built) is type(found)


def test_no_name_is_no_rule_and_a_wrong_one_is_an_error():
    assert find_rule("mean") is judge and find_rule("") is None
    with pytest.raises(ConfigError, match="did you mean 'sequential'"):
        find_rule("sequentiel")


def test_a_run_does_not_begin_with_a_rule_that_nobody_knows(world: SimpleNamespace):
    settings = replace(world.SETTINGS, gate=Gate(rule="my_rule.py"))
    with pytest.raises(ConfigError, match=r"train.gate.rule: unknown gate rule 'my_rule.py'.*pass it as `rule`"):
        world.run(settings=settings)
    assert world.run(settings=settings, rule=judge)
