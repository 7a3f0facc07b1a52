"""Git repositories for slots: fetched once, and given to slots without their history.

    <cache>/<owner>__<name>.git      a bare repository with the commits that were needed. Slots never see it
    <cache>/starts/<digest>          what the slots of one task start with: a working tree with one commit of its own
    <cache>/hidden/<digest>          the test files that judge that task

A start is a `base` of slots (`SandboxSpec.base`): all slots of a task share it read-only, and each changes only its own
view. It has one commit without a parent. In a repository with its history, or one shared by several tasks, an agent
could read the fix or the hidden tests: `git log --all -p`. Starts are made in a temporary folder and renamed, so an
interrupted one leaves nothing behind; a lock lets one process at a time change a repository.
"""

import fcntl
import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from ludus.errors import SetupError

_PLAIN = (
    "GIT_CONFIG_GLOBAL=/dev/null",
    "GIT_CONFIG_NOSYSTEM=1",
    "GIT_TERMINAL_PROMPT=0",
    "GIT_LFS_SKIP_SMUDGE=1",
    "GIT_AUTHOR_NAME=ludus",
    "GIT_AUTHOR_EMAIL=ludus@localhost",
    "GIT_AUTHOR_DATE=2001-01-01T00:00:00Z",
    "GIT_COMMITTER_NAME=ludus",
    "GIT_COMMITTER_EMAIL=ludus@localhost",
    "GIT_COMMITTER_DATE=2001-01-01T00:00:00Z",
    "LC_ALL=C",
)
"""No settings of the user, no questions, and the same commit each time."""
_OPTIONS = ("-c", "safe.directory=*", "-c", "filter.lfs.required=false", "-c", "core.hooksPath=/dev/null")
_LOCAL_SECONDS = 60.0
_CLASS = re.compile(r"^\s*class\s+(\w+)", re.M)
_IGNORED = ".venv/\n__pycache__/\n*.egg-info/\n.pytest_cache/\n"


class Start(Struct, frozen=True):
    """What the slots of one task start with."""

    repo: str
    """The repository: <owner>/<name>."""
    commit: str
    """A commit, or the name of a branch or tag."""
    name: str
    """The folder of the working tree below /workspace."""
    patch: str = ""
    """Applied to the commit: a bug, for example."""
    test_patch: str = ""
    """Applied after it for the hidden files only."""
    tests: tuple[str, ...] = ()
    """Paths of the test files that judge. They are kept aside, so that they can be restored."""
    hidden: tuple[str, ...] = ()
    """Those of them that are not in the working tree."""

    def locate(self, cache: Path) -> "StartFolders":
        """Where the start is, or will be."""
        digest = hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:32]
        return StartFolders(cache / "starts" / digest, cache / "hidden" / digest)


class StartFolders(Struct, frozen=True):
    """A start that was made."""

    base: Path
    """Has one folder, the working tree."""
    tests: Path
    """Has the test files that judge. Slots never see it."""


def make_start(start: Start, url: str, cache: Path, *, seconds: float) -> StartFolders:
    """Make a start, unless the cache has it. Blocks: call it in a thread. `url`: a URL, or a folder of this host.

    Raises:
        SetupError: the repository or the commit cannot be fetched, or a patch does not apply.
    """
    made = start.locate(cache)
    if made.base.is_dir():
        return made
    _make_private(cache)
    bare = cache / f"{start.repo.strip('/').replace('/', '__').removesuffix('.git')}.git"
    with _lock(bare.with_suffix(".lock")):
        if not made.base.is_dir():
            fetch_commit(bare, url, start.commit, seconds=seconds)
            _build(start, bare, made, seconds)
    return made


def fetch_commit(bare: Path, url: str, commit: str, *, seconds: float) -> None:
    """Fetch one commit into a bare repository, unless it is there. If its host gives no single commits, fetch all."""
    if not (bare / "HEAD").exists():
        run_git("init", "-q", "--bare", str(bare), seconds=seconds)
    if _resolves(bare, _name_ref(commit), seconds):
        return
    try:
        run_git("fetch", "-q", "--depth", "1", url, commit, cwd=bare, seconds=seconds)
    except SetupError:
        run_git("fetch", "-q", url, "+refs/*:refs/fetched/*", cwd=bare, seconds=seconds)
        for found in (commit, f"refs/fetched/heads/{commit}", f"refs/fetched/tags/{commit}"):
            if _resolves(bare, found, seconds):
                run_git("update-ref", _name_ref(commit), f"{found}^{{commit}}", cwd=bare, seconds=seconds)
                return
        raise SetupError(f"{url} has no commit '{commit}'", retryable=False) from None
    else:
        run_git("update-ref", _name_ref(commit), "FETCH_HEAD", cwd=bare, seconds=seconds)


def read_tests(folder: Path) -> dict[str, str]:
    """The test files of a start, by path."""
    found = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return {str(path.relative_to(folder)): path.read_text(encoding="utf-8") for path in found}


def list_comparing_classes(folder: Path) -> set[str]:
    """The names of classes in Python files that have an `__eq__` of their own in them."""
    found: set[str] = set()
    for path in folder.rglob("*.py"):
        text = "" if path.is_symlink() or not path.is_file() else path.read_text(encoding="utf-8", errors="replace")
        if "__eq__" in text:
            found.update(_CLASS.findall(text))
    return found


def run_git(*words: str, cwd: Path | None = None, seconds: float, stdin: str = "") -> str:
    """Run git and return what it prints.

    Raises:
        SetupError: it failed, took too long, or is not installed.
    """
    command = ["env", *_PLAIN, "git", *_OPTIONS, *words]
    shown = f"git {' '.join(words[:6])}"
    try:
        done = subprocess.run(
            command, cwd=cwd, input=stdin, capture_output=True, text=True, timeout=seconds, errors="surrogateescape"
        )
    except subprocess.TimeoutExpired:
        raise SetupError(f"{shown}: not done within {seconds:g} s (env.install_timeout_s)") from None
    if done.returncode:
        raise SetupError(f"{shown}: exit code {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stdout


def make_repository(folder: Path, branches: Mapping[str, Mapping[str, str]]) -> None:
    """Make a repository with a commit for each branch, unless it is there. Files are given by path."""
    if folder.is_dir():
        return
    _make_private(folder.parent)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="making-") as temporary:
        tree = Path(temporary, folder.name)
        tree.mkdir()
        run_git("init", "-q", "-b", "main", cwd=tree, seconds=_LOCAL_SECONDS)
        for branch, texts in branches.items():
            run_git("checkout", "-q", "--orphan", branch, cwd=tree, seconds=_LOCAL_SECONDS)
            run_git("rm", "-r", "-f", "-q", "--ignore-unmatch", ".", cwd=tree, seconds=_LOCAL_SECONDS)
            for path, text in texts.items():
                (tree / path).parent.mkdir(parents=True, exist_ok=True)
                (tree / path).write_text(text, encoding="utf-8")
            run_git("add", "-A", cwd=tree, seconds=_LOCAL_SECONDS)
            run_git("commit", "-q", "-m", branch, cwd=tree, seconds=_LOCAL_SECONDS)
        if not folder.is_dir():
            tree.replace(folder)


# ---- making a start -----------------------------------------------------------------------------------------------


def _build(start: Start, bare: Path, made: StartFolders, seconds: float) -> None:
    for folder in (made.base.parent, made.tests.parent):
        folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=made.base.parent.parent, prefix="making-") as temporary:
        base, tests = Path(temporary, "base"), Path(temporary, "tests")
        tree = base / start.name
        tree.mkdir(parents=True)
        run_git("init", "-q", cwd=tree, seconds=seconds)
        run_git("fetch", "-q", "--depth", "1", str(bare), _name_ref(start.commit), cwd=tree, seconds=seconds)
        run_git("checkout", "-q", "FETCH_HEAD", cwd=tree, seconds=seconds)
        shutil.rmtree(tree / ".git")
        _apply(start.patch, tree, "patch", seconds)
        _take_tests(start, tree, tests, seconds)
        _commit_all(tree, seconds)
        base.chmod(0o755)
        if not made.tests.exists():
            tests.replace(made.tests)
        base.replace(made.base)  # last: a start that is there is complete


def _take_tests(start: Start, tree: Path, tests: Path, seconds: float) -> None:
    """Copy the tests out of the tree, and remove the hidden ones. What `test_patch` makes is never in the tree."""
    tests.mkdir()
    for path in {*start.tests, *start.hidden}:
        if (tree / path).is_file():
            (tests / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(tree / path, tests / path)
            if path in start.hidden:
                (tree / path).unlink()
    _apply(start.test_patch, tests, "test_patch", seconds)


def _apply(patch: str, folder: Path, field: str, seconds: float) -> None:
    if not patch.strip():
        return
    text = patch if patch.endswith("\n") else f"{patch}\n"
    try:
        run_git("apply", "--whitespace=nowarn", "-", cwd=folder, seconds=seconds, stdin=text)
    except SetupError as error:
        error.retryable = False
        raise SetupError(f"{field}: it does not apply to the commit: {error}", retryable=False) from None


def _commit_all(tree: Path, seconds: float) -> None:
    run_git("init", "-q", "-b", "main", cwd=tree, seconds=seconds)
    (tree / ".git" / "info" / "exclude").write_text(_IGNORED)
    run_git("add", "-A", "-f", cwd=tree, seconds=seconds)
    run_git("commit", "-q", "--allow-empty", "-m", "The state to work on", cwd=tree, seconds=seconds)


def _name_ref(commit: str) -> str:
    return f"refs/ludus/{hashlib.sha256(commit.encode()).hexdigest()[:16]}"


def _resolves(bare: Path, name: str, seconds: float) -> bool:
    try:
        run_git("rev-parse", "-q", "--verify", f"{name}^{{commit}}", cwd=bare, seconds=seconds)
    except SetupError:
        return False
    return True


def _make_private(folder: Path) -> None:
    """Hidden tests are in there: no other user may read it."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)


@contextmanager
def _lock(path: Path) -> Generator[None, None, None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
