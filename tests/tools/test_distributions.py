import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.errors import ConfigError
from ludus.sandbox import Sandbox
from ludus.tools import Tool
from ludus.tools.distributions import PUBLISHED, Distribution, ToolsetSample, find_distribution, sample_toolsets
from ludus.tools.toolsets import BUILTIN, Registry, Toolset


def nothing(_: Sandbox | None) -> list[Tool]:
    return []


def registry_of(*names: str) -> Registry:
    return Registry(tuple(Toolset(name, "", nothing) for name in names))


ABC = registry_of("a", "b", "c", "d")
percents = st.dictionaries(st.sampled_from("abcdxy"), st.floats(0, 100), min_size=1)
seeds = st.integers(0, 2**63)


@given(percents, seeds)
def test_a_draw_is_never_empty_and_never_invents(percent: dict[str, float], seed: int):
    usable = {name: p for name, p in percent.items() if name in ABC and p > 0}
    if not any(percent.values()) or not usable:
        with pytest.raises(ConfigError):
            sample_toolsets(Distribution("mine", tuple(percent.items())), seed, ABC)
        return
    result = sample_toolsets(Distribution("mine", tuple(percent.items())), seed, ABC)
    assert result.toolsets
    assert list(result.toolsets) == [name for name in percent if name in result.toolsets]
    assert set(result.toolsets) <= set(usable)
    assert result.skipped == tuple(name for name in percent if name not in ABC)
    assert {name for name, p in usable.items() if p == 100} <= set(result.toolsets)


@given(percents.filter(lambda p: any(v for k, v in p.items() if k in "abcd")), seeds)
def test_a_seed_decides_and_a_missing_toolset_does_not_shift_the_others(percent: dict[str, float], seed: int):
    distribution = Distribution("mine", (*percent.items(), ("z", 100)))
    first = sample_toolsets(distribution, seed, ABC)
    assert first == sample_toolsets(distribution, seed, ABC)
    more = sample_toolsets(distribution, seed, registry_of(*"abcdxyz"))
    if len(first.toolsets) > 1:  # a single one may be the stand-in for an empty sample
        assert first.toolsets == tuple(name for name in more.toolsets if name in ABC)


def test_frequencies_are_the_percentages():
    distribution = Distribution("mine", (("a", 100), ("b", 80), ("c", 30), ("d", 2.5)))
    samples = [sample_toolsets(distribution, seed, ABC).toolsets for seed in range(4000)]
    for name, percent in distribution.percent:
        share = sum(name in sampled for sampled in samples) / len(samples) * 100
        assert abs(share - percent) < 2.5  # the seeds are fixed, so is this
    both = sum("b" in sampled and "c" in sampled for sampled in samples) / len(samples) * 100
    assert abs(both - 24) < 2.5


def test_an_empty_draw_is_the_most_likely_toolset_and_the_first_of_equals():
    distribution = Distribution("mine", (("a", 0), ("b", 0.001), ("c", 0.001)))
    assert {sample_toolsets(distribution, seed, ABC).toolsets for seed in range(50)} == {("b",)}


def test_published_distributions_are_drawn_from_what_there_is():
    assert len(PUBLISHED) == 17
    assert sample_toolsets(PUBLISHED["terminal_only"], 1) == ToolsetSample(("terminal", "file"))
    assert sample_toolsets(PUBLISHED["default"], 1) == ToolsetSample(
        ("terminal", "file"), ("web", "vision", "image_gen", "moa", "browser")
    )
    assert PUBLISHED["creative"].percent == (("image_gen", 90), ("vision", 90), ("web", 30))
    seen = {sample_toolsets(PUBLISHED["development"], seed).toolsets for seed in range(100)}
    assert seen == {("terminal",), ("file",), ("terminal", "file")}


def test_a_distribution_of_nothing_that_there_is():
    with pytest.raises(ConfigError, match=r"'browser_only': this run has none of its toolsets \(browser\)"):
        sample_toolsets(PUBLISHED["browser_only"], 1)


def test_a_configured_provider_makes_web_part_of_the_draw():
    registry = BUILTIN.extend(Toolset("search", "", nothing), Toolset("extract", "", nothing))
    assert sample_toolsets(PUBLISHED["minimal"], 1, registry) == ToolsetSample(("web",))


def test_disabled_toolsets_are_left_out_before_the_draw():
    assert sample_toolsets(PUBLISHED["terminal_only"], 1, BUILTIN, ["file"]).toolsets == ("terminal",)
    assert sample_toolsets(PUBLISHED["terminal_only"], 1, BUILTIN, ["file"]).skipped == ("file",)
    half = Distribution("mine", (("coding", 100),))
    assert sample_toolsets(half, 1, BUILTIN, ["file"]).toolsets == ("coding",)  # `choose` then takes the file tools out
    with pytest.raises(ConfigError, match="none of its toolsets"):
        sample_toolsets(half, 1, BUILTIN, ["terminal", "file", "code"])


def test_finding_one_by_name():
    own = {"mine": {"file": 50.0, "todo": 10.0}}
    assert find_distribution("mine", own) == Distribution("mine", (("file", 50.0), ("todo", 10.0)))
    assert find_distribution("balanced", own) is PUBLISHED["balanced"]
    with pytest.raises(ConfigError, match=r"unknown distribution 'balancd'; did you mean 'balanced'\?"):
        find_distribution("balancd", own)
    with pytest.raises(ConfigError, match=r"unknown toolset 'fil'; did you mean 'file'\?"):
        find_distribution("mine", {"mine": {"fil": 50}})


@pytest.mark.parametrize("percent", [-1, 100.5, float("nan"), float("inf")])
def test_a_percentage_is_within_0_and_100(percent: float):
    with pytest.raises(ConfigError, match="give a percentage of 0 to 100"):
        Distribution("mine", (("file", percent),))


def test_something_must_be_possible():
    with pytest.raises(ConfigError, match="every toolset is at 0 percent"):
        Distribution("mine", (("file", 0),))
