"""Where the agent acts: the `Sandbox` protocol.

A sandbox is one slot, called `box` in code: a `/workspace`, a persistent shell and limits. Everything that an agent, a
`setup` or a `verify` does to files and processes goes through `exec`, in every backend. `read`, `write`, folders and
background processes are built on it in `sandbox/shell_sandbox.py`. So a path is always resolved inside the slot, and a
backend has only one thing to implement.

The failure of a command is an `ExecResult`. The failure of a slot is a `SandboxError` and never looks like output.
"""

from pathlib import Path
from typing import Literal, Protocol

from msgspec import Struct

WORKSPACE = "/workspace"
TRANSFER_BYTES = 512 * 2**20
"""The default size limit of one transfer."""


ImageSupport = Literal["none", "host", "named", "any"]
"""Which images the slots of a backend can have. `host`: root file systems that are made on this host, as `ImageSpec`
says. `named`: those that the backend pulls by name. `any`: those that it pulls, or builds of a Dockerfile."""


class ImageSpec(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A root file system that a slot has instead of the backend's own, made once and shared by slots.

    In `Env.sandbox` it may be empty: slots have images, and `Env.slot` says which.
    """

    name: str = ""
    """The name of an image that is pulled, if there is no `folder`."""
    folder: str = ""
    """A folder with a `Dockerfile` and the files that it copies. The image is built of it."""
    engine: str = ""
    """For `bwrap`: the command of a container engine, `docker` or `podman`, that builds or pulls the image. Its files
    are then used as those of any other. Empty: the Dockerfile is replayed in a slot."""
    bases: tuple[tuple[str, str], ...] = ()
    """For `bwrap`: what names after `FROM` mean where there is no engine: folders of the host with a root file system,
    or `host`, the programs of this machine, read-only."""
    cache: str = ""
    """For `bwrap`: the folder where root file systems are kept."""
    seconds: float = 1800.0
    """How long the image may take to make."""


class SandboxSpec(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The requirements of a slot. Equal specs share warm slots."""

    profile: str = ""
    """The user's profile (image, processors, GPUs …) that it is made with; empty: the default one."""
    network: bool = False
    """Whether commands may reach the network."""
    memory_mb: int = 1024
    """Memory of all processes together. The slot's files are in memory too and have room of their own: a slot may use
    this and three times `disk_mb`, and processes may use what its files leave free."""
    disk_mb: int = 256
    """How much /workspace, /tmp and home may each hold."""
    processes: int = 256
    """How many processes and threads may exist at once."""
    command_seconds: float = 120.0
    """The default time limit of one command."""
    output_bytes: int = 1_000_000
    """How much of stdout, and of stderr, is kept. Of longer output the middle is dropped."""
    base: tuple[str, ...] = ()
    """Folders of the host that /workspace starts with, the lowest first. A slot changes only its own view of them.
    `Pool.snapshot` saves the workspace of a slot as such a folder."""
    caches: tuple[tuple[str, str], ...] = ()
    """Folders of the host, and where slots see them, read-only: for package and repository mirrors."""
    folders: tuple[str, ...] = ()
    """Further folders that the slot may write to, such as `/data`: its own, empty at first, and counted as home. Slots
    without a mount namespace (`local`, `trusted`) do not have them."""
    image: ImageSpec | None = None
    """The slot's own root file system, for tasks with absolute paths. Its user is then root in it and may change every
    file in its own view, /workspace stands for the image's working folder, and `disk_mb` is for all files together.
    Which backends have such slots: `Backend.get_image_support`."""
    env: tuple[tuple[str, str], ...] = ()
    """Variables of every command. No other variables of the host are passed on."""


class ExecResult(Struct, frozen=True):
    """The result of a command. `exit_code` is 124 after a time-out and 128 + n after signal n."""

    stdout: bytes
    stderr: bytes
    exit_code: int
    timed_out: bool = False
    truncated: bool = False
    """The output was longer than `output_bytes`, so a part is missing."""
    seconds: float = 0.0
    id: str = ""
    """The execution's id: the one that the caller gave, or a generated one."""

    @property
    def text(self) -> str:
        """The output as text: stdout, then stderr. Bytes that cannot be decoded are replaced."""
        return (self.stdout + self.stderr).decode(errors="replace")


class Sandbox(Protocol):
    """One slot."""

    @property
    def spec(self) -> SandboxSpec: ...

    def resolve(self, path: str) -> str:
        """The path as a command in the slot must write it. It differs from `path` only in slots that have no file
        system of their own (`local`)."""
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
        """Run `command` in the slot's persistent bash. `cd`, variables and functions last until `settle`.

        With `stdin`, `env` or `cwd` it runs in a subshell, whose state does not last. Without `stdin` the command
        reads end-of-file. A command that exceeds its time limit is killed with all its children, and what follows in
        its line is not started; after a single command the shell goes on. If the command ends the shell (`exit`,
        `exec`, a failure under `set -e`), or can only be stopped together with it (a line of several commands), the
        next command gets a new shell in the same folder, without the variables. Concurrent commands run one after the
        other. A command with an id in `execution` runs once: a second call with that id returns the same result, or
        waits for it. The last 64 results are kept, until `settle`.

        Raises:
            SandboxError: the slot is gone or cannot run commands. Never for what the command itself does.
            ValueError: `command` contains a NUL, or a name in `env` is not a valid one.
        """
        ...

    async def read(self, path: str, *, max_bytes: int = 10_000_000) -> bytes:
        """The bytes of a file. A relative path is below /workspace. Raises FileNotFoundError, IsADirectoryError,
        PermissionError, or ValueError if the file is larger than `max_bytes`."""
        ...

    async def write(self, path: str, data: bytes) -> None:
        """Create or replace a file, and its parent folders. Raises OSError (disk full, not permitted, …)."""
        ...

    async def upload(self, source: Path, target: str, *, max_bytes: int = TRANSFER_BYTES) -> None:
        """Copy a file or the content of a folder of the host to `target`. Files that are there stay, unless one of the
        same name is copied. Links are copied as links. Raises OSError, and `archive.ArchiveTooLarge`, which is one."""
        ...

    async def download(self, source: str, target: Path, *, max_bytes: int = TRANSFER_BYTES) -> None:
        """Copy a file or the content of a folder to the host. Links that point out of the folder, devices and pipes are
        left out, and nothing is written outside `target`. Raises OSError, and `archive.ArchiveTooLarge`, which is
        one."""
        ...

    async def pack(self, path: str, *, max_bytes: int = TRANSFER_BYTES) -> bytes:
        """A file or folder as a tar archive. The slot makes it, so do not trust it: read it with `sandbox.archive`."""
        ...

    async def unpack(self, archive: bytes, path: str, *, replace: bool = False) -> None:
        """Unpack an archive into a folder of the slot. With `replace`, the folder's content is removed first. Raises
        OSError."""
        ...

    async def start(self, command: str, *, cwd: str | None = None) -> str:
        """Start a background process. Returns its id (`bg-1`, …) for `poll`, `log`, `send` and `kill`.

        It has the shell's folder and exported variables, and runs until it ends or until `kill` or `settle`. Raises
        OSError if it cannot be started.
        """
        ...

    async def poll(self, process: str) -> int | None:
        """The exit code, or None while it runs. Raises KeyError for an unknown id."""
        ...

    async def log(self, process: str, *, max_bytes: int = 100_000) -> bytes:
        """The last `max_bytes` of what the process wrote to stdout and stderr."""
        ...

    async def send(self, process: str, data: bytes) -> None:
        """Write to the process's stdin, which stays open. Raises ProcessLookupError if the process has ended, and
        BlockingIOError if it does not read."""
        ...

    async def kill(self, process: str) -> None:
        """End a background process: first with SIGTERM, then with SIGKILL. Does nothing if it has ended."""
        ...

    async def settle(self) -> None:
        """Kill every process of the slot, background and daemonized ones too, and start a fresh shell. Files stay."""
        ...

    async def reset(self) -> None:
        """Return the slot to its first state: processes, files, /tmp, home and shared memory are gone."""
        ...

    async def close(self) -> None:
        """End the slot and all its processes. Safe to call twice, and from a cancelled task."""
        ...
