"""`ludus adopt`: put what a night has staged in place of the live skill, or take it back."""

import getpass
import shlex
from pathlib import Path

from ludus.arguments import Arguments, make_argument
from ludus.command import JSON, Command
from ludus.command.terminal import make_printable
from ludus.encoding import to_json
from ludus.errors import ConfigError
from ludus.sleep.adoption import AdoptionOp, AdoptionReceipt, adopt, find_obstacle, read_adoption
from ludus.sleep.command import NIGHTS
from ludus.sleep.night import Receipt, find_night, find_staged
from ludus.sleep.night_table import print_preview
from ludus.sleep.reviewed_patch import stage_reviewed
from ludus.sleep.staging import read_base_diff


class AdoptArguments(Arguments):
    night: str
    nights: str
    skill: list[str]
    dry_run: bool
    revert: bool
    reviewed: bool
    quiet: bool


def run(arguments: AdoptArguments) -> int:
    night = find_night(Path(arguments.nights).expanduser(), arguments.night)
    chosen = find_staged(night, tuple(arguments.skill))
    if arguments.reviewed:
        chosen = [stage_reviewed(folder, receipt) for folder, receipt in chosen]
    op: AdoptionOp = "revert" if arguments.revert else "adopt"
    if arguments.dry_run:
        return _preview(chosen, op, as_json=arguments.json)
    for folder, receipt in chosen if len(chosen) > 1 else ():  # all of them, or none
        if (obstacles := find_obstacle(folder, receipt, op)) and read_adoption(folder).pending is None:
            raise ConfigError(f"{receipt.live}: {'; '.join(obstacles[:5])}. Nothing was done; name others with --skill")
    done = [adopt(folder, receipt, getpass.getuser(), op) for folder, receipt in chosen]
    if arguments.json:
        print(to_json(done).decode())
    elif not arguments.quiet:
        for (_, receipt), each in zip(chosen, done, strict=True):
            _print_done(receipt, each, shlex.quote(str(night)), " --reviewed" if arguments.reviewed else "")
    return 0


def _preview(chosen: list[tuple[Path, Receipt]], op: AdoptionOp, *, as_json: bool) -> int:
    """Say what would be done. Exit code 1 if it would be refused."""
    found = [(folder, receipt, find_obstacle(folder, receipt, op)) for folder, receipt in chosen]
    if as_json:
        rows = [
            {"skill": receipt.skill, "live": receipt.live, "changes": receipt.changes, "obstacles": obstacles}
            for _, receipt, obstacles in found
        ]
        print(to_json(rows).decode())
    else:
        for folder, receipt, obstacles in found:
            print_preview(folder, receipt, obstacles, read_base_diff(folder, receipt) if obstacles else "")
    return int(any(obstacles for _, _, obstacles in found))


def _print_done(receipt: Receipt, done: AdoptionReceipt, night: str, reviewed: str) -> None:
    print(f"{'adopted' if done.op == 'adopt' else 'reverted'}: {receipt.live}")
    for change in done.changes:
        print(f"  {make_printable(change)}")
    if done.note:
        print(f"  {done.note}")
    if done.op == "adopt":
        print(f"  to take it back: ludus adopt {night} --revert{reviewed}")


COMMAND = Command(
    run,
    "ludus adopt latest --dry-run\nludus adopt latest\nludus adopt 2026-11-18 --revert",
    (
        make_argument(
            "night", metavar="NIGHT", help="a night: its name, its folder, or latest (see: ludus sleep --list)"
        ),
        make_argument("--nights", metavar="DIR", default=NIGHTS, help=f"the folder of nights; default: {NIGHTS}"),
        make_argument(
            "--skill", metavar="NAME", action="append", default=[], help="only this skill of the night; any number"
        ),
        make_argument("--dry-run", action="store_true", help="show what would change, and what stands against it"),
        make_argument("--revert", action="store_true", help="put back the skill as it was before"),
        make_argument("--reviewed", action="store_true", help="the skill as you have reviewed it (ludus review NIGHT)"),
        make_argument("--quiet", action="store_true", help="print nothing"),
        JSON,
    ),
    AdoptArguments,
)
