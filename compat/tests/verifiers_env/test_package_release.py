"""Errors of the model that environments of every release share."""

from typing import Any

import pytest

from ludus.compat.verifiers_env.package_release import find_model_error, list_numbers
from ludus.errors import BudgetExhausted, ModelError, ModelUnusable
from ludus.gateway.session import SessionRecord
from ludus.types import Failure


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"stop": "context"}, None),
        ({"stop": "budget"}, BudgetExhausted),
        ({"failure": Failure("model", "down")}, ModelError),
        ({"failure": Failure("model", "no key"), "stop": "unusable"}, ModelUnusable),
    ],
)
def test_why_a_rollout_does_not_count(fields: dict[str, Any], expected: type[Exception] | None):
    found = find_model_error(SessionRecord(name="s", model="m", **fields))
    assert type(found) is (expected or type(None))


def test_only_numbers_are_parts():
    assert list_numbers({"a": 1, "b": 0.5, "c": None, "d": "x", "e": True}) == {"a": 1.0, "b": 0.5, "e": 1.0}
