"""Which of an agent's changes a verifier's programs would load: decided by name and place, as pure functions.

A test script runs bash, Python, pytest and other programs on the machine that the agent left. Each of them reads files
when it starts: settings, modules, libraries. `find_loaded` finds the changes of an agent that would be read so, with
the reason for each. What a task needs changed is no such change: what its reference solution changes (`Needs`), and new
modules that the instruction names. A task whose solution adds files to folders of the system allows additions there,
but none that stand before a program or module that the image has.

What is known of the image (`ImageFacts`) is read in a slot that no agent has touched.
"""

import posixpath
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping

from msgspec import Struct

from ludus.sandbox.archive import ArchiveEntry
from ludus.sandbox.file_tree import Protection, list_parents

SYSTEM = (
    *("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "opt/ludus", "etc/ld.so.*", "etc/alternatives"),
    *("nix", "snap"),
)
"""Folders of programs and libraries."""
_HOME_FILES = (
    *(".bash*", ".profile", ".zsh*", ".inputrc", ".pam_environment", ".terminfo", ".dircolors", ".lesskey"),
    *(".pydistutils.cfg", ".pip", ".config/pip", ".pypirc", ".config/uv", ".cache/uv", ".cache/pip", ".pdbrc"),
    *(".local/bin", ".local/lib", ".local/share/uv", ".local/share/pipx", ".cargo", ".condarc", ".ipython", ".jupyter"),
    *(".curlrc", ".config/curlrc", ".wgetrc", ".netrc", ".gitconfig", ".config/git", ".sqliterc", ".config/sqlite3"),
    *(".perl*", ".cpan*", ".openssl*", ".npmrc", ".node_*", ".yarnrc*", ".gemrc", ".irbrc", ".Rprofile", ".Renviron"),
    *(".psqlrc", ".my.cnf", ".mylogin.cnf", ".gdbinit", ".config/gdb", ".lldbinit", ".vimrc", ".exrc", ".nanorc"),
    *(".screenrc", ".tmux.conf", ".jq", ".mavenrc", ".m2/settings*", ".ssh/rc", ".ssh/environment"),
)
"""What programs read in a home folder when they start."""
_SYSTEM_FILES = (
    *("etc/profile", "etc/profile.d", "etc/bash*", "etc/environment", "etc/zsh", "etc/inputrc", "etc/terminfo"),
    *("etc/pip.conf", "etc/xdg/pip", "etc/python*", "etc/uv", "etc/xdg/uv", "etc/conda", "etc/perl", "etc/R"),
    *("etc/gitconfig", "etc/gitattributes", "etc/curlrc", "etc/wgetrc", "etc/npmrc", "etc/gemrc", "etc/psqlrc"),
    *("etc/ssl/openssl*.cnf", "etc/pki/tls/openssl*.cnf", "etc/crypto-policies", "etc/gdb", "etc/nsswitch.conf"),
    *("etc/apt/apt.conf*", "etc/dpkg", "etc/vim", "etc/nanorc", ".dockerenv"),
)
"""What shells, interpreters and other programs of test scripts read when they start, unless they are told not to."""
_SITES = (
    re.compile(r".*?(?:^|/)(?:site|dist)-packages(?=/)", re.DOTALL),
    re.compile(r".*?(?:^|/)lib/python\d[\d.]*(?=/)", re.DOTALL),
)
"""Folders of modules of an interpreter."""
_TEST_SETTINGS = frozenset({"pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "conftest.py"})
_SHARED_SETTINGS = {
    "pyproject.toml": b"tool.pytest",
    "tox.ini": b"[pytest]",
    "setup.cfg": b"[tool:pytest]",
}
"""Files that may have settings of pytest, and what those begin with."""
_JUDGE_MODULES = frozenset(
    (
        *("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments", "exceptiongroup", "tomli", "attr"),
        *("attrs", "pytest_json_ctrf", "pytest_asyncio", "pytest_timeout", "xdist", "execnet", "pip", "setuptools"),
        *("_distutils_hack", "pkg_resources", "sitecustomize", "usercustomize"),
    )
)
"""Modules of pytest, and those that Python imports when it starts."""
SHADOWING = frozenset({*sys.stdlib_module_names, *_JUDGE_MODULES, "requests", "yaml", "numpy", "pandas"})
"""Modules that a file of another folder must not stand for."""
_JUDGE_PROGRAMS = frozenset(
    (
        *(
            "python",
            "python3",
            "pytest",
            "py.test",
            "pip",
            "pip3",
            "uv",
            "uvx",
            "bash",
            "sh",
            "env",
            "curl",
            "wget",
            "git",
        ),
        *(
            "sqlite3",
            "jq",
            "grep",
            "sed",
            "awk",
            "diff",
            "cmp",
            "cat",
            "test",
            "[",
            "timeout",
            "perl",
            "node",
            "openssl",
        ),
    )
)
_MODULE_FILE = re.compile(r"(\w+)(?:\.py|\.pyc|\.pyw|(?:\.[\w-]+)*\.so)")
_PACKAGE_FILE = re.compile(r"(\w+)/__init__(?:\.py|\.pyc|(?:\.[\w-]+)*\.so)")
_GIT_SETTINGS = re.compile(r"(?:^|/)(?:\.?gitconfig|\.?git/config)$")
_GIT_PROGRAMS = re.compile(
    rb"^\s*(fsmonitor|hooksPath|sshCommand|pager|editor|askPass|gitProxy|textconv|command|clean|smudge|process|program|"
    rb"helper|external|driver|path)\s*=|^\s*\[include|^\s*\w+\s*=\s*\"?!",
    re.IGNORECASE | re.MULTILINE,
)
"""Settings of a repository with which git runs a program, or reads settings from elsewhere."""


class ImageFacts(Struct, frozen=True, kw_only=True):
    """What an image has that decides what programs load. Paths are below the root, without a leading slash."""

    folder: str = ""
    """The working folder."""
    homes: frozenset[str] = frozenset()
    program_folders: tuple[str, ...] = ()
    """The folders of PATH."""
    module_folders: tuple[str, ...] = ()
    """The folders of PYTHONPATH, and those that the test scripts go to."""
    startup: tuple[str, ...] = ()
    """Files and folders that variables of the image name for loading: BASH_ENV, LD_LIBRARY_PATH, PERL5LIB, …"""
    programs: frozenset[str] = frozenset()
    """The names of all programs of PATH."""
    existing: frozenset[str] = frozenset()
    """Of the paths that were asked for, those that the image has."""

    @property
    def import_roots(self) -> frozenset[str]:
        """Folders in which a file may be taken for a module of the library. `/` is the empty path."""
        return frozenset({"", self.folder, *self.module_folders, *self.homes})


class Needs(Struct, frozen=True):
    """What a task needs changed: the files that its reference solution changes, makes or removes."""

    paths: frozenset[str] = frozenset()
    is_known: bool = False
    """Whether the reference solution was run at all."""

    @property
    def areas(self) -> frozenset[str]:
        """The first folders of what is changed: `usr`, `opt`, `etc`."""
        return frozenset(path.partition("/")[0] for path in self.paths)


def list_questions(entries: Iterable[ArchiveEntry], folder: str) -> Iterator[str]:
    """The paths of which `find_loaded` wants to know whether the image has them."""
    for entry in entries:
        if not entry.is_folder:
            yield entry.path
            yield (parent := posixpath.dirname(entry.path))
            yield posixpath.join(posixpath.dirname(parent), "pyvenv.cfg")
            if site := _find_site(entry.path):
                yield site
    yield from (posixpath.join(folder, name) for name in ("tests", "test"))


def find_loaded(
    entries: Iterable[ArchiveEntry], facts: ImageFacts, needs: Needs, instruction: str, *, system: bool = True
) -> dict[str, str]:
    """The changes that a verifier's programs would load: the reasons by path. `system`: changes of the folders of
    programs and libraries are among them."""
    is_startup, folders = _match_startup(facts), Protection(SYSTEM)
    found: dict[str, str] = {}
    for entry in entries:
        if entry.is_folder or (entry.path in needs.paths and not _runs_programs(entry)):
            continue
        if is_startup(entry.path):
            if not _is_named(entry.path, instruction) or _runs_programs(entry):
                found[entry.path] = "it is read by a program when it starts"
        elif folders.covers(entry.path):
            if system and not _is_allowed(entry.path, facts, needs):
                found[entry.path] = "it is in a folder of programs and libraries"
        elif reason := _find_reason(entry, facts, instruction):
            found[entry.path] = reason
    return found


def _match_startup(facts: ImageFacts) -> Callable[[str], object]:
    """A function that says whether a path, or a folder above it, is read by a program when it starts."""
    homes = [f"{home}/" if home else "" for home in {"root", *facts.homes}]
    choices = [*map(_translate, (*_SYSTEM_FILES, *(f"{home}{name}" for home in homes for name in _HOME_FILES)))]
    choices += [f"home/[^/]+/{_translate(name)}" for name in _HOME_FILES]
    choices += [re.escape(path) for path in facts.startup if path]
    return re.compile(f"(?:{'|'.join(choices)})(?:/|$)").match


def _translate(pattern: str) -> str:
    """A pattern as an expression. A star stays within a name."""
    return "[^/]*".join(map(re.escape, pattern.split("*")))


def list_guarded(facts: ImageFacts) -> frozenset[str]:
    """Folders in whose place no link may stand: others' files would be read instead."""
    homes = {home for home in ("root", *facts.homes) if home}
    inner = {f"{home}/{name}" for home in homes for name in (".config", ".local", ".local/lib", ".cache")}
    tests = {posixpath.join(facts.folder, name) for name in ("tests", "test")}
    named = {path for path in (*facts.program_folders, *facts.module_folders, *facts.startup) if path}
    return frozenset({"etc", "etc/ssl", "etc/xdg", "opt", *homes, *inner, *named, *(tests & facts.existing)})


def _is_allowed(path: str, facts: ImageFacts, needs: Needs) -> bool:
    """Whether a change of a system folder is what the task is about: an addition where its solution adds something."""
    if path.partition("/")[0] not in needs.areas or path in facts.existing:
        return False
    return not (_is_startup_module(path) or _shadows_program(path, facts) or _find_judge_module(path))


def _find_reason(entry: ArchiveEntry, facts: ImageFacts, instruction: str) -> str:
    """Why a file outside of the system's folders would be loaded; empty if it would not."""
    path, name = entry.path, posixpath.basename(entry.path)
    parent = posixpath.dirname(path)
    if name in ("sitecustomize.py", "usercustomize.py"):
        return "Python imports it when it starts"
    if name == "entry_points.txt" and b"pytest11" in (entry.data or b""):
        return "pytest loads the plugin that it names"
    if _runs_programs(entry):
        return "git runs what it names"
    if (site := _find_site(path)) and (reason := _find_package_reason(path, site, facts)):
        return reason
    if _is_program(path, facts, instruction):
        return "it is a program of the image"
    if _is_test_of_image(path, facts):
        return "it is among the tests of the image"
    if parent in facts.import_roots and _has_test_settings(entry, name, facts, instruction):
        return "pytest reads it when it starts"
    return "" if _is_named(path, instruction) else _find_shadow(entry, facts)


def _find_site(path: str) -> str:
    """The folder of modules of an interpreter that a path is in; empty if it is in none."""
    return next((found[0] for each in _SITES if (found := each.match(path))), "")


def _find_package_reason(path: str, site: str, facts: ImageFacts) -> str:
    """Why a file among the packages of an interpreter of the image would be loaded."""
    if path in facts.existing:
        return "it is a package of the image"
    if path.endswith(".pth") and posixpath.dirname(path) in facts.existing:
        return "Python runs it when it starts"
    return "it stands for a module of the tests" if site in facts.existing and _find_judge_module(path) else ""


def _find_judge_module(path: str) -> str:
    """The module of test scripts that a path among packages would be; empty if it is none."""
    site = _find_site(path)
    first = path[len(site) + 1 :].partition("/")[0].partition(".")[0] if site else ""
    return first if first in _JUDGE_MODULES else ""


def _is_startup_module(path: str) -> bool:
    return path.endswith((".pth", "/sitecustomize.py", "/usercustomize.py"))


def _shadows_program(path: str, facts: ImageFacts) -> bool:
    """Whether it would stand in the place of another program."""
    name = posixpath.basename(path)
    return posixpath.dirname(path) in facts.program_folders and (name in facts.programs or name in _JUDGE_PROGRAMS)


def _is_program(path: str, facts: ImageFacts, instruction: str) -> bool:
    """Whether it is a program of the image's PATH or of one of its virtual environments, or stands for one."""
    parent, name = posixpath.split(path)
    config = posixpath.join(posixpath.dirname(parent), "pyvenv.cfg")
    is_of_venv = posixpath.basename(parent) == "bin" and config in facts.existing
    if path in facts.existing and (name == "pyvenv.cfg" or is_of_venv):
        return True
    is_candidate = path in facts.existing and parent in facts.program_folders
    if not is_candidate and not _shadows_program(path, facts):
        return False
    return name in _JUDGE_PROGRAMS or not _is_named(path, instruction)


def _is_test_of_image(path: str, facts: ImageFacts) -> bool:
    folders = {posixpath.join(facts.folder, name) for name in ("tests", "test")}
    return any(parent in folders and parent in facts.existing for parent in list_parents(path))


def _has_test_settings(entry: ArchiveEntry, name: str, facts: ImageFacts, instruction: str) -> bool:
    if name in _TEST_SETTINGS:
        return entry.path not in facts.existing or "/" not in entry.path
    if name not in _SHARED_SETTINGS:
        return False
    return "/" not in entry.path or (
        _SHARED_SETTINGS[name] in (entry.data or b"") and not _is_named(entry.path, instruction)
    )


def _find_shadow(entry: ArchiveEntry, facts: ImageFacts) -> str:
    """Why a file would be taken for a module of the library; empty if it would not."""
    path = entry.path
    if path in facts.existing:
        return ""
    for root in facts.import_roots:
        inner = posixpath.relpath(path, root or ".") if not root or path.startswith(f"{root}/") else ".."
        if inner.startswith(".."):
            continue
        match = _MODULE_FILE.fullmatch(inner) or _PACKAGE_FILE.fullmatch(inner)
        name = match[1] if match else inner if entry.link is not None else ""
        if name in SHADOWING:
            return f"it stands for the module {name}"
    return ""


def _runs_programs(entry: ArchiveEntry) -> bool:
    """Whether it has settings with which git runs a program."""
    return _GIT_SETTINGS.search(entry.path) is not None and _GIT_PROGRAMS.search(entry.data or b"") is not None


def _is_named(path: str, instruction: str) -> bool:
    """Whether the instruction asks for a file of this name."""
    return re.search(rf"(?<![\w.]){re.escape(posixpath.basename(path))}(?!\w)", instruction) is not None


def describe_loaded(found: Mapping[str, str], shown: int = 5) -> tuple[str, ...]:
    """The changes in words, one line each."""
    lines = tuple(f"/{path}: {reason}" for path, reason in list(found.items())[:shown])
    more = len(found) - len(lines)
    return (*lines, f"… and {more} more") if more > 0 else lines
