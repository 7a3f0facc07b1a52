"""Where the agent acts: the `Sandbox` protocol.

A sandbox ("box") is one slot: a place with a `/workspace`, a persistent shell and limits. Everything that an agent, a
`setup` or a `verify` does to files and processes goes through `exec`, in every backend alike: `read`, `write`, folders
and background processes are built on it in `sandbox.base`, so that a path is always resolved inside the slot and
a backend has one thing to get right.

A command's own failure is an `ExecResult`; a slot's failure is a `SandboxError` and never looks like output.
"""

from pathlib import Path
from typing import Protocol

from msgspec import Struct

WORKSPACE = "/workspace"
TRANSFER_BYTES = 512 * 2**20
"""How much one transfer may carry, unless told otherwise."""


class SandboxSpec(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a slot must be like. Equal specs share warm slots."""

    profile: str = ""
    """Which of the user's profiles (image, processors, GPUs …) it is made with; empty: the default one."""
    network: bool = False
    """Whether commands may reach the network."""
    memory_mb: int = 1024
    """What processes may use together, on top of what the slot's files take: those lie in memory too."""
    disk_mb: int = 256
    """What /workspace, /tmp and home may each hold."""
    processes: int = 256
    """How many processes and threads may live at once."""
    command_seconds: float = 120.0
    """The default time limit of one command."""
    output_bytes: int = 1_000_000
    """How much of stdout, and of stderr, is kept: the first and the last part; the middle is dropped."""
    base: tuple[str, ...] = ()
    """Folders of the host that /workspace starts with, the lowest first. Slots change their own view of them only.
    `Pool.snapshot` makes such a folder of what a slot has become."""
    caches: tuple[tuple[str, str], ...] = ()
    """Folders of the host and where slots see them, read-only: package and repository mirrors."""
    env: tuple[tuple[str, str], ...] = ()
    """Variables set in every command. Nothing else of the host's environment is passed on."""


class ExecResult(Struct, frozen=True):
    """What a command did. `exit_code` is 124 after a time-out and 128 + n after signal n."""

    stdout: bytes
    stderr: bytes
    exit_code: int
    timed_out: bool = False
    truncated: bool = False
    """Output passed `output_bytes`, so a part is missing."""
    seconds: float = 0.0
    id: str = ""
    """The execution's id: the one that was asked for, or one of its own."""

    @property
    def text(self) -> str:
        """Output as a person would see it: stdout, then stderr, undecodable bytes replaced."""
        return (self.stdout + self.stderr).decode(errors="replace")


class Sandbox(Protocol):
    @property
    def spec(self) -> SandboxSpec: ...

    def resolve(self, path: str) -> str:
        """The path as a command in the slot must write it. It differs from `path` only where a slot has no file system
        of its own (`local`)."""
        ...

    async def exec(
        self,
        command: str,
        *,
        timeout: float | None = None,
        stdin: bytes | None = None,
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        execution: str | None = None,
    ) -> ExecResult:
        """Run `command` in the slot's persistent bash: `cd`, variables and functions last until `settle`.

        With `stdin`, `env` or `cwd` it runs in a subshell, whose state does not last. Without `stdin` the command
        reads end-of-file. A command past its time limit is killed with all its children; the shell goes on. If the
        command ends the shell (`exit`, `exec`, a failure under `set -e`), or can only be stopped together with it, the
        next command finds a new one in the same folder, without the variables. Commands given at the same time run one
        after the other. With an id in `execution` it runs once: asked again under that id, the slot gives the result
        that it has, or waits for it; the last 64 are kept, until `settle`.

        Raises:
            SandboxError: the slot is gone or cannot run commands. Never for anything the command itself does.
            ValueError: `command` contains a NUL, or a name in `env` is not one.
        """
        ...

    async def read(self, path: str, *, max_bytes: int = 10_000_000) -> bytes:
        """A file's bytes; a relative path is below /workspace. Raises FileNotFoundError, IsADirectoryError,
        PermissionError, or ValueError when the file is larger than `max_bytes`."""
        ...

    async def write(self, path: str, data: bytes) -> None:
        """Create or replace a file, and its parent folders. Raises OSError (disk full, not permitted, …)."""
        ...

    async def upload(self, source: Path, target: str, *, max_bytes: int = TRANSFER_BYTES) -> None:
        """Copy a file of the host, or what a folder holds, to `target`; what is there stays, unless it has the same
        name. Links are copied as links. Raises OSError, `archive.TooLarge` among them."""
        ...

    async def download(self, source: str, target: Path, *, max_bytes: int = TRANSFER_BYTES) -> None:
        """Copy a file, or what a folder holds, to the host. Of a folder, links that point out of it, devices and pipes
        are left behind, and nothing is ever written outside `target`. Raises OSError, `archive.TooLarge` among them."""
        ...

    async def pack(self, path: str, *, max_bytes: int = TRANSFER_BYTES) -> bytes:
        """A file or folder as a tar archive, made in the slot: read it with `sandbox.archive`, as something hostile."""
        ...

    async def unpack(self, archive: bytes, path: str, *, replace: bool = False) -> None:
        """Lay an archive down in a folder of the slot, whose content is removed first if `replace` is set. Raises
        OSError."""
        ...

    async def start(self, command: str, *, cwd: str | None = None) -> str:
        """Start a background process; returns its id (`bg-1`, …) for `poll`, `log`, `send` and `kill`.

        It has the shell's folder and exported variables, and lives until it ends, `kill` or `settle`. Raises OSError
        if it cannot be started.
        """
        ...

    async def poll(self, process: str) -> int | None:
        """Exit code, or None while it runs. Raises KeyError for an unknown id."""
        ...

    async def log(self, process: str, *, max_bytes: int = 100_000) -> bytes:
        """The last `max_bytes` of what the process wrote to stdout and stderr."""
        ...

    async def send(self, process: str, data: bytes) -> None:
        """Write to the process's stdin, which never ends. Raises ProcessLookupError if the process has ended, and
        BlockingIOError if it does not read."""
        ...

    async def kill(self, process: str) -> None:
        """End a background process: politely, then not. Does nothing if it has ended."""
        ...

    async def settle(self) -> None:
        """Kill every process of the slot, background and daemonized ones included; start a fresh shell. Files stay."""
        ...

    async def reset(self) -> None:
        """Make the slot as it was at first: processes, files, /tmp, home and shared memory are gone."""
        ...

    async def close(self) -> None:
        """End the slot and everything in it. Safe to call twice, and from a cancelled task."""
        ...
