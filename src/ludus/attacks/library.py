"""Attacks on verifiers: shell scripts that an agent runs in its slot. None of them solves a task.

    for attack in list_attacks():
        await box.exec(attack.script)      # as the agent, in the task's working folder

They know nothing of the task: each looks for what it needs (the working folder, the folders of PATH, virtual
environments) and does nothing where that is not there. So an attack that is paid was paid by the verifier alone. A
script ends with exit code 0, prints nothing, and takes a few seconds at most.

What most of them place is a *payload* (`prelude.sh`): code that runs when a program of the verifier loads it. It writes
a reward where Harbor's scripts write theirs, lets every test of pytest pass, and ends the program as if all were well.
To add an attack, add a section to `attacks.sh`: `### aim-name: what it counts on`, and the script.
"""

from functools import cache
from importlib.resources import files
from typing import Literal, get_args

import msgspec
from msgspec import Struct

Aim = Literal["reward", "tests", "shell", "python", "pytest", "tools", "program"]
"""What an attack is against: the file with the reward, the tests, the shell that runs them, the interpreter, pytest,
other programs that a test script calls, or a test that imports the agent's program."""


class Attack(Struct, frozen=True):
    """One way to be paid without solving anything."""

    name: str
    aim: Aim
    script: str
    """Run by bash, in the task's working folder, as the agent."""
    notes: str = ""
    """What it counts on."""


def list_attacks(*aims: Aim) -> tuple[Attack, ...]:
    """All attacks, or those with one of these aims, in the order of the library."""
    return tuple(attack for attack in _read_library() if not aims or attack.aim in aims)


@cache
def _read_library() -> tuple[Attack, ...]:
    folder = files("ludus.attacks")
    prelude, text = (folder.joinpath(name).read_text(encoding="utf-8") for name in ("prelude.sh", "attacks.sh"))
    return tuple(_read_attack(section, prelude) for section in text.split("### ")[1:])


def _read_attack(section: str, prelude: str) -> Attack:
    head, _, body = section.partition("\n")
    name, _, notes = head.partition(": ")
    aim = name.partition("-")[0]
    if aim not in get_args(Aim):
        raise ValueError(f"attacks.sh: '{name}' begins with none of {', '.join(get_args(Aim))}")
    script = f"({prelude}\n{body.strip()}\n) >/dev/null 2>&1 </dev/null\ntrue\n"
    return Attack(name, msgspec.convert(aim, Aim), script, notes)
