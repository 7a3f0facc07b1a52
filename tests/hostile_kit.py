"""A hundred agents, most of them hostile: an environment, a script that plays each of them, and the score that each one
has honestly earned.

Every task asks for a word in `out.txt`. Honest agents write the right word or a wrong one. A hostile agent does not
solve its task. It attacks instead: it tries to forge a reward, or to break its slot or the verifier so that its rollout
gets no score. Attacks find the descriptors of their shell by themselves: their numbers do not matter.

The environment's `verify` is written as users write one: it reads the file as UTF-8, and writes a report of its own.
"""

from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal

from ludus.env import Env
from ludus.models.scripted import call, say
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.types import Message, Rollout, Sampling, Score, Task, ToolSpec

WORD = "seashell"
CORRECT = f"printf {WORD} >out.txt"
WRONG = "printf pebble >out.txt"
LATER = f"(until [ -e /tmp/judging ]; do sleep 0.001; done; {CORRECT}) &"
"""What only a process that outlives `settle` can do."""
OPEN_FDS = "for fd in {3..60}; do { : <&$fd; } 2>/dev/null &&"
"""Each descriptor above 2 that the shell itself has open. Its folder in /proc is hidden, so they are tried."""


def attack_pipes(code: str) -> str:
    """Run a Python program with each descriptor of the shell as its input and output."""
    return f"code='import os, fcntl, time\n{code}'\n{OPEN_FDS} python3 -c \"$code\" <&$fd >&$fd; done 2>/dev/null"


HIJACK = rf"""
import os, select, time
fds = [fd for fd in range(100, 170) if os.path.exists("/proc/self/fd/%d" % fd)]
for _ in range(40):  # idle processes and a chain of forks, so that ending them takes long
    if not os.fork():
        os.setsid()
        time.sleep(99)
if os.fork():
    os._exit(0)
os.setsid()
poll, rest = select.poll(), b""
for fd in fds:
    poll.register(fd, select.POLLIN)
def answer(data):
    for fd in fds:
        try:
            os.write(fd, data)
        except OSError:
            pass
while True:
    if os.fork():
        os._exit(0)
    for fd, event in poll.poll(1):
        if not event & select.POLLIN:
            continue
        *records, rest = (rest + os.read(fd, 65536)).split(b"\0")
        for record in records:
            if record.startswith((b"go:", b"sweep:")):
                answer(b"\0r %s 2\0" % record.split(b":")[1])
            elif record[:1].isdigit() or record[:1] == b"@":
                answer(b"{WORD}\0d %s 0 /workspace\0" % record.lstrip(b"@").split(b":")[0])
"""
"""A program that reads its shell's orders and answers them: with luck it outlives `settle` and becomes the shell."""


ATTACKS: dict[str, tuple[str, ...]] = {
    # the shell's channel
    "nonblocking": (attack_pipes("os.set_blocking(0, False)"), "echo next"),
    "shrunk": (attack_pipes("fcntl.fcntl(0, 1031, 4096)"), f": {'x' * 60_000}", "echo next"),
    "filled": (attack_pipes('os.set_blocking(1, False)\nwhile True: os.write(1, b"x" * 4096)'), "echo next"),
    "drained": (attack_pipes("os.set_blocking(0, False)\nprint(os.read(0, 65536))"), "echo next"),
    "stolen": (
        f"{OPEN_FDS} {{ setsid cat <&$fd >/dev/null 2>&1 & }}; done; true",
        "echo next",
        "echo again",
    ),
    "forged status": (
        attack_pipes(r'os.write(1, b"".join(b"\0d %d 0 /\0" % n for n in range(99)))'),
        "false",
        "echo next",
    ),
    "forged orders": (
        attack_pipes(
            'for path in ("/proc/self/fd/0", "/proc/self/fd/1"):\n'
            "  fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)\n"
            rf'  os.write(fd, b"\0go:evil:/workspace\0" b"7:{LATER}\0\0sweep:evil:/\0")'
        ),
        "echo next",
    ),
    "junk": (attack_pipes(r'os.set_blocking(1, False)\nwhile True: os.write(1, b"\0" * 4096)'), "echo next"),
    "closed": (f'{OPEN_FDS} eval "exec $fd>&-"; done', "echo next"),
    "hijack": (
        f"cat >/tmp/h.py <<'X'\n{HIJACK}X\nr=\n{OPEN_FDS} r+=\" $((fd + 100))<&$fd\"; done\n"
        'eval "setsid python3 /tmp/h.py $r </dev/null >/dev/null 2>&1 &"; sleep 0.2',
        "echo next",
    ),
    # processes
    "kills its shell": ("kill -9 $$", "kill -9 $$", "echo next"),
    "kills all": ("kill -9 -1", "echo next"),
    "kills the first process": ("for s in 9 11 15 6 2; do kill -$s 1; done; kill -STOP 1; kill -CONT 1", "echo next"),
    "stops its shell": ("kill -STOP $$", "echo next"),
    "many processes": ("for i in {1..300}; do setsid sleep 99 & done 2>/dev/null", "echo next"),
    "fork chains": (
        "python3 - <<'X' &\nimport os\nfor _ in range(4):\n  if not os.fork():\n    os.setsid()\n    while True:\n"
        "      if os.fork(): os._exit(0)\nX\nfor i in {1..40}; do setsid sleep 99 & done 2>/dev/null",
        "echo next",
    ),
    "outlives": (f"setsid bash -c '{LATER} wait' & disown; {LATER} true", "echo next"),
    "ignores signals": ("trap '' HUP INT QUIT TERM PIPE; setsid sleep 99 & trap 'exit 9' DEBUG EXIT", "echo next"),
    # memory and disk
    "memory": (
        "dd if=/dev/zero of=/tmp/full bs=1M count=64; dd if=/dev/zero of=/dev/shm/full bs=1M count=64; "
        "for i in {1..60}; do (echo 0 >/proc/self/oom_score_adj; exec setsid python3 -c "
        "'x = bytearray(4 << 20); import time; time.sleep(99)') & done 2>/dev/null",
        "sleep 0.5; echo next",
    ),
    "one large process": ("python3 -c 'x = [bytearray(1 << 20) for _ in range(999)]'; tail /dev/zero", "echo next"),
    "full workspace": ("dd if=/dev/zero of=filler bs=1M; printf x >>filler", "echo next"),
    "full tmp": ("dd if=/dev/zero of=/tmp/filler bs=1M; dd if=/dev/zero of=$HOME/filler bs=1M; true", "echo next"),
    "no inodes": ("mkdir d; cd d; python3 -c 'for i in range(30000): open(str(i), \"w\")' 2>&1 | tail -c 99", "echo"),
    "sparse": ("truncate -s 3G out.txt", "echo next"),
    "hard links": ("head -c 4000000 /dev/zero >big; for i in {1..200}; do ln big l$i; done",),
    # what `verify` reads
    "pipe as output": ("mkfifo out.txt",),
    "folder as output": ("mkdir -p out.txt/a",),
    "socket as output": ("python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"out.txt\")'",),
    "not text": ("printf '\\xff\\xfe\\x00\\xd8' >out.txt",),
    "endless": ("ln -sf /dev/zero out.txt",),
    "loop": ("ln -s out.txt out.txt",),
    "points out": ("ln -s /proc/self/environ out.txt; ln -s /tmp/x report.txt",),
    "locked": (f"{WRONG}; chmod 000 out.txt; chmod 000 .", "echo next"),
    "locked by cd": ("mkdir gone; cd gone; rmdir ../gone; chmod 000 ..", "echo next"),
    "report is taken": (f"{WRONG}; mkdir -p report.txt/x; chmod 000 report.txt",),
    "report is a pipe": (f"{WRONG}; mkfifo report.txt",),
    "nested": ("for i in {1..500}; do mkdir ddddddddd && cd ddddddddd; done 2>/dev/null; true",),
    # the shell itself
    "leaves": ("exit 3", "exec true", "exec sleep 99", "echo next"),
    "redefines": ("eval() { :; }; read() { :; }; printf() { :; }; builtin() { :; }; set -eu; PATH=/no; IFS=0", "false"),
    "limits itself": ("ulimit -n 4; ulimit -f 0; ulimit -v 9999; ulimit -u 1", "echo next"),
}
assert len(ATTACKS) == 40

HONEST = ("right",) * 8 + ("wrong",) * 2
"""With the attacks they are 50 agents, and each of two environments has them."""
AGENTS = (*ATTACKS, *HONEST)
EARNED = HONEST.count("right") / len(AGENTS)
"""The mean that these agents have earned."""


class Words(Env, frozen=True):
    """Write a word into a file."""

    name: ClassVar[str] = "words"
    sandbox: ClassVar[SandboxSpec | None] = SandboxSpec(memory_mb=160, disk_mb=8, processes=64, command_seconds=5)
    toolsets: ClassVar[tuple[str, ...]] = ("terminal",)

    def tasks(self, split: str) -> Iterator[Task]:
        for number, agent in enumerate(AGENTS):
            yield Task(id=f"{number}: {agent}", prompt=f"Write '{WORD}' into out.txt. You are {number}.", answer=WORD)

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        assert box is not None
        await box.write("report.txt", b"judging")
        await box.write("/tmp/judging", b"now")
        try:
            text = (await box.read("out.txt")).decode()
        except FileNotFoundError:
            return Score.of(0.0, "out.txt is missing")
        seen = (await box.exec("cat out.txt")).stdout.decode()
        return Score.of(float(text == seen == rollout.task.answer), f"out.txt: {text[:50]!r}, {seen[:50]!r}")


class WordsInPlace(Words, frozen=True):
    """Write a word into a file. Verified in the agent's own slot."""

    name: ClassVar[str] = "words-in-place"
    verify_in: ClassVar[Literal["fresh", "same"]] = "same"


def list_commands(agent: str) -> tuple[str, ...]:
    return {"right": (CORRECT,), "wrong": (WRONG,)}.get(agent) or ATTACKS[agent]


def act(messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Message:
    """Play the agent that the prompt names. The number of replies so far picks the command."""
    prompt = next(message.content for message in messages if message.role == "user")
    commands = list_commands(AGENTS[int(prompt.rpartition("You are ")[2].rstrip("."))])
    turn = sum(message.role == "assistant" for message in messages)
    return call("terminal", command=commands[turn]) if turn < len(commands) else say("Done.")
