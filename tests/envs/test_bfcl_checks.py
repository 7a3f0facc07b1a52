"""The checkers of bfcl-eval, called as the environment calls them."""

import pytest

from ludus.envs.bfcl_checks import check_calls


def test_right_and_wrong_calls():
    pytest.importorskip("bfcl_eval")
    functions = [
        {
            "name": "math.factorial",
            "description": "n!",
            "parameters": {"type": "dict", "properties": {"number": {"type": "integer"}}, "required": ["number"]},
        }
    ]
    wanted = [{"math.factorial": {"number": [5]}}]
    assert check_calls("simple_python", functions, [{"math_factorial": {"number": 5}}], wanted) == ""
    assert check_calls("simple_python", functions, [{"math_factorial": {"number": 6}}], wanted)
    assert check_calls("simple_python", functions, [], wanted)
    assert check_calls("simple_python", functions, [{}], wanted) == "a call has one name"
