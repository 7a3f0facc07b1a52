"""The nouns: what a task, a turn, a rollout and a score are.

Every noun is a frozen `msgspec.Struct`: typed, immutable, and written to and read from JSON without hand-made code.
Nothing here does I/O or imports anything above it. Read the file from top to bottom as the life of one rollout:
a `Task` is put to a policy as `Message`s; each model reply is a `Completion`; a completion and the results of its
tool calls are a `Turn`; the turns, and either a `Score` or a `Failure`, are a `Rollout`; the rollouts of one task
under one policy are a `Group`.
"""

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field

Count = Annotated[int, Meta(ge=1)]
Whole = Annotated[int, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]
Role = Literal["system", "user", "assistant", "tool"]
JsonObject = dict[str, Any]


# ---- what is asked ------------------------------------------------------------------------------------------------


class Task(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing to do, and what the verifier knows about it."""

    id: str
    prompt: str
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    """Text files placed in the slot by the default `Env.setup`, by path relative to the workspace."""
    split: str = "train"
    kind: str = ""
    """The task type that scores are broken down by; empty when the environment has one kind."""
    answer: Any = None
    """What the verifier knows and the agent must not: it is never rendered into a message or written to a slot."""


# ---- what is said -------------------------------------------------------------------------------------------------


class Call(Struct, frozen=True):
    """A tool call as the model wrote it. `arguments` stays raw text: decoding it is the loop's business, and a
    malformed one must reach the record unchanged."""

    id: str
    name: str
    arguments: str


class Reasoning(Struct, frozen=True, omit_defaults=True):
    """Thinking that came with a message, and the field it came in, so that history returns it the same way."""

    text: str
    source: Literal["reasoning_content", "reasoning", "reasoning_details", "think", "thinking"]
    raw: Any = None
    """The provider's own structure (signatures, encrypted parts) where text alone would lose it."""


class Message(Struct, frozen=True, omit_defaults=True, weakref=True):
    """One message of a conversation, in no provider's dialect."""

    role: Role
    content: str = ""
    calls: tuple[Call, ...] = ()
    call_id: str = ""
    """For role `tool`: the call that this message answers."""
    reasoning: Reasoning | None = None


class ToolSpec(Struct, frozen=True):
    """What the model is shown of a tool: `parameters` is a JSON schema of an object."""

    name: str
    description: str
    parameters: JsonObject


class Sampling(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How completions are drawn. What is None is left to the server."""

    temperature: float | None = 1.0
    """0 always takes the likeliest token."""
    top_p: float | None = None
    """Draw only from the likeliest tokens that together have this probability."""
    max_tokens: int | None = None
    """The longest reply, in tokens."""
    stop: tuple[str, ...] = ()
    """Texts that end a reply."""
    seed: int | None = None
    """Added to the seed that each rollout and turn has of its own."""
    tool_choice: Literal["auto", "required", "none"] | None = None
    """Whether the model may, must or must not call a tool."""
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further request fields, passed on as they are (`top_k`, `reasoning_effort`, `guided_json`, …)."""


class Usage(Struct, frozen=True, omit_defaults=True):
    """Tokens and money that completions took. Adds up with `+`."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    dollars: float = 0.0

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cached_tokens + other.cached_tokens,
            self.dollars + other.dollars,
        )


class Tokens(Struct, frozen=True):
    """Aligned columns of a token sequence. Construction is the one place that checks that they are aligned."""

    ids: tuple[int, ...]
    sampled: tuple[bool, ...]
    """True where the model drew the token, False where it was given."""
    logprobs: tuple[float | None, ...]
    """The engine's log-probability where sampled; None where given."""

    def __post_init__(self) -> None:
        if not len(self.ids) == len(self.sampled) == len(self.logprobs):
            lengths = f"ids {len(self.ids)}, sampled {len(self.sampled)}, logprobs {len(self.logprobs)}"
            raise ValueError(f"Tokens: columns differ in length ({lengths})")

    def __len__(self) -> int:
        return len(self.ids)


class Joint(Struct, frozen=True):
    """Where a completion's tokens join on, if not at the end of the completion before it: behind the first `kept` ids
    of the sequence that ended with completion `turn`, counted from 0 within the rollout."""

    turn: int
    kept: int


class Finish(StrEnum):
    """Why the model stopped writing, as its server tells it."""

    STOP = "stop"
    CALLS = "tool_calls"
    LENGTH = "length"
    FILTER = "content_filter"
    OTHER = "other"


class Completion(Struct, frozen=True, omit_defaults=True):
    """One reply of a model: an assistant message, why it ended, and what it took."""

    message: Message
    finish: Finish = Finish.STOP
    usage: Usage = Usage()
    model: str = ""
    """The model that the server says it used."""
    tokens: Tokens | None = None
    """The exact ids that this reply added to its sequence: what was given since the reply before it, then what was
    drawn. None in chat mode, where no engine reports them."""
    joint: Joint | None = None
    """Where `tokens` go, when history was rewritten or branched; None: behind the completion before it."""


# ---- what happens -------------------------------------------------------------------------------------------------


class StopReason(StrEnum):
    """Why a rollout ended. Set by whoever stops it; a failure to run it is `FAILED`, never one of the others."""

    FINISHED = "finished"
    """The model answered without calling a tool."""
    SUBMITTED = "submitted"
    """The model called a tool that ends the episode."""
    LENGTH = "length"
    """The reply was cut at `max_tokens` before it was complete."""
    FILTERED = "filtered"
    """The server's content filter withheld the reply."""
    MAX_TURNS = "max_turns"
    """The turn limit was reached while the model was still calling tools."""
    CONTEXT = "context"
    """The next prompt would not fit the context budget."""
    TIMEOUT = "timeout"
    """The rollout's time limit passed."""
    CRASHED = "crashed"
    """The agent's own program ended with an error. What it did until then is judged all the same."""
    FAILED = "failed"
    """Something outside the agent broke; `Rollout.failure` says what."""


class ToolResult(Struct, frozen=True, omit_defaults=True):
    """What one tool call gave back to the model."""

    call: Call
    content: str
    """The observation as the model sees it, after the size budget."""
    error: str = ""
    """Why the call counts as a tool error: the model's mistake, a raised exception, a time-out. Empty if none."""
    seconds: float = 0.0
    spilled: str = ""
    """Where in the slot the whole result lies, if `content` is only a preview of it."""


class ToolError(Struct, frozen=True):
    """One failed call, for reports: the record of mistakes that went back to the model."""

    turn: int
    """1-based."""
    tool: str
    arguments: str
    error: str
    result: str


class Turn(Struct, frozen=True, omit_defaults=True):
    """One completion, the results of its calls, and why it was the last one, if it was."""

    completion: Completion
    results: tuple[ToolResult, ...] = ()
    stop: StopReason | None = None
    seconds: float = 0.0
    heard: tuple[Message, ...] = ()
    """What else the model was told before its next reply, by an agent that says such things: output of commands that
    were no tool calls, reminders, complaints."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages that this turn adds to the conversation."""
        answers = (Message("tool", r.content, call_id=r.call.id) for r in self.results)
        return (self.completion.message, *answers, *self.heard)


# ---- how it went --------------------------------------------------------------------------------------------------


class Score(Struct, frozen=True, omit_defaults=True):
    """A verdict: a number for the gradient, a yes or no for the gate, and a reason in words for the reflector."""

    value: float
    passed: bool
    soft: float
    """Partial credit between 0 and 1."""
    feedback: str = ""
    parts: Mapping[str, float] = field(default_factory=dict[str, float])

    def __post_init__(self) -> None:
        """Plain and finite values, of whatever a verifier has at hand: a comparison, a number of some library."""
        parts = {str(name): float(number) for name, number in self.parts.items()}
        numbers = {"value": float(self.value), "soft": float(self.soft)}
        for name, number in (*numbers.items(), *parts.items()):
            if not math.isfinite(number):
                raise ValueError(f"Score.{name} is {number}; a score is a finite number")
        for name, value in {**numbers, "passed": bool(self.passed), "feedback": str(self.feedback)}.items():
            msgspec.structs.force_setattr(self, name, value)
        msgspec.structs.force_setattr(self, "parts", parts)

    @classmethod
    def of(cls, value: float, feedback: str = "", *, parts: Mapping[str, float] | None = None) -> "Score":
        """The usual case: full marks pass, and partial credit is the value within 0 and 1."""
        return cls(value, value >= 1.0, min(1.0, max(0.0, value)), feedback, parts or {})


class Failure(Struct, frozen=True, omit_defaults=True):
    """The world broke, so there is no score. `boundary` is where: it is not the agent's doing and not a zero."""

    boundary: Literal["model", "sandbox", "setup", "tool", "verifier", "agent"]
    message: str
    retryable: bool = True


class Exit(Struct, frozen=True, omit_defaults=True):
    """How a command-line agent ended."""

    code: int
    """Its exit code: 124 after a time-out and 128 + n after signal n."""
    output: str = ""
    """The end of what it printed."""


class Provenance(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What produced a record, so that no number has to be explained from memory."""

    policy: str
    """The policy's fingerprint: model, skill, sampling, limits, tools and system text together."""
    model: str
    skill: str = ""
    """Content hash of the skill document; empty when there was none."""
    sampling: Sampling = Sampling()
    seed: int = 0
    replicate: int = 0
    """Which member of its group this rollout is."""
    attempt: int = 1
    """How many tries the rollout took: more than one after infrastructure failures."""
    toolsets: tuple[str, ...] = ()
    """The toolset draw of the group."""
    tools: tuple[str, ...] = ()
    """The tools that the model was shown."""
    versions: Mapping[str, str] = field(default_factory=dict[str, str])


class Rollout(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One attempt at one task, with a score or a failure, never both."""

    task: Task
    provenance: Provenance
    opening: tuple[Message, ...] = ()
    turns: tuple[Turn, ...] = ()
    stop: StopReason
    score: Score | None = None
    failure: Failure | None = None
    seconds: float = 0.0
    exit: Exit | None = None
    """How the agent's own program ended, where one acted in place of the loop."""

    def __post_init__(self) -> None:
        if self.score is not None and self.failure is not None:
            raise ValueError("Rollout: a score and a failure exclude each other")
        if (self.failure is not None) != (self.stop is StopReason.FAILED):
            raise ValueError(f"Rollout: stop is {self.stop.value}, but failure is {self.failure}")

    @property
    def messages(self) -> tuple[Message, ...]:
        return (*self.opening, *(m for turn in self.turns for m in turn.messages))

    @property
    def answer(self) -> str:
        """The last thing the model said in words."""
        return next((t.completion.message.content for t in reversed(self.turns) if t.completion.message.content), "")

    @property
    def usage(self) -> Usage:
        return sum((t.completion.usage for t in self.turns), Usage())

    @property
    def tool_errors(self) -> tuple[ToolError, ...]:
        return tuple(
            ToolError(number, r.call.name, r.call.arguments, r.error, r.content)
            for number, turn in enumerate(self.turns, 1)
            for r in turn.results
            if r.error
        )


class Group(Struct, frozen=True, kw_only=True):
    """Rollouts of one task under one policy. `size` is how many were asked for: a partial group says so."""

    task: Task
    rollouts: tuple[Rollout, ...]
    size: int

    @property
    def scored(self) -> tuple[Rollout, ...]:
        return tuple(r for r in self.rollouts if r.score is not None)

    @property
    def partial(self) -> bool:
        return len(self.scored) < self.size


def to_json(value: object) -> bytes:
    """A noun as one line of JSON."""
    return msgspec.json.encode(value, enc_hook=_encode_other)


def canonical(value: object) -> bytes:
    """JSON that is the same for equal values, to be hashed. `to_json` is not: it leaves out a field that holds the
    default *object*, and writes one that merely equals it."""
    return msgspec.json.encode(_spelled_out(value), enc_hook=_encode_other, order="deterministic")


def _spelled_out(value: Any) -> Any:
    """With every field of every noun. Each outcome is found by this, so plain values cost no call."""
    if isinstance(value, Struct):
        fields = msgspec.structs.asdict(value)
        for name, item in fields.items():
            if type(item) not in _PLAIN:
                fields[name] = _spelled_out(item)
        return fields
    if isinstance(value, list | tuple):
        items: list[Any] = list(value)  # pyright: ignore[reportUnknownArgumentType]
        return [item if type(item) in _PLAIN else _spelled_out(item) for item in items]
    if isinstance(value, dict) or (type(value) not in _PLAIN and isinstance(value, Mapping)):
        return {key: _spelled_out(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
    return value


_PLAIN = frozenset({str, int, float, bool, type(None)})


def _encode_other(value: Any) -> object:
    """What msgspec does not know: other mappings and sequences, and the texts, numbers and arrays of libraries."""
    for plain in (str, int, float):
        if isinstance(value, plain):
            return plain(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    if isinstance(value, Sequence):
        return list(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    raise TypeError(f"{type(value).__name__} is not JSON")
