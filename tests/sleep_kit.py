"""Live skills and staged patches for tests of adoption, and a process that is killed at its n-th change of a disk."""

import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.cli_kit import is_killed

from ludus.sleep import live_tree as trees
from ludus.sleep.adoption import NewFile
from ludus.sleep.live_tree import Tree, select_package
from ludus.sleep.night import PROPOSED, RECEIPT, Receipt, make_private, write_struct

CHANGES = frozenset(
    ["os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.chmod", "os.symlink", "os.truncate", "os.utime", "shutil.rmtree"]
)
"""Audit events of what a process does to a disk."""


def kill_at(number: int, do: Callable[[], object]) -> bool:
    """Run in a copy of this process, which is killed before its n-th change of the disk. Whether it was killed."""

    def run() -> None:
        count = 0

        def watch(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal count
            writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
            if writes or event in CHANGES:
                count += 1
                if count == number:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(watch)
        do()

    return is_killed(run)


def write_live(folder: Path) -> Path:
    """A package with a script, modes of its own, and files that are no part of a package."""
    live = folder / "forms"
    (live / "scripts").mkdir(parents=True)
    (live / "references").mkdir()
    (live / ".git").mkdir()
    (live / "SKILL.md").write_text("---\nname: forms\ndescription: Fills forms.\n---\n\n# Forms\n\nFill every field.\n")
    (live / "scripts" / "fill.py").write_text("print('fill')\n")
    (live / "scripts" / "fill.py").chmod(0o750)
    (live / "references" / "old.md").write_text("Old.\n")
    (live / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (live / ".git" / "link").symlink_to("/etc/passwd")
    (live / "SKILL.md").chmod(0o640)
    live.chmod(0o751)
    return live


def read_whole(path: Path) -> Tree:
    with trees.open_parent(path) as parent:
        return trees.read_tree(parent, path.name)


def stage(night: Path, live: Path, files: Mapping[str, bytes], executable: frozenset[str] = frozenset()) -> Receipt:
    """A staged patch that leaves exactly these files."""
    base = select_package(read_whole(live))
    new = {path: NewFile(content, None, path in executable) for path, content in files.items()}
    for path, entry in base.items():
        if path in new and entry.mode & 0o100:
            new[path] = new[path]._replace(executable=True)
    make_private(night / PROPOSED)
    trees.write_files(night / PROPOSED, live.name, new, base)
    target = trees.describe_files(new, base)
    receipt = Receipt(
        night=night.parent.name,
        skill=night.name,
        live=str(live),
        base="base",
        proposal="proposal",
        base_files=base,
        proposed_files=target,
        changes=tuple(trees.list_changes(base, target)),
        measured=True,
        claim="better",
    )
    write_struct(night / RECEIPT, receipt)
    return receipt
