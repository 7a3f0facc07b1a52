"""The layers of docs/architecture.md, checked: imports point down only."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "ludus"

LAYERS = [
    ["types", "settings"],
    ["errors"],
    ["http_client", "skill", "skill_examples"],
    ["models", "sandbox", "parsers"],
    ["tokens"],
    ["gateway"],
    ["harness", "tools", "verify"],
    ["env", "agent"],
    ["rollout", "envs"],
    ["store", "stats"],
    ["trajectory_page"],
    ["batch"],
    ["rl", "reflact"],
    ["show", "config"],
    ["env_checks", "host_checks", "compat"],
    ["cli"],
]
HEIGHT = {name: height for height, names in enumerate(LAYERS) for name in names}
FILES = sorted(SOURCE.rglob("*.py"))


def part(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_parts(tree: ast.AST) -> set[str]:
    """Top-level parts of ludus that a file imports, at any depth of the file."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "ludus":
            rest = node.module.split(".")[1:]
            found |= {rest[0]} if rest else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("ludus.")}
    return found - {"__version__"}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_down(path: Path):
    name = part(path)
    if name in {"__init__", "__main__"}:
        return
    assert name in HEIGHT, f"{name} has no place in the layers: add it here and in docs/architecture.md"
    for other in imported_parts(ast.parse(path.read_text())) - {name}:
        assert HEIGHT[other] < HEIGHT[name], f"{path.name} imports {other}, which is above it"


def test_the_two_trainers_do_not_know_each_other():
    for path in FILES:
        if part(path) in {"rl", "reflact"}:
            other = ({"rl", "reflact"} - {part(path)}).pop()
            assert other not in imported_parts(ast.parse(path.read_text())), path.name


def test_only_config_and_the_command_line_read_the_environment():
    words = ("os.environ", "os.getenv", "getenv(")
    readers = {path for path in FILES if any(word in path.read_text() for word in words)}
    readers -= {SOURCE / "sandbox" / "local" / "unisolated.py"}  # trusted code gets the PATH of whoever trusts it
    readers -= {SOURCE / "sandbox" / "slotd" / "slots.py"}  # runs elsewhere: the variables are a container's
    readers -= {SOURCE / "models" / "embedded.py"}  # OpenMP can be told nothing in any other way
    readers -= set((SOURCE / "sandbox" / "slotd").iterdir())  # a program of its own, inside a container
    assert {part(path) for path in readers} <= {"config", "cli"}


def test_no_module_keeps_process_wide_state():
    for path in FILES:
        globals_ = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Global)]
        assert not globals_, f"{path.name} uses 'global'"
