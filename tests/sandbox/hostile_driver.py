"""A driver that runs attacks on the shell of a slot, each in a slot of its own, and prints what came of them as JSON.

    python hostile_driver.py BACKEND     # run by test_hostile_shell.py, as root and as an ordinary user

Every attack is a command of the agent. It may make its own commands fail or lie, but not more: the slot must go on, and
after `settle` none of its processes may be left and answers must be true. The attacks know the orders of the supervisor
that slots once had, so that they succeed where one is left.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

from ludus.errors import SandboxError
from ludus.sandbox import SandboxSpec
from ludus.sandbox.pool import PoolSettings
from ludus.sandbox.profiles import open_pool

MARK = f"evil-{os.getpid()}"
"""Part of the command line of each hostile process."""
SPEC = SandboxSpec(memory_mb=128, disk_mb=32, processes=256, command_seconds=30)
HONEST = 'echo "$((6 * 7)) $MARK"; echo err >&2; (exit 5)'

PRELUDE = r"""
import fcntl, os, select, stat, sys, time
fds = [fd for fd in range(3) if stat.S_ISFIFO(os.fstat(fd).st_mode)]
def each(work):
    for fd in fds:
        try:
            work(fd)
        except OSError:
            pass
def leave():
    if os.fork():
        os._exit(0)
    os.setsid()
def idle(count):
    for _ in range(count):
        if not os.fork():
            os.setsid()
            time.sleep(900)
            os._exit(0)
def chain(count, work):
    "Processes that each fork a successor and exit, so that none is seen twice."
    for _ in range(count):
        if not os.fork():
            os.setsid()
            while True:
                if os.fork():
                    os._exit(0)
                work()
def answer():
    "Answer every command and every order that can be read within a millisecond."
    if not select.select([0], [], [], 0.001)[0]:
        return
    for record in os.read(0, 65536).split(b"\0"):
        if record.startswith((b"go:", b"sweep:")):
            os.write(1, b"\0r %b %d\0" % (record.split(b":")[1], os.getpid()))
        elif record[:1].isdigit() or record[:1] == b"@":
            os.write(2, b"forged\n")
            os.write(1, b"\0d %b 0 /\0" % record.strip(b"@").split(b":")[0])
sequence = int(sys.argv[2])
with open(sys.argv[0] + ".armed", "w") as file:
    file.write(str(len(fds)))
"""
HAND_OVER = "python3 {script} {mark} $_ludus_seq 0<&13 1>&14 2>&15"
"""Runs a program that has the pipes of commands, status and output, where bash saves them while it runs a command."""

SURVIVORS = {
    "the shell's pipes are handed to a process that outlives the command": """
leave()
while True:
    answer()
""",
    "fork chains and idle processes hide a process that answers": """
leave()
idle(180)
chain(3, answer)
""",
    "orders are queued through /proc/self/fd": """
if len(sys.argv) > 3:
    while True:
        answer()
try:
    with open("/proc/self/fd/0", "wb", buffering=0) as pipe:
        again = "exec python3 %s %s 0 again 0<&13 1>&14 2>&15" % tuple(sys.argv[:2])
        pipe.write(b"\\0go:evil:/tmp\\0" + b"9:%b\\0" % again.encode())
except PermissionError:  # the pipes belong to root
    pass
os.write(1, b"\\0d %d 0 /\\0" % sequence)
time.sleep(900)
""",
}
"""Attacks that try to outlive `settle`. They leave the slot in order until then."""
BREAKERS = {
    "the pipes are made non-blocking": "each(lambda fd: os.set_blocking(fd, False))",
    "the pipes are shrunk and commands are left unread": """
each(lambda fd: fcntl.fcntl(fd, 1031, 4096))
end = time.monotonic() + 5
while time.monotonic() < end:
    for n in range(sequence, sequence + 60):
        each(lambda fd: os.write(fd, b"\\0d %d 0 /\\0" % n))
    time.sleep(0.005)
""",
    "the status pipe is flooded with NULs": """
leave()
chain(1, lambda: None)
each(lambda fd: os.set_blocking(fd, False))
end = time.monotonic() + 5
while time.monotonic() < end:
    each(lambda fd: os.write(fd, b"\\0" * 4096))
""",
    "the pipes are read empty by somebody else": """
leave()
each(lambda fd: os.set_blocking(fd, False))
end = time.monotonic() + 5
while time.monotonic() < end:
    each(lambda fd: os.read(fd, 65536))
    time.sleep(0.0001)
""",
    "processes and files take all of the memory": """
import subprocess
for folder in ("/workspace", "/tmp", "/home/agent", "/dev/shm"):
    for n in range(200):
        try:
            with open("%s/full%d" % (folder, n), "wb") as file:
                file.write(b"x" * 1000000)
        except OSError:
            break
leave()
hold = []
for _ in range(200):
    try:
        if not os.fork():
            os.setsid()
            hold.append(b"y" * 4000000)
            time.sleep(900)
    except OSError:
        time.sleep(0.01)
time.sleep(900)
""",
}
"""Attacks that try to break the slot."""
PIPE_ATTACKS = {**SURVIVORS, **BREAKERS}
SHELL_ATTACKS = {
    "the shell closes its pipes": 'for fd in {3..60}; do eval "exec $fd>&-"; done 2>/dev/null',
    "the shell stops itself": "kill -STOP $$; sleep 900",
    "the shell waits for its own pipe": "while :; do read -r -t 0.1 -u 13 x; done 2>/dev/null",
    "a fork bomb": ":(){ :|:& }; :; sleep 900",
}


def find_marked() -> list[int]:
    """Find the hostile processes on the host."""
    found: list[int] = []
    for path in Path("/proc").glob("[1-9]*/cmdline"):
        try:
            if MARK.encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid()]


async def attack(pool, name: str) -> dict[str, object]:
    async with pool.lease(SPEC) as box:
        try:
            if name in PIPE_ATTACKS:
                script = box.resolve("/tmp/evil.py")
                await box.write(script, (PRELUDE + PIPE_ATTACKS[name]).encode())
                command = HAND_OVER.format(script=script, mark=MARK)
            else:
                command = SHELL_ATTACKS[name]
            await box.exec(command, timeout=3 if name in PIPE_ATTACKS else 1)  # the others never end
            for _ in () if name in SURVIVORS else range(12):  # what the agent may do next, whatever it answers
                await box.exec(f": {'x' * 400}", timeout=1)
            await box.settle()
            left = find_marked()
            armed = (await box.read("/tmp/evil.py.armed")).decode() if name in PIPE_ATTACKS else ""
            answers = [await box.exec(HONEST, timeout=20, env={"MARK": str(n)}) for n in range(3)]
            await box.settle()
            answers += [await box.exec(HONEST, timeout=20, env={"MARK": str(n)}) for n in range(3)]
        except SandboxError as error:
            return {"error": str(error)}
    true = [(a.stdout, a.stderr, a.exit_code) == (b"42 %d\n" % (n % 3), b"err\n", 5) for n, a in enumerate(answers)]
    return {
        "left": len(left),
        "answers": true,
        "armed": armed,
        "words": [str(a) for a, ok in zip(answers, true, strict=True) if not ok],
    }


async def main(backend: str, names: list[str]) -> None:
    found: dict[str, object] = {}
    async with open_pool(backend, PoolSettings(max_slots=2)) as pool:
        for name in names or [*PIPE_ATTACKS, *SHELL_ATTACKS]:
            found[name] = await attack(pool, name)
        async with pool.lease(SPEC) as box:
            found["a slot after all of them"] = {"left": 0, "answers": [(await box.exec("exit 3")).exit_code == 3]}
    found["nothing is left"] = {"left": len(find_marked()), "answers": [True]}
    print(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:]))
