"""What `ludus sleep` and `ludus adopt` print."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from ludus.command.terminal import make_console, make_printable, make_table, make_text
from ludus.errors import LudusError
from ludus.sleep.adoption import find_obstacle, read_adoption
from ludus.sleep.night import DIFF, RECEIPT, RUN, Night, Receipt, list_nights, read_struct


class StagedRow(Struct, frozen=True, kw_only=True):
    """A night in the list."""

    night: str
    skill: str
    status: str
    """`staged`, `adopted`, `reverted`, `outdated`, or that of the night."""
    claim: str
    measured: bool
    live: str
    obstacles: tuple[str, ...] = ()


def list_staged(folder: Path) -> list[StagedRow]:
    """The nights of a folder, with what became of what they staged."""
    return [row for path, night in list_nights(folder) for row in _list_rows(path, night)]


def _list_rows(path: Path, night: Night) -> list[StagedRow]:
    rows: list[StagedRow] = []
    for place in sorted(path.glob(f"*/{RECEIPT}")):
        receipt = read_struct(place, Receipt)
        if receipt is not None:
            rows.append(_make_row(place.parent, receipt))
    empty = StagedRow(
        night=night.name, skill=night.skill, status=night.status, claim=night.message, measured=False, live=night.live
    )
    return rows or [empty]


def _make_row(folder: Path, receipt: Receipt) -> StagedRow:
    state = read_adoption(folder)
    obstacles: list[str] = []
    if not state.adopted:
        try:
            obstacles = find_obstacle(folder, receipt)
        except (LudusError, OSError) as error:
            obstacles = [str(error)]
    status = "adopted" if state.adopted else "outdated" if obstacles else "reverted" if state.history else "staged"
    return StagedRow(
        night=receipt.night,
        skill=receipt.skill,
        status="interrupted" if state.pending else status,
        claim=receipt.claim,
        measured=receipt.measured,
        live=receipt.live,
        obstacles=tuple(obstacles),
    )


def print_nights(rows: Sequence[StagedRow], folder: Path) -> None:
    if not rows:
        print(f"no nights in {folder}")
        return
    table = make_table("night", "skill", "status", "claim")
    for row in rows:
        table.add_row(*map(make_text, (row.night, row.skill, row.status, row.claim)))
    make_console().print(table)
    for row in rows:
        if row.status == "outdated":
            changed = "; ".join(row.obstacles[:3])
            print(make_printable(f"{row.night}, {row.skill} cannot be adopted as it is: {changed}"))


def print_night(night: Path | None, receipt: Receipt | None, message: str, left_out: Mapping[str, int]) -> None:
    """The result of a night."""
    for reason, count in left_out.items():
        print(f"left out or without a task: {count} ({make_printable(reason)})")
    if message:
        print(make_printable(message))
    if night is None or receipt is None:
        return
    folder = next((path.parent for path in night.glob(f"*/{RECEIPT}")), night)
    name = shlex.quote(str(night))
    print(f"\nstaged: {receipt.skill}" + ("" if receipt.measured else "   NOT MEASURED: read it before you adopt it"))
    print(f"  {make_printable(receipt.claim)}")
    for change in receipt.changes:
        print(f"  {make_printable(change)}")
    if receipt.deltas:
        better = sum(each.after > each.before for each in receipt.deltas)
        worse = sum(each.after < each.before for each in receipt.deltas)
        print(f"  {len(receipt.deltas)} tasks measured with both: {better} better, {worse} worse")
    for warning in receipt.warnings:
        print(f"  warning: {make_printable(warning)}")
    print(f"\n  {folder / DIFF}   what would change")
    if receipt.run:
        print(f"  ludus review {shlex.quote(receipt.run)}   each change with its evidence")
        print(f"  ludus show {shlex.quote(str(folder / RUN))}   the training run")
    print(f"  ludus adopt {name} --dry-run   what adopting would do\n  ludus adopt {name}")


def print_preview(folder: Path, receipt: Receipt, obstacles: Sequence[str], foreign: str) -> None:
    """What adopting would do. `foreign`: what others have changed since, as a diff."""
    print(make_printable(f"{receipt.skill} of night {receipt.night}, for {receipt.live}"))
    print(f"claim: {make_printable(receipt.claim)}")
    print(f"base {receipt.base}, proposal {receipt.proposal}")
    print("\n==== from the base to the proposal ====")
    print(make_printable((folder / DIFF).read_text(errors="replace")))
    if obstacles:
        print("==== from the base to the live skill: changes of others, so nothing can be adopted ====")
        print("\n".join(map(make_printable, obstacles)))
        print(make_printable(foreign))
