"""Command-line agents in place of the loop: a program in a slot, and the gateway that it talks to.

    HarnessAgent.act ──> open a gateway ──> open a port in the slot ──> run the command ──> close: the record
                              ^                                               │
                              └── 127.0.0.1:PORT in the slot <── model calls ─┘

A `Harness` says how one agent is started: its command, variables, files, and where it looks for skills. The agent acts
inside the slot with its own tools. The slot's only network is a port to the gateway. Every model call that goes there
is answered by the policy's model and recorded, in token mode with exact ids. So its rollouts are scored, stored and
trained on like any other; `make_turns` converts the gateway's record to turns.

Decisions. An agent that ends without a single model call did not run. That is a failure, not a zero, and so is a model
server that fails. An agent that called the model and then ended with an error (`crashed`), ran out of turns
(`max_turns`) or of time (`timeout`) did act: its work is judged, and `Rollout.exit` records how it ended. The
environment's own tools and toolsets are not offered.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct, field

from ludus.errors import (
    BudgetExhausted,
    HarnessError,
    LudusError,
    ModelError,
    ModelUnusable,
    SandboxError,
    SetupError,
    boundary,
)
from ludus.models.ledger import Budget
from ludus.policy import Agent, AgentResult, Scene
from ludus.sandbox import WORKSPACE, ExecResult, Sandbox, SandboxSpec
from ludus.sandbox.home import resolve_path
from ludus.sandbox.port.local_port import open_port
from ludus.types import Exit, Message, StopReason

if TYPE_CHECKING:
    from ludus.gateway.session import SessionRecord

_OUTPUT_CHARS = 4_000
"""The length of the end of the program's output that is kept."""
_KILLED = re.compile(rb"^\S*bash: line \d+: +\d+ Killed .*", re.MULTILINE | re.DOTALL)
_NOT_THERE = (126, 127)
"""Exit codes of a shell that found no program to run. A retry does not help."""


class Harness(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How an agent is started. In `command` and `env`, `{prompt}`, `{model}`, `{url}` (for OpenAI's clients),
    `{anthropic_url}`, `{key}` and `{workspace}` are replaced; any other braces stay as they are."""

    name: str
    command: str
    """Run by bash in /workspace. The prompt is on its standard input. Fields in the command are quoted."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    """Text files that are written before the start, by path. `~/` is the slot's home."""
    skills: str = ""
    """The folder in which the agent looks for skills, such as `~/.claude/skills`; empty if there is none."""
    model: str = ""
    """The model's name that the agent is given; empty: its real name."""
    mounts: tuple[tuple[str, str], ...] = ()
    """Folders of the host with the agent's installation, and their paths in the slot, read-only."""
    version: str = ""
    """The version of the installation, if it is known."""

    @property
    def identity(self) -> "Harness":
        """What decides how it acts. Where it is installed on this host does not."""
        return msgspec.structs.replace(self, mounts=())

    @property
    def label(self) -> str:
        return f"{self.name}@{self.version}" if self.version else self.name

    def extend_spec(self, spec: SandboxSpec) -> SandboxSpec:
        """The spec with the mounts that the agent needs."""
        return msgspec.structs.replace(spec, caches=(*spec.caches, *self.mounts)) if self.mounts else spec


@dataclass(frozen=True)
class HarnessAgent(Agent):
    """A command-line agent that acts in the slot, with the policy's model."""

    harness: Harness

    @property
    def name(self) -> str:
        return self.harness.name

    @property
    def needs_slot(self) -> bool:
        return True

    @property
    def label(self) -> str:
        return self.harness.label

    @property
    def skills(self) -> str:
        return self.harness.skills

    @property
    def identity(self) -> Harness:
        return self.harness.identity

    def extend_spec(self, spec: SandboxSpec) -> SandboxSpec:
        return self.harness.extend_spec(spec)

    async def act(self, scene: Scene) -> StopReason:
        """Run the agent once, until it ends or its time is over.

        Raises:
            SandboxError: the slot has no port.
            SetupError: the agent's files could not be written.
        """
        assert scene.box is not None
        return scene.keep(await run_harness(self.harness, scene, scene.box))


async def run_harness(harness: Harness, scene: Scene, box: Sandbox) -> AgentResult:
    from ludus.gateway.service import Gateway  # a web server; few runs need it

    policy = scene.policy
    model, turns = policy.model, policy.limits.turns
    sampling = msgspec.structs.replace(policy.sampling, seed=((policy.sampling.seed or 0) + scene.seed) % 2**31)
    async with Gateway(model, host=None) as gateway, open_port(box, gateway.accept) as port:
        session = gateway.open(sampling=sampling, budget=Budget(calls=turns), name=scene.task.id)
        base = session.make_base_url(f"http://127.0.0.1:{port}")
        fields = {
            "prompt": render_prompt(scene.opening),
            "model": harness.model or model.name,
            "url": f"{base}/v1",
            "anthropic_url": base,
            "key": session.api_key,
            "workspace": WORKSPACE,
        }
        await _write_files(harness, box)
        ended = await _run_command(harness, fields, box, policy.limits.rollout_seconds)
        record = await gateway.close(session, grace=0.0)  # the agent is dead
        used_up = session.ledger is not None and session.ledger.total.calls >= turns
    return _sum_up(harness.name, record, _clean_result(session.secret, ended), used_up)


async def _run_command(
    harness: Harness, fields: Mapping[str, str], box: Sandbox, seconds: float
) -> ExecResult | SandboxError:
    """Run the command. The error of a broken slot is returned, so that the turns until then are kept."""
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
    """The result without the session's secret, and without the shell's message about a killed command, which repeats
    the command."""
    if isinstance(ended, SandboxError):
        return ended
    stderr = _KILLED.sub(b"", ended.stderr) if ended.timed_out else ended.stderr
    stdout, stderr = (part.replace(secret.encode(), b"SECRET") for part in (ended.stdout, stderr))
    return msgspec.structs.replace(ended, stdout=stdout, stderr=stderr)


def _sum_up(name: str, record: "SessionRecord", ended: ExecResult | SandboxError, used_up: bool) -> AgentResult:
    from ludus.gateway.session import make_turns

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


# ---- the prompt ---------------------------------------------------------------------------------------------------

_FIELD = re.compile(r"(?<!\$)\{(prompt|model|url|anthropic_url|key|workspace)\}")


def fill_fields(text: str, fields: Mapping[str, str], *, quoted: bool = False) -> str:
    """Replace the fields in a text. `quoted`: each becomes one word of a shell command."""
    return _FIELD.sub(lambda found: quote(fields[found[1]]) if quoted else fields[found[1]], text)


def render_prompt(opening: Sequence[Message]) -> str:
    """A conversation as one text, for programs that take one: system text, earlier messages, the last message."""
    system = [message.content for message in opening if message.role == "system"]
    messages = [message for message in opening if message.role != "system"]
    before = [line for message in messages[:-1] for line in _render_message(message)]
    now = [message.content for message in messages[-1:]]
    if before:
        before = ["This was said before:", *before, "This is asked now:"]
    return "\n\n".join(part for part in (*system, *before, *now) if part)


def _render_message(message: Message) -> list[str]:
    words = [f"{message.role}: {message.content}"] if message.content else []
    return words + [f"{message.role}: called {call.name} with {call.arguments}" for call in message.calls]


# ---- the result ---------------------------------------------------------------------------------------------------


def find_stop(record: "SessionRecord", result: ExecResult) -> StopReason:
    if result.timed_out:
        return StopReason.TIMEOUT
    if record.stop:
        return StopReason.MAX_TURNS if record.stop == "budget" else StopReason.CONTEXT
    return StopReason.FINISHED if result.exit_code == 0 else StopReason.CRASHED


def find_error(name: str, record: "SessionRecord", result: ExecResult, *, used_up: bool) -> LudusError | None:
    """Why a rollout does not count, if it does not. `used_up`: the agent has used all its turns."""
    if record.failure is not None and record.stop == "unusable":
        return ModelUnusable(record.failure.message)
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
