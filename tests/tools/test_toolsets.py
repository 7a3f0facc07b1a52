import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.errors import ConfigError
from ludus.sandbox import Sandbox
from ludus.tools import Tool
from ludus.tools.toolsets import BUILTIN, Registry, Toolset, choose_toolsets, make_tools
from ludus.types import ToolSpec


def leaf(name: str, *tools: str, needs_box: bool = False) -> Toolset:
    async def run(_: object) -> str:
        return name

    def make(_: Sandbox | None) -> list[Tool]:
        return [Tool(ToolSpec(tool, "", {}), run) for tool in tools or (name,)]

    return Toolset(name, "", make, needs_box=needs_box)


def composite(name: str, *includes: str) -> Toolset:
    return Toolset(name, "", includes=includes)


def names(tools: list[Tool]) -> list[str]:
    return [tool.name for tool in tools]


def test_the_built_in_leaves_have_the_tools_they_promise():
    box: Sandbox = object()  # pyright: ignore[reportAssignmentType]  # making tools touches no slot
    assert names(make_tools(["terminal"], box)) == ["terminal", "process"]
    assert names(make_tools(["file"], box)) == ["read_file", "write_file", "patch", "search_files"]
    assert names(make_tools(["todo", "code"], box)) == ["todo", "run_python"]
    assert names(make_tools(["coding", "file", "terminal"], box)) == [
        *("terminal", "process", "read_file", "write_file", "patch", "search_files", "run_python")
    ]
    parallel = {tool.name for tool in make_tools(["coding", "todo"], box) if tool.parallel}
    assert parallel == {"read_file", "search_files"}


def test_includes_are_followed_once_through_cycles_and_diamonds():
    registry = Registry(
        (
            composite("top", "left", "right"),
            composite("left", "base", "top"),
            composite("right", "base", "extra"),
            leaf("base"),
            leaf("extra"),
            composite("self", "self", "base"),
        )
    )
    assert names(registry.make_tools(["top"], None)) == ["base", "extra"]
    assert names(registry.make_tools(["right", "extra", "top", "right"], None)) == ["base", "extra"]
    assert names(registry.make_tools(["self"], None)) == ["base"]


@given(st.dictionaries(st.sampled_from("abcdef"), st.lists(st.sampled_from("abcdefxyz"), min_size=1)), st.data())
def test_any_graph_of_includes_ends_and_gives_every_leaf_once(graph: dict[str, list[str]], data: st.DataObject):
    toolsets = [composite(name, *includes) for name, includes in graph.items()]
    missing = {i for includes in graph.values() for i in includes} - graph.keys()
    registry = Registry((*toolsets, *(leaf(name) for name in sorted(missing))))
    wanted = data.draw(st.lists(st.sampled_from(registry.names))) if registry.names else []
    found = names(registry.make_tools(wanted, None))
    assert len(set(found)) == len(found)
    assert found == [name for name in found if name in missing]
    assert {name for name in wanted if name in missing} <= set(found)


def test_no_names_no_tools():
    assert make_tools([], None) == []


def test_an_unknown_name_is_an_error_with_a_suggestion():
    with pytest.raises(ConfigError, match=r"unknown toolset 'terminl'; did you mean 'terminal'\?"):
        make_tools(["terminl"], None)
    with pytest.raises(ConfigError, match=r"unknown toolset 'zzz'; known: .*terminal"):
        choose_toolsets(["zzz"])
    with pytest.raises(ConfigError, match="did you mean 'file'"):
        choose_toolsets(None, ["fil"])


def test_a_toolset_that_needs_a_slot_is_refused_without_one():
    with pytest.raises(ConfigError, match=r"'file' works in a sandbox.*leave 'file' out.*`sandbox`"):
        make_tools(["todo", "file"], None)


def test_a_toolset_that_lacks_its_configuration_names_the_setting():
    with pytest.raises(ConfigError, match=r"toolset 'search' cannot be used.*tools\.web\.provider"):
        make_tools(["web"], None)
    assert "tools.web.provider" in BUILTIN.find_missing("debugging")
    assert BUILTIN.find_missing("coding") == ""


def test_a_registry_is_extended_without_changing_it():
    more = BUILTIN.extend(leaf("search", "web_search"), leaf("extract", "web_extract"), leaf("weather"))
    assert names(more.make_tools(["web", "weather"], None)) == ["web_search", "web_extract", "weather"]
    assert "weather" not in BUILTIN
    assert BUILTIN.find_missing("web")
    with pytest.raises(ConfigError, match="two toolsets are called 'terminal'"):
        BUILTIN.extend(leaf("terminal"))


def test_two_toolsets_with_a_tool_of_one_name_do_not_hide_each_other():
    registry = Registry((leaf("one", "look"), leaf("two", "look")))
    with pytest.raises(ConfigError, match="two of the chosen toolsets have a tool 'look'; leave 'two' out"):
        registry.make_tools(["one", "two"], None)


@pytest.mark.parametrize(
    ("enabled", "disabled", "default", "chosen"),
    [
        (None, [], ["file"], ("file",)),
        (None, [], [], ()),
        ([], [], ["file"], ()),
        (["todo"], [], ["file"], ("todo",)),
        (["coding"], [], [], ("terminal", "file", "code")),
        (["coding"], ["file"], [], ("terminal", "code")),
        (["coding", "todo"], ["coding"], [], ("todo",)),
        (None, ["debugging"], ["coding", "todo"], ("code", "todo")),
        (["file", "coding", "file"], [], [], ("file", "terminal", "code")),
        (["web"], ["search"], [], ("extract",)),
    ],
)
def test_choosing(enabled: list[str] | None, disabled: list[str], default: list[str], chosen: tuple[str, ...]):
    assert choose_toolsets(enabled, disabled, default) == chosen


def test_a_toolset_is_one_thing():
    with pytest.raises(ValueError, match="exactly one of make, includes and missing"):
        Toolset("nothing", "")
    with pytest.raises(ValueError, match="exactly one"):
        Toolset("both", "", leaf("x").make, includes=("y",))
