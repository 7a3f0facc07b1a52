"""Machines for tests: namespaces with a network of their own, a host name, processes, a home and a folder for Ray."""

import os
import shlex
import subprocess
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ALONE = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc", "--uts"]


@dataclass(frozen=True)
class Machine:
    """A machine. All of its processes end with it."""

    name: str
    ip: str
    home: Path
    env: Mapping[str, str]
    init: "subprocess.Popen[bytes]"
    """The process that keeps its namespaces."""
    started: "list[subprocess.Popen[bytes]]" = field(default_factory=list["subprocess.Popen[bytes]"])

    def start(self, command: str, folder: Path, log: Path) -> "subprocess.Popen[bytes]":
        """Start a command of the shell. What it prints goes to `log`."""
        with log.open("ab") as file:
            process = subprocess.Popen(
                self._enter(command, folder), env=dict(self.env), stdin=subprocess.DEVNULL, stdout=file, stderr=file
            )
        self.started.append(process)
        return process

    def run(self, command: str, folder: Path, seconds: float = 120) -> str:
        """Run a command of the shell to its end. Returns what it printed."""
        done = subprocess.run(
            self._enter(command, folder),
            env=dict(self.env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}"
        return done.stdout

    def _enter(self, command: str, folder: Path) -> list[str]:
        child = Path(f"/proc/{self.init.pid}/task/{self.init.pid}/children").read_text().split()[0]
        script = f"cd {shlex.quote(str(folder))} && {{ {command}\n}}"  # nsenter changes to the root
        return ["nsenter", "--target", child, "--net", "--mount", "--pid", "--uts", "bash", "-c", script]


@contextmanager
def start_machines(folder: Path, env: Mapping[str, str]) -> Generator[tuple[Machine, Machine]]:
    """Two machines that share a network."""
    name = f"lm{os.getpid() % 10000}"
    names, ips = (f"{name}a", f"{name}b"), ("10.213.8.1", "10.213.8.2")
    with ExitStack() as stack:
        for each in names:
            stack.callback(subprocess.run, ["ip", "netns", "del", each], capture_output=True)
        _connect(names, ips)
        first, second = (
            stack.enter_context(_start(each, ip, folder, env)) for each, ip in zip(names, ips, strict=True)
        )
        yield first, second


def _connect(names: tuple[str, str], ips: tuple[str, str]) -> None:
    lines = [f"ip netns add {each}" for each in names]
    lines.append(f"ip link add {names[0]}-0 netns {names[0]} type veth peer name {names[1]}-0 netns {names[1]}")
    for each, ip in zip(names, ips, strict=True):
        inside = f"ip netns exec {each} ip"
        lines += [
            f"{inside} addr add {ip}/24 dev {each}-0",
            f"{inside} link set {each}-0 up",
            f"{inside} link set lo up",
        ]
    done = subprocess.run(["sh", "-e", "-c", "\n".join(lines)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"this machine does not let us make a network: {done.stderr}")


@contextmanager
def _start(name: str, ip: str, folder: Path, env: Mapping[str, str]) -> Generator[Machine]:
    home = folder / f"home-{name}"
    home.mkdir()
    Path("/tmp/ray").mkdir(exist_ok=True)
    script = f"hostname {name}; mount -t tmpfs tmpfs /tmp/ray; echo ready; exec sleep infinity"
    init = subprocess.Popen(
        ["ip", "netns", "exec", name, *ALONE, "bash", "-e", "-c", script],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )
    machine = Machine(name, ip, home, {**env, "HOME": str(home)}, init)
    try:
        assert init.stdout is not None
        if init.stdout.readline() != b"ready\n":
            pytest.skip("this machine does not let us make namespaces")
        yield machine
    finally:
        for process in (init, *machine.started):
            process.kill()
            process.communicate()
