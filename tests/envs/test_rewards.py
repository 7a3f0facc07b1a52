import pytest

from ludus.envs.rewards import read_reward
from ludus.errors import VerifierError


@pytest.mark.parametrize(
    ("text", "value", "passed"),
    [
        ("1", 1.0, True),
        ("1\n", 1.0, True),
        (" 0.857 \n", 0.857, False),
        ("0", 0.0, False),
        ("true", 1.0, True),
        ('{"reward": 0.5, "style": 1}', 0.5, False),
        ('{"a": 1, "b": 0}', 0.5, False),
        ('{"a": 1, "b": 1.0}', 1.0, True),
    ],
)
def test_rewards(text: str, value: float, passed: bool):
    score = read_reward(text)
    assert (score.value, score.passed) == (value, passed)


def test_named_rewards_are_parts():
    assert read_reward('{"reward": 0.5, "style": 1}').parts == {"reward": 0.5, "style": 1.0}


@pytest.mark.parametrize(
    "text", ["", "pass", "nan", "1e999", "[1]", "{}", '{"a": "x"}', '{"a": null}', "null", "[" * 99]
)
def test_what_is_no_reward(text: str):
    with pytest.raises(VerifierError, match="the reward is"):
        read_reward(text)
