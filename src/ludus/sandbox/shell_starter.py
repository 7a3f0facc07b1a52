"""What `SlotShell` needs of a backend: to start a shell in the slot, and to end every process of the slot.

    keeper        keeps the slot's namespaces; runs no code of the agent and takes no orders
    init          the first process of the pid namespace in which the agent lives; takes no orders either
    └─ shell      runs the agent's commands; each one has four new pipes

Each shell has pipes of its own. When it ends, or is replaced, the driver closes its ends: what was queued in them or
still holds them can no longer give orders or answers. A slot's end of a pipe is only ever inherited by that one shell
and by what it starts. Processes end by the kernel's rule (the end of a pid namespace, or a kill by user until none is
left), never by an order that a process of the slot would have to read.

The shell has its descriptors at fixed numbers: 0, 1 and 2 are /dev/null, then those of `SHELL_FDS`. The starter runs
`bash --norc --noprofile -c INNER bash IO FOLDER HOME`, where INNER is `slot_scripts/inner.sh` on one line. What goes
wrong before that is written to the shell's stderr, and the process exits with code 125.
"""

import asyncio
from typing import NamedTuple, Protocol


class ShellEnds(NamedTuple):
    """The slot's ends of the pipes of one shell. `SlotShell` closes them once `start_shell` has returned."""

    command: int
    status: int
    stdout: int
    stderr: int


SHELL_FDS = ShellEnds(3, 4, 5, 6)
"""The descriptors in the shell."""


class ShellProcess(NamedTuple):
    """A shell that was started."""

    pid: int
    """Its pid as this process sees it. Valid until `exited` is done."""
    exited: "asyncio.Future[int]"
    """Its exit code; 128 + n after signal n. Done soon after its end, even if other processes still hold its pipes."""


class ShellStarter(Protocol):
    """The processes of one slot, from outside. Calls do not overlap: `SlotShell` makes one at a time."""

    async def start_shell(self, ends: ShellEnds, folder: bytes) -> ShellProcess:
        """Start a shell in `folder` of the slot, or in the slot's home if it cannot enter that.

        Earlier shells may still have background processes: they stay alive. Works again after a shell has exited and
        after `end_processes`, also when the agent's processes have ended the init.

        Raises:
            SandboxError: the slot is gone, with `evidence.outside`; or its processes keep a shell from starting.
        """
        ...

    async def end_processes(self) -> None:
        """Kill every process of the slot that runs or was started by code of the agent, all shells included.

        Returns when it is proved from outside that none is left. Runs nothing on the event loop whose cost depends on
        their number.

        Raises:
            SandboxError: they could not be ended in time. The slot is then dead.
        """
        ...
