"""`ludus ctl`: look at a command that runs, and change it: pause, stop, more or fewer rollouts at a time."""

from pathlib import Path

from ludus.arguments import Arguments, make_argument
from ludus.command import JSON, Command
from ludus.command.terminal import make_printable
from ludus.control_client import (
    ControlRequest,
    PauseRequest,
    RequeueRequest,
    ResumeRequest,
    RunStatus,
    SetRequest,
    StatusRequest,
    StopRequest,
    ask_run,
)
from ludus.encoding import to_json
from ludus.errors import ConfigError
from ludus.watchdog import describe_phases

PLAIN: dict[str, ControlRequest] = {
    "status": StatusRequest(),
    "pause": PauseRequest(),
    "resume": ResumeRequest(),
    "stop": StopRequest(),
}
"""What takes no words of its own."""


class CtlArguments(Arguments):
    run: str
    action: str
    words: list[str]


def run(arguments: CtlArguments) -> int:
    reply = ask_run(Path(arguments.run), make_request(arguments.action, arguments.words))
    if arguments.json:
        print(to_json(reply).decode())
        return 0 if reply.ok else 1
    if reply.text:
        print(make_printable(reply.text))
    if reply.status is not None and arguments.action == "status":
        print(make_printable(describe_status(reply.status)))
    return 0 if reply.ok else 1


def make_request(action: str, words: list[str]) -> ControlRequest:
    """What is asked of a run. Raises `ConfigError` for words that do not fit."""
    if action in PLAIN:
        if words:
            raise ConfigError(f"ctl {action} takes no more words: leave out {words[0]!r}")
        return PLAIN[action]
    if action == "requeue":
        if not words:
            raise ConfigError("ctl requeue: which rollouts? Name tasks, as in: ludus ctl RUN requeue TASK TASK#2")
        return RequeueRequest(ids=tuple(words))
    name, _, value = words[0].partition("=") if len(words) == 1 else ("", "", "")
    if name != "concurrency" or not value.isdecimal() or not int(value):
        raise ConfigError("ctl set: what can be set is concurrency, a number above 0: ludus ctl RUN set concurrency=32")
    return SetRequest(concurrency=int(value))


def describe_status(status: RunStatus) -> str:
    """How a run goes, in a few lines."""
    state = "stopping" if status.stopping else "paused" if status.paused else "running"
    why = f": {status.reason}" if status.reason else ""
    done = f"{status.stored} of {status.planned}" if status.planned else f"{status.stored}"
    lost = sum(status.activity.lost.values())
    more = [f"{lost} of {status.activity.ended} without a score since it was opened"] if lost else []
    if status.requeued:
        more.append(f"{status.requeued} asked for again")
    return "\n".join(
        (
            f"{status.run}: {status.kind}, {state}{why} (process {status.pid})",
            "; ".join([f"{done} rollouts, {status.activity.running} under way, at most {status.concurrency}", *more]),
            describe_phases(status.activity),
        )
    )


COMMAND = Command(
    run,
    "ludus ctl runs/first status              # what runs, and what it waits for; --json for scripts\n"
    "ludus ctl runs/first pause               # finish what runs, start nothing new; then: resume\n"
    "ludus ctl runs/first set concurrency=32  # more or fewer rollouts at a time, from now on\n"
    "ludus ctl runs/first requeue TASK#2      # run again what failed; what has a score stays\n"
    "ludus ctl runs/first stop                # finish what runs and end: --resume goes on later",
    (
        make_argument("run", metavar="RUN", help="the directory of a run that runs on this machine"),
        make_argument(
            "action",
            metavar="ACTION",
            choices=(*PLAIN, "set", "requeue"),
            help="status, pause, resume, stop, set concurrency=N, or requeue TASK…",
        ),
        make_argument("words", metavar="WORD", nargs="*", help="concurrency=N, or the rollouts to run again"),
        JSON,
    ),
    CtlArguments,
)
