"""What files find in the modules of Hermes."""

import pytest

pytest.importorskip("pydantic")

from ludus.compat.atropos_env.call_journal import SCOPE, CallScope
from ludus.compat.hermes_env.modules import get_parser, list_distributions, sample_toolsets_from_distribution


def test_an_unknown_parser_is_a_key_error():
    assert get_parser("mistral").parse("hello") == ("hello", None)
    with pytest.raises(KeyError, match="no_such_parser"):
        get_parser("no_such_parser")


def test_a_distribution_is_sampled_with_the_seed_of_the_group():
    def sample(seed: int) -> list[list[str]]:
        SCOPE.set(CallScope("group/0", seed))
        return [sample_toolsets_from_distribution("balanced") for _ in range(8)]

    assert sample(1) == sample(1) != sample(2)
    assert len({tuple(each) for each in sample(1)}) > 1 and all(sample(1))
    assert sample_toolsets_from_distribution("terminal_only") == ["terminal", "file"]
    with pytest.raises(ValueError, match="Unknown distribution: none"):
        sample_toolsets_from_distribution("none")
    assert list_distributions()["minimal"]["toolsets"] == {"web": 100}
