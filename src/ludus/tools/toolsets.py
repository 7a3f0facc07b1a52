"""Toolsets: named groups of tools, the registry that lists them, and which ones a run uses.

A `Toolset` is a name for some tools and a function that makes them for one rollout, or a name for other toolsets. A
`Registry` is a fixed list of toolsets. `BUILTIN` has those that need no configuration; a run that has more (a search
provider, MCP servers) makes its own with `extend`. There is no process-wide registry: two runs in one process are
independent.

Every built-in tool belongs to exactly one leaf toolset. Composites only include others, each at most once. `make_tools`
keeps the order of the names. An unknown name, a toolset without its configuration, and one that needs a slot where
there is none are `ConfigError`s: tools are never left out silently.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ludus.errors import ConfigError, suggest
from ludus.sandbox import Sandbox
from ludus.tools import Tool
from ludus.tools.files import file_tools
from ludus.tools.python import python_tools
from ludus.tools.terminal import terminal_tools
from ludus.tools.todo import todo_tools

Make = Callable[[Sandbox | None], Sequence[Tool]]


@dataclass(frozen=True)
class Toolset:
    """A leaf, which makes tools, or a composite, which includes other toolsets."""

    name: str
    description: str
    make: Make | None = None
    """Makes the tools for one rollout. They act in its slot and share no state with other rollouts."""
    needs_box: bool = False
    includes: tuple[str, ...] = ()
    missing: str = ""
    """What must be configured before it can be used; empty if it can be used."""

    def __post_init__(self) -> None:
        if bool(self.make) + bool(self.includes) + bool(self.missing) != 1:
            raise ValueError(f"toolset '{self.name}': give it exactly one of make, includes and missing")


@dataclass(frozen=True)
class Registry:
    """The toolsets of a run, in order."""

    toolsets: tuple[Toolset, ...]

    def __post_init__(self) -> None:
        names = self.names
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(f"tools: two toolsets are called '{twice[0]}'; rename one of them")

    @property
    def names(self) -> list[str]:
        return [toolset.name for toolset in self.toolsets]

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def get(self, name: str) -> Toolset:
        for toolset in self.toolsets:
            if toolset.name == name:
                return toolset
        raise ConfigError(f"toolsets: unknown toolset '{name}'; {suggest(name, self.names)}")

    def extend(self, *toolsets: Toolset) -> "Registry":
        """A new registry with more toolsets. A new one replaces a toolset of its name that lacks its configuration."""
        new = {toolset.name for toolset in toolsets}
        kept = (toolset for toolset in self.toolsets if not (toolset.missing and toolset.name in new))
        return Registry((*kept, *toolsets))

    def list_leaves(self, names: Iterable[str]) -> tuple[Toolset, ...]:
        """The leaf toolsets of the names and their includes, each once, in the order in which they are reached."""
        found: dict[str, Toolset] = {}
        visited: set[str] = set()

        def visit(name: str) -> None:
            if name in visited:
                return
            visited.add(name)
            toolset = self.get(name)
            if not toolset.includes:
                found[name] = toolset
            for included in toolset.includes:
                visit(included)

        for name in names:
            visit(name)
        return tuple(found.values())

    def find_missing(self, name: str) -> str:
        """What must be configured before this toolset and its includes can be used; empty if nothing."""
        return next((leaf.missing for leaf in self.list_leaves([name]) if leaf.missing), "")

    def require_usable(self, names: Iterable[str], *, slot: bool) -> tuple[Toolset, ...]:
        """The leaf toolsets of the names. Raises ConfigError if one cannot be used."""
        leaves = self.list_leaves(names)
        for leaf in leaves:
            if leaf.missing:
                raise ConfigError(f"toolset '{leaf.name}' cannot be used: {leaf.missing}")
            if leaf.needs_box and not slot:
                raise ConfigError(
                    f"toolset '{leaf.name}' works in a sandbox, and this environment has none; "
                    f"leave '{leaf.name}' out of toolsets, or give the environment a `sandbox`"
                )
        return leaves

    def make_tools(self, names: Iterable[str], box: Sandbox | None) -> list[Tool]:
        """The tools of the named toolsets for one rollout, in the order of the names."""
        tools: dict[str, Tool] = {}
        for leaf in self.require_usable(names, slot=box is not None):
            for tool in leaf.make(box) if leaf.make else ():
                if tool.name in tools:
                    raise ConfigError(f"two of the chosen toolsets have a tool '{tool.name}'; leave '{leaf.name}' out")
                tools[tool.name] = tool
        return list(tools.values())


_OWN = "Ludus has no tool for it; register one of your own in tools.own, as in --tools.own.NAME my_tools.py:name"

BUILTIN = Registry(
    (
        Toolset("terminal", "run shell commands, also in the background", terminal_tools, needs_box=True),
        Toolset("file", "read, write, patch and search files", file_tools, needs_box=True),
        Toolset("code", "run Python", python_tools, needs_box=True),
        Toolset("todo", "keep a list of what is to be done", todo_tools),
        Toolset("search", "search the web", missing="it needs a provider; set tools.web.provider"),
        Toolset("extract", "read web pages", missing="it needs a provider; set tools.web.provider"),
        Toolset("browser", "use a web browser", missing="it needs a Chromium in slots; set tools.browser.executable"),
        Toolset(
            "vision",
            "ask a model about a picture",
            missing="it needs a model for pictures; set vision.base_url and vision.name",
        ),
        Toolset("moa", "ask several models at once", missing=_OWN),
        Toolset("image_gen", "make a picture", missing=_OWN),
        Toolset("web", "search the web and read its pages", includes=("search", "extract")),
        Toolset("debugging", "terminal, files and web", includes=("terminal", "file", "web")),
        Toolset("coding", "terminal, files and Python", includes=("terminal", "file", "code")),
    )
)
"""The toolsets that need no configuration."""


def make_tools(names: Iterable[str], box: Sandbox | None, registry: Registry = BUILTIN) -> list[Tool]:
    """The tools of the named toolsets for one rollout, in the order of the names."""
    return registry.make_tools(names, box)


def choose_toolsets(
    enabled: Sequence[str] | None,
    disabled: Sequence[str] = (),
    default: Sequence[str] = (),
    registry: Registry = BUILTIN,
) -> tuple[str, ...]:
    """The leaf toolsets of a run: those enabled (None: the default; empty: none), less those disabled.

    `disabled` is subtracted last, leaf by leaf, so it also removes a part of a composite.
    """
    out = {leaf.name for leaf in registry.list_leaves(disabled)}
    chosen = registry.list_leaves(default if enabled is None else enabled)
    return tuple(leaf.name for leaf in chosen if leaf.name not in out)
