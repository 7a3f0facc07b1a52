import json

import pytest

from ludus.errors import (
    BUG,
    LONGEST,
    TRACEBACK,
    BudgetExhausted,
    ModelError,
    SandboxError,
    VerifierError,
    boundary,
    comes_from_user,
    describe_bug,
    raise_first,
    suggest,
)
from ludus.types import Failure


def test_a_boundary_names_what_foreign_code_raised():
    says = "verify of task 7: ZeroDivisionError: division by zero"
    with pytest.raises(VerifierError, match=says) as caught, boundary(VerifierError, "verify of task 7"):
        _ = 1 / 0
    assert caught.value.as_failure() == Failure("verifier", str(caught.value), True)


def test_a_boundary_tells_the_line_of_the_users_code_and_not_of_libraries():
    says = r"set-up: JSONDecodeError: Expecting value.* \(test_errors\.py, line \d+\)$"
    with pytest.raises(VerifierError, match=says), boundary(VerifierError, "set-up"):
        json.loads("nothing")


def test_a_boundary_keeps_the_beginning_of_an_endless_text():
    with pytest.raises(VerifierError) as caught, boundary(VerifierError, "verify"):
        raise ValueError("x" * 1_000_000)
    assert len(str(caught.value)) < 2_200
    assert "xxx… (test_errors.py, line " in str(caught.value)


def test_a_boundary_names_a_time_out_whose_own_text_is_empty():
    with pytest.raises(VerifierError, match="verify: timed out"), boundary(VerifierError, "verify"):
        raise TimeoutError


@pytest.mark.parametrize("error", [SandboxError("slot gone"), BudgetExhausted("spent"), ModelError("no")])
def test_a_boundary_leaves_our_own_errors_as_they_are(error: Exception):
    with pytest.raises(type(error)) as caught, boundary(VerifierError, "verify"):
        raise error
    assert caught.value is error


def test_suggest():
    assert suggest("group_sise", ["group_size", "split"]) == "did you mean 'group_size'?"
    assert suggest("zzz", ["split", "limit"]) == "known: limit, split"
    assert suggest("zzz", []) == "known: none"


def test_the_first_error_is_raised_in_place_of_its_groups_and_keeps_its_cause():
    cause = OSError("no disk")
    error = KeyError("deep")
    error.__cause__ = cause
    with pytest.raises(KeyError) as caught, raise_first():
        raise ExceptionGroup("outer", [ExceptionGroup("inner", [error]), ValueError("second")])
    assert caught.value is error and error.__cause__ is cause
    with pytest.raises(ValueError, match="alone"), raise_first():
        raise ValueError("alone")


def test_a_bug_is_described_with_the_end_of_its_traceback():
    def recurse() -> None:
        recurse()

    for work, name in ((recurse, "RecursionError"), (lambda: int("x" * 9_000), "ValueError")):
        try:
            work()
        except Exception as error:
            failure = describe_bug(error)
            assert failure.boundary == BUG and not failure.retryable
            first, mark, rest = failure.message.partition(TRACEBACK)
            assert first.startswith(name) and mark and "line" in rest
            assert len(failure.message) < 3 * LONGEST + 200


def test_an_exception_of_a_users_file_is_told_from_one_of_ludus():
    def fail() -> None:
        raise ValueError

    with pytest.raises(ValueError) as own:
        fail()
    assert comes_from_user(own.value), "a test is the user's own code"
    try:
        json.loads("{")
    except ValueError as error:
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
        assert not comes_from_user(error)
