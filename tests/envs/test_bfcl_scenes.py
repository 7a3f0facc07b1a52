"""The scenes of BFCL's conversations. Those of the package itself: tests/envs/test_bfcl_conversations.py."""

import importlib.util

import pytest

from ludus.envs.bfcl_scenes import _run_call, check_conversation, name_arguments, run_last_call


class Lamp:
    def __init__(self):
        self.is_on = False

    def switch(self, on):
        self.is_on = on
        return {"on": on}

    def describe(self):
        return {"lamp": self}

    def _break(self):
        raise AssertionError("private")


def test_calls_are_run_by_name_and_mistakes_are_results():
    lamp = Lamp()
    scene = {"Lamp": lamp}
    assert _run_call(scene, "switch", (), {"on": True}) == '{"on": true}'
    assert lamp.is_on
    assert _run_call(scene, "switch", (False,), {}) == '{"on": false}'
    assert "Lamp object" in _run_call(scene, "describe", (), {})
    for name in ("_break", "__init__", "is_on", "explode", "__class__"):
        assert _run_call(scene, name, (), {}) == f"Error during execution: name '{name}' is not defined"
    assert "unexpected keyword" in _run_call(scene, "switch", (), {"colour": "red"})


def test_right_calls_are_read_without_being_evaluated():
    assert name_arguments("sort('a.txt')", ["file_name"]) == ("sort", {"file_name": "a.txt"})
    assert name_arguments("f(1, b=[-2, {'c': None}])", ["a", "b"]) == ("f", {"a": 1, "b": [-2, {"c": None}]})
    with pytest.raises(ValueError):
        name_arguments("f(__import__('os'))", ["a"])


SCENE = {"id": "multi_turn_base_x", "classes": ["MathAPI", "TicketAPI"], "long_context": False}
CONFIG = {"TicketAPI": {"ticket_queue": [], "ticket_counter": 1, "current_user": "Ana"}}


@pytest.mark.skipif(importlib.util.find_spec("bfcl_eval") is None, reason="bfcl-eval is not installed (make test-envs)")
def test_the_state_decides_and_not_the_order_or_extra_looks():
    scene = {**SCENE, "config": CONFIG}
    make = ("create_ticket", {"title": "Broken", "description": "It is broken.", "priority": 2})
    assert '"id": 1' in run_last_call(scene, [make])
    assert "Ticket 1" in run_last_call(scene, [make, ("close_ticket", {"ticket_id": 1})])
    gold = [["create_ticket('Broken', 'It is broken.', 2)"], ["close_ticket(ticket_id=1)"]]
    close = ("close_ticket", {"ticket_id": 1})
    look = ("get_ticket", {"ticket_id": 1})
    assert check_conversation(scene, [[[make]], [[look], [close]]], gold) == (2, "")
    assert check_conversation(scene, [[[make, close]], [[look]]], gold)[0] == 0
    done, problem = check_conversation(scene, [[[make]], []], gold)
    assert done == 1 and "empty for turn 1" in problem
