"""What hostile agents do to a slot: programs for `exec`, and what must be true of the slot afterwards.

The programs run in the slot's shell. They need bash and python3 there.
"""

import pytest
from tests.sandbox_kit import OURS

from ludus.sandbox import Sandbox

NAME = f"attack-{OURS}.py"
"""The file of an attack. Some slots see the processes of the host, and attacks on other slots are among them."""

WITH_CONTROL = r"""
with_control() {
    for n in {3..40} 253 254 255; do
        if { eval ": 9<&$n"; } && { eval ": 9<&$((n + 1))"; } && { eval ": 9<&$((n + 2))"; }; then
            turns=$((turns + 1))
            eval "TURN=$turns \"\$@\" 0<&$n 1<&$((n + 1)) 2<&$((n + 2))"
        fi
    done
}
"""
"""Defines `with_control COMMAND`. It runs the command several times, with three descriptors of the shell each time.
While the shell runs a command, its own channel is among them. bash gives no program more than three of these."""

HIJACK = r"""
import fcntl, os, re, select, signal, sys, time
chains, idle = map(int, sys.argv[1:]) if os.environ["TURN"] == "1" else (0, 0)
own = [(fd, fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE) for fd in (0, 1, 2)]
readers = [fd for fd, mode in own if mode != os.O_WRONLY]
writers = [fd for fd, mode in own if mode != os.O_RDONLY]
for fd in readers:
    os.set_blocking(fd, False)

def put(data):
    for fd in writers:
        try:
            os.write(fd, data)
        except OSError:
            pass

def answer():
    # Take orders and commands from whoever gives them, and answer each as the shell would.
    buffers = {fd: b"" for fd in readers}
    while True:
        for fd in readers:
            try:
                buffers[fd] += os.read(fd, 65536)
            except OSError:
                continue
            *records, buffers[fd] = buffers[fd].split(b"\0")
            for record in records:
                order = re.match(rb"(?:go|sweep):([^:]*):", record)
                command = re.match(rb"@?([0-9]+)", record)
                if order:
                    put(b"\0r %b %d\0" % (order[1], os.getpid()))
                elif command:
                    put(b"forged\n\0d %b 0 /workspace\0" % command[1])
        time.sleep(0.0005)

def flee():
    while True:
        if os.fork():
            os._exit(0)

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
    signal.signal(number, signal.SIG_IGN)
for work, count in ((time.sleep, idle), (flee, chains), (answer, 1)):
    for _ in range(count):
        if os.fork() == 0:
            os.setsid()
            work(*((626.5,) if work is time.sleep else ()))
"""
"""Idle processes, chains of forks that never rest, and processes that answer on the shell's channel."""

QUEUE_ORDERS = r"""
import os, sys
for number in (0, 1, 2):
    try:
        fd = os.open(f"/proc/self/fd/{number}", os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        continue
    for sequence in range(1, 40):
        try:
            os.write(fd, b"\0go:evil:/workspace\0%d:echo forged\0\0d %d 0 /workspace\0" % (sequence, sequence))
        except OSError:
            break
"""
"""Reopens the shell's pipes for writing, as an owner of them may, and queues orders and answers in them."""

JAM = r"""
import fcntl, os, sys
for number in (0, 1, 2):
    os.set_blocking(number, False)
    try:
        fcntl.fcntl(number, 1031, 4096)
    except OSError:
        pass
    try:
        writing = os.open(f"/proc/self/fd/{number}", os.O_WRONLY | os.O_NONBLOCK)
        while True:
            os.write(writing, b"x" * 4096)
    except OSError:
        pass
"""
"""Makes the shell's pipes non-blocking and as small as possible, and fills them."""

FLOOD_STATUS = r"""
import os, signal, stat, sys
if os.fork() == 0:
    os.setsid()
    for number in (0, 1, 2):
        if os.fork() == 0 and stat.S_ISFIFO(os.fstat(number).st_mode):
            progress = open(f"{sys.argv[1]}/flood-{os.environ['TURN']}-{number}", "w", buffering=1)
            for count in range(1_000_000_000):
                os.write(number, bytes(4096))
                print(count, file=progress)
"""
"""Writes NULs to every pipe of the shell, as long as somebody takes them."""

EXHAUST_MEMORY = r"""
import os, signal, time
try:
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("0")
except OSError:
    pass
for _ in range(235):
    if os.fork() == 0:
        kept = b"x" * 8_000_000
        signal.pause()
time.sleep(5)
"""
"""Many processes of middling size, each as worthy to live as the kernel lets it claim."""

DEEP_FOLDERS = r"""
import os
for _ in range(3000):
    os.mkdir("d")
    os.chdir("d")
os.chmod(".", 0)
"""

FILL_DISKS = r"""
for place in /workspace ${TMPDIR:-/tmp} ~ .; do
    (cd "$place" && for i in {1..40}; do head -c 4000000 /dev/zero >fill-$i || break; done) 2>/dev/null
done
for place in /workspace ${TMPDIR:-/tmp} ~ .; do
    (cd "$place" && for i in {1..200}; do : >tiny-$i || break; done) 2>/dev/null
done
true
"""

BLOCK_FOLDERS = "mkfifo out.txt; chmod 000 /workspace ~ . 2>/dev/null; true"


async def run_attack(
    box: Sandbox, program: str, *arguments: object, seconds: float = 10.0, folder: str = "${TMPDIR:-/tmp}"
) -> None:
    """Run a Python program in the slot's shell, with the shell's own descriptors. What becomes of it is its affair."""
    words = " ".join(map(str, arguments))
    await box.exec("PATH=/usr/bin:/bin:$PATH")  # a wrapper in another place may need the home of the tests' user
    if (await box.exec("python3 -c 0")).exit_code != 0:
        pytest.skip("the slot has no Python that its user may run")
    await box.exec(f"cat >{folder}/{NAME} <<'END'\n{program}\nEND")
    await box.exec(f"{WITH_CONTROL}\nwith_control python3 {folder}/{NAME} {words}", timeout=seconds)


async def check_honest(box: Sandbox) -> None:
    """Settle the slot. Then its shell must answer by itself, and nothing of the agent may run."""
    await box.settle()
    for word in ("honest", "true"):
        result = await box.exec(f"echo {word}")
        assert (result.stdout, result.stderr, result.exit_code) == (f"{word}\n".encode(), b"", 0)
    assert (await box.exec("exit 9")).exit_code == 9
    assert (await box.exec(f"pgrep -f '[{NAME[0]}]{NAME[1:]}' || echo none")).stdout == b"none\n"
    other = await box.exec("echo $((6 * 7)) && sleep 0.2 && cat", stdin=b"input")
    assert other.stdout == b"42\ninput"
