"""Put a staged patch in place of the live skill, or take it back.

    lock ── look ── backup ── build beside ── exchange ── look again ── receipt ── remove the old one
                              (journal: building)  (journal: built)     (journal: exchanged)

The live skill is replaced as a whole, in one step: a reader sees the old one or the new one. It is replaced
only if its files are those that the patch is for. What the exchange brought out is compared with what was looked at
before: if somebody wrote to it in between, it is exchanged back. So no foreign edit is overwritten.

The journal is written before each of these steps. A process may be killed anywhere: the next call reads the journal,
looks at what is there, and finishes or takes back what was begun (`_recover`). Files that are no part of a package,
such as `.git`, stay as they are. The lock is that of the folder that the skill is in, which `ludus curate --apply`
takes, too.
"""

import os
import re
import secrets
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from ludus.errors import ConfigError, StoreError
from ludus.skill_folder import read_skill
from ludus.sleep import live_tree as trees
from ludus.sleep.live_tree import NewFile, Tree, hash_tree, list_changes, select_package
from ludus.sleep.night import (
    ADOPTION,
    BACKUP,
    PROPOSED,
    Receipt,
    find_receipt_fault,
    make_private,
    read_struct,
    write_struct,
)
from ludus.whole_files import take_lock

AdoptionOp = Literal["adopt", "revert"]
Stage = Literal["building", "built", "exchanged"]
_MARK = ".ludus-"


class AdoptionReceipt(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that was done to a live skill."""

    op: AdoptionOp
    live: str
    before: str
    """The hash of the package's files before."""
    after: str
    who: str
    time: float
    changes: tuple[str, ...]
    note: str = ""


class PendingAdoption(Struct, frozen=True, kw_only=True):
    """What is under way: enough to finish it or to take it back."""

    op: AdoptionOp
    stage: Stage
    name: str
    """That of the copy beside the live skill."""
    before: str
    """The hash of the whole live tree before."""
    after: str
    """The hash of the whole tree that takes its place; empty while it is built."""
    receipt: AdoptionReceipt


class AdoptionState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of a staged patch."""

    adopted: bool = False
    pending: PendingAdoption | None = None
    history: tuple[AdoptionReceipt, ...] = ()


def read_adoption(folder: Path) -> AdoptionState:
    return read_struct(folder / ADOPTION, AdoptionState) or AdoptionState()


def adopt(folder: Path, receipt: Receipt, who: str, op: AdoptionOp = "adopt") -> AdoptionReceipt:
    """Put the patch that is staged in a folder in place of the live skill; with `revert`, the backup.

    Raises:
        ConfigError: the live skill is not what it has to be, so nothing was done. The message names what changed.
        StoreError: something cannot be read or written. The live skill is the old one or the new one.
    """
    if fault := find_receipt_fault(folder, receipt):
        raise ConfigError(fault)
    live = Path(receipt.live)
    try:
        with trees.open_parent(live) as parent, _lock(parent, live):
            return _Adoption(folder, receipt, parent, live.name).run(op, who)
    except OSError as error:
        place = error.filename if isinstance(error.filename, str) else str(live)
        raise StoreError(
            f"{place}: {error.strerror or error}. Nothing is lost: the live skill is the old one or the new one; call "
            "the same command again"
        ) from None


def find_obstacle(folder: Path, receipt: Receipt, op: AdoptionOp = "adopt") -> list[str]:
    """Why a patch cannot be adopted or reverted now, in words; nothing if it can. Changes nothing."""
    if fault := find_receipt_fault(folder, receipt):
        return [fault]
    live = Path(receipt.live)
    with trees.open_parent(live) as parent:
        if not trees.exists(parent, live.name):
            return [f"{live} is not there"]
        return list_changes(_get_expected(receipt, op), select_package(trees.read_tree(parent, live.name)))


def _get_expected(receipt: Receipt, op: AdoptionOp) -> Tree:
    """The files that the live skill must have."""
    return receipt.base_files if op == "adopt" else receipt.proposed_files


@contextmanager
def _lock(parent: int, live: Path) -> Generator[None]:
    """Hold the lock of the folder that a live skill is in. It ends with the process."""
    if not take_lock(parent):
        raise StoreError(f"another process changes skills in {live.parent}: wait until it has ended")
    yield


class _Adoption:
    """One adoption, with the lock held."""

    def __init__(self, folder: Path, receipt: Receipt, parent: int, name: str) -> None:
        self.folder, self.receipt, self.parent, self.name = folder.resolve(), receipt, parent, name
        self.state = read_adoption(folder)
        if (pending := self.state.pending) and not re.fullmatch(
            rf"\.{re.escape(name)}{re.escape(_MARK)}[0-9a-f]{{12}}", pending.name
        ):
            raise ConfigError(
                f"{folder / ADOPTION}: pending.name: {pending.name!r} is not the name of a copy, and it "
                "would be removed: put the file back as it was"
            )

    def run(self, op: AdoptionOp, who: str) -> AdoptionReceipt:
        finished = self._recover()
        if finished is not None and finished.op == op:
            return replace(finished, note="It was begun before, and finished now.")
        if self.state.adopted is (op == "adopt"):
            raise ConfigError(
                f"{self.receipt.skill} of night {self.receipt.night} is "
                + (
                    "adopted already; to take it back: --revert"
                    if op == "adopt"
                    else "not adopted, so there is nothing to revert"
                )
            )
        before = self._read_live()
        self._require(op, select_package(before))
        files = self._read_proposed() if op == "adopt" else self._read_backup()
        if op == "adopt":
            self._keep_backup(before)
        return self._replace(op, who, before, files)

    def _read_live(self) -> Tree:
        if not trees.exists(self.parent, self.name):
            raise ConfigError(f"{self.receipt.live} is not there: the patch is for a live skill")
        tree = trees.read_tree(self.parent, self.name)
        if tree[trees.ROOT].kind == "link":
            raise ConfigError(f"{self.receipt.live} is a link now, which is not followed: sleep again with its target")
        return tree

    def _require(self, op: AdoptionOp, found: Tree) -> None:
        """Raise `ConfigError` if the live skill is not the one that the patch is for."""
        if changed := list_changes(_get_expected(self.receipt, op), found):
            since = "the night" if op == "adopt" else "the adoption"
            raise ConfigError(
                f"{self.receipt.live} has changed since {since}: {'; '.join(changed[:5])}"
                + (f"; and {len(changed) - 5} more" if len(changed) > 5 else "")
                + ". Nothing was done. To see both changes side by side: --dry-run"
            )

    def _read_proposed(self) -> Mapping[str, NewFile]:
        """The staged files. They must be those of the receipt: what was measured is what is adopted."""
        staged = self.folder / PROPOSED / self.name
        with trees.open_parent(staged) as night:
            found = select_package(trees.read_tree(night, self.name))
            if changed := list_changes(self.receipt.proposed_files, found):
                raise ConfigError(
                    f"{staged} is not what was staged: {'; '.join(changed[:5])}. Put it back, and make "
                    "changes of your own after adopting"
                )
            if (hash := read_skill(staged).hash) != self.receipt.proposal:
                raise ConfigError(f"{staged} is skill {hash}, and {self.receipt.proposal} was measured: sleep again")
            return trees.read_package_files(night, self.name)

    def _read_backup(self) -> Mapping[str, NewFile]:
        backup = self.folder / BACKUP / self.name
        with trees.open_parent(backup) as night:
            if list_changes(self.receipt.base_files, select_package(trees.read_tree(night, self.name))):
                raise ConfigError(f"{backup} is not the skill as it was before: it cannot be put back")
            return trees.read_package_files(night, self.name)

    def _keep_backup(self, before: Tree) -> None:
        """Keep the live skill as it is. A copy that a killed process left incomplete is made again."""
        make_private(self.folder / BACKUP)
        name, partial = self.name, f".{self.name}.new"
        with trees.open_parent(self.folder / BACKUP / name) as night:
            if trees.exists(night, name):
                if hash_tree(trees.read_tree(night, name)) == hash_tree(before):
                    return
                trees.remove_tree(night, name)
            trees.remove_tree(night, partial)
            trees.copy_tree(self.parent, name, night, partial)
            if hash_tree(trees.read_tree(night, partial)) != hash_tree(before):
                trees.remove_tree(night, partial)
                raise ConfigError(f"{self.receipt.live} changed while it was copied: nothing was done; try again")
            os.rename(partial, name, src_dir_fd=night, dst_dir_fd=night)
            os.fsync(night)

    def _replace(self, op: AdoptionOp, who: str, before: Tree, files: Mapping[str, NewFile]) -> AdoptionReceipt:
        target = self.receipt.proposed_files if op == "adopt" else self.receipt.base_files
        receipt = AdoptionReceipt(
            op=op,
            live=self.receipt.live,
            before=hash_tree(select_package(before)),
            after=hash_tree(target),
            who=who,
            time=time.time(),
            changes=tuple(list_changes(select_package(before), target)),
        )
        new = f".{self.name}{_MARK}{secrets.token_hex(6)}"
        pending = PendingAdoption(
            op=op, stage="building", name=new, before=hash_tree(before), after="", receipt=receipt
        )
        self._write(replace(self.state, pending=pending))
        trees.build_copy(self.parent, self.name, new, files)
        built = trees.read_tree(self.parent, new)
        if wrong := list_changes(target, select_package(built)):
            self._give_up(new)
            raise ConfigError(
                f"{self.receipt.live} changed while it was copied ({wrong[0]}): nothing was done; try again"
            )
        self._write(replace(self.state, pending=replace(pending, stage="built", after=hash_tree(built))))
        trees.exchange(self.parent, self.name, new)
        if hash_tree(trees.read_tree(self.parent, new)) != hash_tree(before):
            trees.exchange(self.parent, self.name, new)
            self._give_up(new)
            raise ConfigError(f"{self.receipt.live} changed at this moment: it was left as it is; try again")
        return self._finish()

    def _finish(self) -> AdoptionReceipt:
        """The exchange is done: record it, and remove what it brought out."""
        pending = self.state.pending
        assert pending is not None
        self._write(replace(self.state, pending=replace(pending, stage="exchanged")))
        trees.remove_tree(self.parent, pending.name)
        receipt = pending.receipt
        self._write(AdoptionState(adopted=pending.op == "adopt", history=(*self.state.history, receipt)))
        return receipt

    def _give_up(self, name: str) -> None:
        trees.remove_tree(self.parent, name)
        self._write(replace(self.state, pending=None))

    def _write(self, state: AdoptionState) -> None:
        write_struct(self.folder / ADOPTION, state)
        self.state = state

    # ---- after a kill -----------------------------------------------------------------------------------------------

    def _recover(self) -> AdoptionReceipt | None:
        """Finish or take back what a killed process began. Returns the receipt of what was finished."""
        pending = self.state.pending
        if pending is None:
            return None
        trees.complete_exchange(self.parent, self.name, pending.name)
        match decide_recovery(pending, self._hash(self.name), self._hash(pending.name)):
            case "finish":
                return self._finish()
            case "take back":
                self._give_up(pending.name)
            case "exchange back":
                trees.exchange(self.parent, self.name, pending.name)
                self._give_up(pending.name)
            case "keep":
                kept = Path(self.receipt.live).parent / pending.name
                self._write(replace(self.state, pending=None))
                raise ConfigError(
                    f"{self.receipt.live} and {kept} were both changed after an adoption was interrupted: nothing was "
                    "done, and both are kept. Compare them, keep what you need, and remove the second one"
                )
        return None

    def _hash(self, name: str) -> str:
        return hash_tree(trees.read_tree(self.parent, name)) if trees.exists(self.parent, name) else ""


Recovery = Literal["finish", "take back", "exchange back", "keep"]


def decide_recovery(pending: PendingAdoption, live: str, beside: str) -> Recovery:
    """What to do about an adoption that was interrupted, by the hashes of what is there (empty: nothing)."""
    if pending.stage == "exchanged":
        return "finish"
    if pending.stage == "building" or beside == pending.after:
        return "take back"  # the copy is ours, and the live skill was not touched
    if beside == pending.before:
        return "finish"  # they were exchanged; what happened to the live skill since then stays
    if not beside:
        return "finish" if live == pending.after else "take back"
    return "exchange back" if live == pending.after else "keep"  # somebody wrote to it while it was exchanged
