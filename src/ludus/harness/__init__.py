"""Agents that we did not write, in place of our loop: a command-line program in a slot, and the gateway it talks to.

    rollout.run ──> act: open a gateway ──> open a door into the slot ──> run the command ──> close: the record
                              ^                                                 │
                              └──── 127.0.0.1:PORT in the slot <── model calls ─┘

A `Harness` says how one agent is started: its command, variables, files, and where it looks for skills. The agent acts
inside the slot with whatever tools it brings; the slot has no network but the door, behind which every model call is
answered by the policy's own model and recorded, exact ids included in token mode. So its rollouts are scored, stored
and trained on like any other: `turns_of` makes turns of the record.

Decisions. An agent that ends without having asked the model once did not run: that is a failure, not a zero, and so is
a model server that broke meanwhile. One that asked and then ended with an error (`crashed`), ran out of turns
(`max_turns`) or of time (`timeout`) did act: its work is judged, and how it ended is on the record (`Rollout.exit`).
The environment's own tools and toolsets are not offered: the agent brings its own.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct, field

from ludus.errors import BudgetExhausted, HarnessError, LudusError, ModelError, SandboxError, SetupError, boundary
from ludus.models import Model
from ludus.models.ledger import Budget
from ludus.sandbox import WORKSPACE, ExecResult, Sandbox, SandboxSpec
from ludus.sandbox.port.local_port import open_port
from ludus.settings import Settings
from ludus.types import Exit, JsonObject, Message, Sampling, StopReason, Turn

if TYPE_CHECKING:
    from ludus.gateway.gateway_session import SessionRecord

_OUTPUT_CHARS = 4_000
"""How much of the end of the program's output is kept."""
_KILLED = re.compile(rb"^\S*bash: line \d+: +\d+ Killed .*", re.MULTILINE | re.DOTALL)
_NOT_THERE = (126, 127)
"""Exit codes of a shell that found no program to run: trying again does not help."""


class Harness(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How an agent is started. In `command` and `env`, `{prompt}`, `{model}`, `{url}` (for OpenAI's clients),
    `{anthropic_url}`, `{key}` and `{workspace}` are replaced; any other braces stay as they are."""

    name: str
    command: str
    """Run by bash in /workspace. What is asked is on its standard input; in the command, fields are quoted."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    """Text files to write before the start, by path; `~/` is the slot's home."""
    skills: str = ""
    """The folder in which the agent looks for skills, such as `~/.claude/skills`; empty if it looks nowhere."""
    model: str = ""
    """The model's name as the agent is told; empty: its real name."""
    mounts: tuple[tuple[str, str], ...] = ()
    """Folders of the host and where the slot sees them, read-only: what is installed of the agent."""
    version: str = ""
    """Of what is installed, where that is known."""

    @property
    def identity(self) -> "Harness":
        """What decides how it acts: where it lies on this host does not."""
        return msgspec.structs.replace(self, mounts=())

    @property
    def label(self) -> str:
        return f"{self.name}@{self.version}" if self.version else self.name

    def extend_spec(self, spec: SandboxSpec) -> SandboxSpec:
        """The slot that the agent needs for tasks that want `spec`."""
        return msgspec.structs.replace(spec, caches=(*spec.caches, *self.mounts)) if self.mounts else spec


class HarnessSettings(Settings, frozen=True):
    """A command-line agent of your own, or changes to one that Ludus knows; what is null or not named stays as it is.
    In `command` and `env`, `{prompt}`, `{model}`, `{url}` (OpenAI's base URL), `{anthropic_url}`, `{key}` and
    `{workspace}` are replaced."""

    command: str | None = None
    """Run by bash in /workspace. The prompt is on its standard input."""
    env: dict[str, str] = field(default_factory=dict[str, str])
    """Variables, such as OPENAI_BASE_URL: "{url}" and OPENAI_API_KEY: "{key}"."""
    files: dict[str, str] = field(default_factory=dict[str, str])
    """Files to write before the start: path → text. `~/` is the slot's home."""
    skills: str | None = None
    """The folder in which the agent looks for skills, for `agent.skill_as: file`."""
    model: str | None = None
    """The model's name that the agent is given; null: its real name."""
    mounts: dict[str, str] = field(default_factory=dict[str, str])
    """Folders of this machine that the agent needs: folder here → its path in the slot, read-only."""


@dataclass(frozen=True)
class AgentResult:
    """What an agent did."""

    opening: tuple[Message, ...]
    """What the model was really asked first."""
    tools: tuple[str, ...]
    """What the agent offered to the model."""
    turns: tuple[Turn, ...]
    stop: StopReason
    exit: Exit | None
    error: LudusError | None
    """Why it does not count, if it does not."""
    details: JsonObject | None = None
    """What the agent returned besides its turns, for the environment's `verify`."""


async def run_harness(
    harness: Harness,
    model: Model,
    opening: Sequence[Message],
    box: Sandbox,
    *,
    sampling: Sampling,
    turns: int,
    seconds: float,
    name: str = "",
) -> AgentResult:
    """Run the agent once, until it ends or its time is over.

    Raises:
        SandboxError: the slot has no door.
        SetupError: the agent's files could not be written.
    """
    from ludus.gateway.service import Gateway  # a web server, which few runs need

    async with Gateway(model, host=None) as gateway, open_port(box, gateway.accept) as port:
        session = gateway.open(sampling=sampling, budget=Budget(calls=turns), name=name)
        base = session.make_base_url(f"http://127.0.0.1:{port}")
        fields = {
            "prompt": render_prompt(opening),
            "model": harness.model or model.name,
            "url": f"{base}/v1",
            "anthropic_url": base,
            "key": session.api_key,
            "workspace": WORKSPACE,
        }
        await _write_files(harness, box)
        ended = await _run_command(harness, fields, box, seconds)
        record = await gateway.close(session, grace=0.0)  # whoever asked is dead
        used_up = session.ledger is not None and session.ledger.total.calls >= turns
    return _sum_up(harness.name, record, _clean_result(session.secret, ended), used_up)


async def _run_command(
    harness: Harness, fields: Mapping[str, str], box: Sandbox, seconds: float
) -> ExecResult | SandboxError:
    """How the command ended. A slot that broke is no reason to lose what was said until then."""
    try:
        return await box.exec(
            fill_fields(harness.command, fields, quoted=True),
            timeout=seconds,
            stdin=fields["prompt"].encode(),
            env={variable: fill_fields(value, fields) for variable, value in harness.env.items()},
            cwd=WORKSPACE,
        )
    except SandboxError as error:
        return error


def _clean_result(secret: str, ended: ExecResult | SandboxError) -> ExecResult | SandboxError:
    """The result without the session's secret, which is of no use any more but has no place in a record, and without
    the shell's own words about a killed command, which repeat the command."""
    if isinstance(ended, SandboxError):
        return ended
    stderr = _KILLED.sub(b"", ended.stderr) if ended.timed_out else ended.stderr
    stdout, stderr = (part.replace(secret.encode(), b"SECRET") for part in (ended.stdout, stderr))
    return msgspec.structs.replace(ended, stdout=stdout, stderr=stderr)


def _sum_up(name: str, record: "SessionRecord", ended: ExecResult | SandboxError, used_up: bool) -> AgentResult:
    tools = tuple(tool.name for tool in record.exchanges[0].tools) if record.exchanges else ()
    if isinstance(ended, SandboxError):
        turns = make_turns(record, StopReason.FAILED)
        return AgentResult(record.opening, tools, turns, StopReason.FAILED, None, ended)
    stop = find_stop(record, ended)
    error = find_error(name, record, ended, used_up=used_up)
    exit = Exit(ended.exit_code, ended.text[-_OUTPUT_CHARS:])
    return AgentResult(record.opening, tools, make_turns(record, stop), stop, exit, error)


async def _write_files(harness: Harness, box: Sandbox) -> None:
    for path, text in harness.files.items():
        with boundary(SetupError, f"{harness.name}: {path} could not be written"):
            await box.write(await resolve_path(path, box), text.encode())


async def resolve_path(path: str, box: Sandbox) -> str:
    """A path with `~/` turned into the slot's home."""
    if not path.startswith("~/"):
        return path
    home = await box.exec('printf %s "$HOME"')
    return home.stdout.decode() + path[1:]


# ---- what the agent is told ---------------------------------------------------------------------------------------

_FIELD = re.compile(r"(?<!\$)\{(prompt|model|url|anthropic_url|key|workspace)\}")


def fill_fields(text: str, fields: Mapping[str, str], *, quoted: bool = False) -> str:
    """The text with its fields; `quoted`: each as one word of a shell."""
    return _FIELD.sub(lambda found: quote(fields[found[1]]) if quoted else fields[found[1]], text)


def render_prompt(opening: Sequence[Message]) -> str:
    """A conversation as one text, for programs that take one: system text, what was said before, what is asked now."""
    system = [message.content for message in opening if message.role == "system"]
    said = [message for message in opening if message.role != "system"]
    before = [line for message in said[:-1] for line in _render_message(message)]
    now = [message.content for message in said[-1:]]
    if before:
        before = ["This was said before:", *before, "This is asked now:"]
    return "\n\n".join(part for part in (*system, *before, *now) if part)


def _render_message(message: Message) -> list[str]:
    words = [f"{message.role}: {message.content}"] if message.content else []
    return words + [f"{message.role}: called {call.name} with {call.arguments}" for call in message.calls]


# ---- what became of it --------------------------------------------------------------------------------------------


def make_turns(record: "SessionRecord", stop: StopReason) -> tuple[Turn, ...]:
    """The replies as turns, each with what came back before the next one; the last one says why it was the last."""
    turns = list(record.make_turns())
    followed: set[int] = set()
    for number, exchange in enumerate(record.exchanges):
        # A conversation of its own, such as a sub-agent's, follows nothing: it began after the reply before it.
        before = number - 1 if exchange.follows is None else exchange.follows
        if before >= 0 and before not in followed:
            followed.add(before)
            heard = tuple(message for message in exchange.messages if message.role != "tool")
            turns[before] = msgspec.structs.replace(turns[before], notices=heard)
    if turns:
        turns[-1] = msgspec.structs.replace(turns[-1], stop=stop)
    return tuple(turns)


def find_stop(record: "SessionRecord", result: ExecResult) -> StopReason:
    if result.timed_out:
        return StopReason.TIMEOUT
    if record.stop:
        return StopReason.MAX_TURNS if record.stop == "budget" else StopReason.CONTEXT
    return StopReason.FINISHED if result.exit_code == 0 else StopReason.CRASHED


def find_error(name: str, record: "SessionRecord", result: ExecResult, *, used_up: bool) -> LudusError | None:
    """Why a rollout does not count. `used_up`: the agent had all the turns that it may have."""
    if record.failure is not None:
        return ModelError(record.failure.message, retryable=record.failure.retryable)
    if record.stop == "budget" and not used_up:
        return BudgetExhausted("the budget of the run is spent, and an agent was stopped in the middle of its work")
    if record.exchanges or record.stop or (record.requests and result.timed_out):
        return None
    ending = "ran out of time" if result.timed_out else f"ended with exit code {result.exit_code}"
    asking = "got no reply of the model" if record.requests else "never asked the model"
    words = result.text.strip()[-500:] or "nothing"
    return HarnessError(
        f"{name} {ending} and {asking}. It printed: {words}", retryable=result.exit_code not in _NOT_THERE
    )
