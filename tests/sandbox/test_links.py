"""Which links lead out of a folder, read as text and followed through other links."""

import pytest

from ludus.sandbox.links import find_leading_into, find_outward


@pytest.mark.parametrize(
    "links",
    [
        {"a": "/etc/passwd"},
        {"a": "/"},
        {"a": ".."},
        {"d/a": "../../x"},
        {"a": "/workspacex"},
        {"a": "/workspace/../tmp"},
        {"a": "/proc/self/root/workspace/x"},
        {"a": "../workspace/x"},
        {"a": "d/../../x"},
        {"b": ".", "a": "b/../x"},
        {"b": "/workspace", "a": "b/../x"},
        {"b/c": "/workspace", "a": "b/c/../tmp"},
        {"b": "c/d", "a": "b/../../../x"},
        {"b": "/tmp", "a": "b"},
        {"c": "/tmp", "b": "c/x", "a": "b/y"},
        {"b": "a/../../x", "a": "b"},
        {f"l{i}": f"l{i - 1}" for i in range(1, 90)} | {"l0": "/tmp", "a": "l89/x"},
    ],
)
def test_links_that_lead_out_are_found(links: dict[str, str]):
    assert list(links)[-1] in find_outward(links, "/workspace")


@pytest.mark.parametrize(
    "links",
    [
        {"a": "b"},
        {"a": "nothing/here"},
        {"a": "/workspace"},
        {"a": "/workspace/b/../c"},
        {"a": "//workspace/./b"},
        {"d/e/a": "../../x"},
        {"a": "d/../x"},
        {"a": "a"},
        {"a": "b", "b": "a/x"},
        {"b": "c/d", "a": "b/../x"},
        {"a": "..x/..."},
        {"a": ""},
    ],
)
def test_links_that_stay_inside_are_kept(links: dict[str, str]):
    assert find_outward(links, "/workspace") == frozenset()


def test_hostile_links_cost_little():
    doubling = {"l0": "."} | {f"l{i}": f"l{i - 1}/l{i - 1}/l{i - 1}" for i in range(1, 150)}
    chain = {f"c{i:06}": f"c{i + 1:06}" for i in range(50_000)}
    assert find_outward(doubling, "/workspace") == frozenset()  # not in 3 ** 150 steps
    assert "c000000" in find_outward(chain, "/workspace")  # longer than any that the kernel follows


def test_links_of_a_root_that_lead_into_a_folder():
    links = {
        "app/a": "/tests/x",
        "app/b": "../tests",
        "app/c": "/usr/bin/python3",
        "app/d": "b/x",
        "home/e": "/app/c",
        "logs": "/app",
        "app/f": "/testsuite/x",
        "app/g": "../../../x",
    }
    assert find_leading_into(links, ("tests",)) == {"app/a", "app/b", "app/d", "app/g"}
