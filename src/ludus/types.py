"""The nouns: task, message, completion, turn, rollout, score, group.

Every noun is a frozen `msgspec.Struct`: typed, immutable, and converted to and from JSON by msgspec. Nothing here does
I/O or imports another part of Ludus. The file follows the life of one rollout. A `Task` becomes `Message`s. Each model
reply is a `Completion`. A completion and the results of its tool calls are a `Turn`. The turns, with either a `Score`
or a `Failure`, are a `Rollout`. The rollouts of one task under one policy are a `Group`.

A field whose name changed in the code keeps its stored name: `field(name=...)`.
"""

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, field

Count = Annotated[int, Meta(ge=1)]
Whole = Annotated[int, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]
Role = Literal["system", "user", "assistant", "tool"]
JsonObject = dict[str, Any]


# ---- tasks -------------------------------------------------------------------------------------------------------


class Task(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One task for an agent, and what the verifier knows about it."""

    id: str
    prompt: str
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    """Text files placed in the slot by the default `Env.setup`, by path relative to the workspace."""
    split: str = "train"
    kind: str = ""
    """The task type. Reports break scores down by it; empty if the environment has only one."""
    images: tuple[str, ...] = ()
    """Pictures that are shown after the prompt: `data:` URLs (`ludus.images.read_image`), or addresses on the web."""
    answer: Any = None
    """What the verifier knows and the agent must not know. It is never put into a message or written to a slot."""
    details: JsonObject | UnsetType = UNSET
    """What else the environment knows of it, and the agent may know: a system text, a working folder, data of the
    user's. Not set: nothing, as in tasks that were recorded before there was this field."""


# ---- messages -----------------------------------------------------------------------------------------------------


class Call(Struct, frozen=True):
    """A tool call as the model wrote it. `arguments` is raw text: the agent loop decodes it, and malformed arguments
    are recorded unchanged."""

    id: str
    name: str
    arguments: str


class Reasoning(Struct, frozen=True, omit_defaults=True):
    """The thinking in a message, and the field it came in. History sends it back in the same field."""

    text: str
    source: Literal["reasoning_content", "reasoning", "reasoning_details", "think", "thinking"]
    raw: Any = None
    """The provider's own structure (signatures, encrypted parts), where the text alone is not enough."""


class Image(Struct, frozen=True, omit_defaults=True):
    """A picture in a message."""

    url: str
    """A `data:` URL (`data:image/png;base64,…`) or an address on the web. In a run directory: the name of a file."""
    at: int = 0
    """Where it is in the text of the message: before this character."""


class Message(Struct, frozen=True, omit_defaults=True, weakref=True):
    """One message of a conversation, independent of any provider's format."""

    role: Role
    content: str = ""
    calls: tuple[Call, ...] = ()
    call_id: str = ""
    """For role `tool`: the call that this message answers."""
    reasoning: Reasoning | None = None
    images: tuple[Image, ...] = ()
    """The pictures of a user's message or of a tool's result, in the order of their places."""


class ToolSpec(Struct, frozen=True):
    """What the model sees of a tool. `parameters` is a JSON schema of an object."""

    name: str
    description: str
    parameters: JsonObject


RESPONSE_FORMAT = "response_format"
"""The name in `Sampling.extra` of the form that a reply must have, as the chat API writes it."""


class Sampling(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How completions are sampled. A field that is None is left to the server."""

    temperature: float | None = 1.0
    """0 always takes the most likely token."""
    top_p: float | None = None
    """Sample only from the most likely tokens that together have this probability."""
    max_tokens: int | None = None
    """The maximum length of a reply, in tokens."""
    stop: tuple[str, ...] = ()
    """Texts that end a reply."""
    seed: int | None = None
    """Added to the seed of each rollout and turn."""
    tool_choice: Literal["auto", "required", "none"] | None = None
    """Whether the model may, must or must not call a tool."""
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """More request fields, sent unchanged (`top_k`, `reasoning_effort`, `guided_json`, …)."""

    @property
    def stage(self) -> str:
        """The stage of an optimizer's request, such as `analyst_failure`; empty in an agent's request. Simulated
        optimizers read it. It is not a field: it is never sent to a server, stored or hashed."""
        return ""


class Usage(Struct, frozen=True, omit_defaults=True):
    """Tokens and money that completions used. Values add up with `+`."""

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
    """Aligned columns of a token sequence. The constructor checks that their lengths are equal."""

    ids: tuple[int, ...]
    sampled: tuple[bool, ...]
    """True where the model sampled the token, False where it was part of the prompt."""
    logprobs: tuple[float | None, ...]
    """The engine's log-probability where sampled; None elsewhere."""

    def __post_init__(self) -> None:
        if not len(self.ids) == len(self.sampled) == len(self.logprobs):
            lengths = f"ids {len(self.ids)}, sampled {len(self.sampled)}, logprobs {len(self.logprobs)}"
            raise ValueError(f"Tokens: columns differ in length ({lengths})")

    def __len__(self) -> int:
        return len(self.ids)


class Splice(Struct, frozen=True):
    """Where a completion's tokens continue, if not at the end of the previous completion: after the first `kept` ids of
    the sequence that ended with completion `turn` (counted from 0 within the rollout)."""

    turn: int
    kept: int


class Finish(StrEnum):
    """Why the model stopped writing, as reported by its server."""

    STOP = "stop"
    CALLS = "tool_calls"
    LENGTH = "length"
    FILTER = "content_filter"
    OTHER = "other"


class Completion(Struct, frozen=True, omit_defaults=True):
    """One reply of a model: an assistant message, why it ended, and what it used."""

    message: Message
    finish: Finish = Finish.STOP
    usage: Usage = Usage()
    model: str = ""
    """The model name in the server's reply."""
    tokens: Tokens | None = None
    """The exact ids that this reply added to its sequence: the prompt since the previous reply, then the sampled ids.
    None in chat mode, where no engine reports them."""
    splice: Splice | None = field(default=None, name="joint")
    """Where `tokens` continue when history was rewritten or branched. None: after the previous completion."""
    guided: bool = False
    """Sampled under guided decoding (a forced call, a JSON schema), or played from the record that the rollout
    continues: its logprobs are not those of the policy."""


def place_images(urls: Sequence[str], text: str) -> tuple[Image, ...]:
    """Pictures after a text."""
    return tuple(Image(url, len(text)) for url in urls)


# ---- turns --------------------------------------------------------------------------------------------------------


class StopReason(StrEnum):
    """Why a rollout ended. A rollout that could not be run is `FAILED`, never one of the others."""

    FINISHED = "finished"
    """The model answered without calling a tool."""
    SUBMITTED = "submitted"
    """The model called a tool that ends the episode."""
    LENGTH = "length"
    """The reply was cut at `max_tokens` before it was complete."""
    FILTERED = "filtered"
    """The server's content filter cut the reply. If it left no text, the rollout has failed and has no score."""
    EMPTY = "empty"
    """The model ended its reply without any text and without a call. This is scored."""
    MAX_TURNS = "max_turns"
    """The turn limit was reached while the model was still calling tools."""
    CONTEXT = "context"
    """The next prompt would not fit the context budget."""
    TIMEOUT = "timeout"
    """The time limit of the rollout was reached."""
    CRASHED = "crashed"
    """The program of a command-line agent ended with an error. What it did until then is scored."""
    BROKEN = "broken"
    """The agent broke its slot, or left what cannot be judged. The score is 0, and its feedback says why."""
    FORGED = "forged"
    """What the agent left passes tests that must fail. The score is 0, and `Score.suspect` has the evidence."""
    FAILED = "failed"
    """Something outside the agent broke; `Rollout.failure` says what."""


class Observation(Struct, frozen=True):
    """What a tool returns if text is not enough."""

    text: str
    images: tuple[str, ...] = ()
    """`data:` URLs. They are shown after the text, to models that take pictures."""


class ToolResult(Struct, frozen=True, omit_defaults=True):
    """What one tool call returned to the model."""

    call: Call
    content: str
    """The observation as the model sees it, within the size limit."""
    error: str = ""
    """Why the call counts as a tool error: the model's mistake, a raised exception, a time-out. Empty if none."""
    seconds: float = 0.0
    spilled: str = ""
    """The file in the slot that has the whole result, if `content` is only a preview."""
    images: tuple[str, ...] = ()
    """Pictures that are shown after the text."""


class ToolError(Struct, frozen=True):
    """One failed tool call, for reports. The model saw the error and could try again."""

    turn: int
    """1-based."""
    tool: str
    arguments: str
    error: str
    result: str


class Turn(Struct, frozen=True, omit_defaults=True):
    """One completion, the results of its tool calls, and the stop reason if it was the last one."""

    completion: Completion
    results: tuple[ToolResult, ...] = ()
    stop: StopReason | None = None
    seconds: float = 0.0
    notices: tuple[Message, ...] = field(default=(), name="heard")
    """Other messages before the model's next reply: what the user said next (`Env.follow_up`), and what a command-line
    agent sent (output of commands that were not tool calls, reminders, error reports)."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages that this turn adds to the conversation."""
        answers = (
            Message("tool", r.content, call_id=r.call.id, images=place_images(r.images, r.content))
            for r in self.results
        )
        return (self.completion.message, *answers, *self.notices)


# ---- scores and rollouts --------------------------------------------------------------------------------------------


class Score(Struct, frozen=True, omit_defaults=True):
    """A verdict: a number for RL, pass or fail for the gate, and feedback in words for the analysts."""

    value: float
    passed: bool
    soft: float
    """Partial credit between 0 and 1."""
    feedback: str = ""
    parts: Mapping[str, float] = field(default_factory=dict[str, float])
    suspect: tuple[str, ...] = ()
    """The evidence that the agent may have changed the verdict instead of doing the task, in words. Empty: there is
    none."""

    def __post_init__(self) -> None:
        """Convert the values to plain Python types: verifiers also pass comparisons and numbers of libraries."""
        for name, kind in (("value", float), ("passed", bool), ("soft", float), ("feedback", str)):
            if type(value := getattr(self, name)) is not kind:  # mostly it is: every stored score is read back
                msgspec.structs.force_setattr(self, name, kind(value))
        parts = {str(name): float(number) for name, number in self.parts.items()}
        msgspec.structs.force_setattr(self, "parts", parts)
        for name, number in (("value", self.value), ("soft", self.soft), *parts.items()):
            if not math.isfinite(number):
                raise ValueError(f"Score.{name} is {number}; a score is a finite number")

    @classmethod
    def of(cls, value: float, feedback: str = "", *, parts: Mapping[str, float] | None = None) -> "Score":
        """The usual case: 1.0 or more passes, and partial credit is the value clipped to 0..1."""
        return cls(value, value >= 1.0, min(1.0, max(0.0, value)), feedback, parts or {})

    @classmethod
    def forged(cls, evidence: tuple[str, ...]) -> "Score":
        """The score of a result that passes tests that must fail."""
        return cls(0.0, False, 0.0, f"The verdict was forged: {'; '.join(evidence)}.", suspect=evidence)


class Failure(Struct, frozen=True, omit_defaults=True):
    """Something outside the agent broke, so there is no score. `boundary` says where. A failure is not a zero."""

    boundary: Literal["model", "sandbox", "setup", "tool", "verifier", "agent", "node", "bug"]
    """`node`: the machine or the process that ran it was lost. `bug`: an exception that Ludus did not expect; `message`
    ends with its traceback."""
    message: str
    retryable: bool = True


class Exit(Struct, frozen=True, omit_defaults=True):
    """How a command-line agent ended."""

    code: int
    """Its exit code: 124 after a time-out and 128 + n after signal n."""
    output: str = ""
    """The last part of its output."""


class SkillUse(Struct, frozen=True, omit_defaults=True):
    """What became of the files of a skill in a slot, as the slot and the conversation show it (`ludus.skill_use`). The
    agent is not asked."""

    loaded: bool | None = None
    """Whether the agent has read the document; None if nobody could see it."""
    opened: tuple[str, ...] = ()
    """Files that a process in the slot opened."""
    shown: tuple[str, ...] = ()
    """Files whose lines are in what the model got."""
    run: tuple[str, ...] = ()
    """Scripts that a process opened and that a command of the agent started."""
    changed: tuple[str, ...] = ()
    """Files that the agent changed, replaced or removed. Who opened them is not known."""
    unseen: str = ""
    """Why the slot could not tell which files were opened. Then a file that is not in `opened` may have been."""


class Replayed(Struct, frozen=True):
    """The rollout whose replies were played at the beginning of another one."""

    run: str
    """The run directory that it is in."""
    outcome: str
    """Its content address there."""
    turns: int
    """How many of its turns were played."""


class Provenance(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What produced a record: enough to reproduce and explain its numbers."""

    policy: str
    """The policy's fingerprint: a hash of model, skill, sampling, limits, tools and system text."""
    model: str
    skill: str = ""
    """Content hash of the skill document; empty if there was none."""
    sampling: Sampling = Sampling()
    seed: int = 0
    replicate: int = 0
    """The index of this rollout in its group."""
    attempt: int = 1
    """The number of this attempt; above 1 after failures of the infrastructure."""
    toolsets: tuple[str, ...] = ()
    """The toolsets that were sampled for the group."""
    skipped: tuple[str, ...] = ()
    """The toolsets of the distribution that could not be sampled: the run does not have them, or has disabled them."""
    tools: tuple[str, ...] = ()
    """The tools that the model could call."""
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    replayed: Replayed | None = None
    """The rollout that this one repeats or continues; None: it began by itself."""


class RolloutTimes(Struct, frozen=True):
    """When a rollout ran, and what it spent its time on, with all its attempts."""

    began: float
    """Seconds since 1970, by the clock of the machine that ran it, when it asked for a slot."""
    phases: Mapping[str, float]
    """Seconds by phase (`slot`, `setup`, `model`, `tool`, `verify`, …: `ludus.activity`). They add up to the whole."""


class Rollout(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One attempt at one task, with a score or a failure, never both. It has neither if nothing judges it: a session of
    the gateway, a prompt without a checker."""

    task: Task
    provenance: Provenance
    opening: tuple[Message, ...] = ()
    turns: tuple[Turn, ...] = ()
    stop: StopReason
    score: Score | None = None
    failure: Failure | None = None
    seconds: float = 0.0
    exit: Exit | None = None
    """How the program of a command-line agent ended, if one acted instead of the agent loop."""
    details: JsonObject | None = None
    """What an agent that acted instead of the agent loop returned besides its turns, for the environment's `verify`."""
    left_out: tuple[str, ...] = ()
    """Files of the agent that `verify` did not get: links that lead out of /workspace (`out.txt -> /tmp/x`), pipes and
    devices."""
    files: str = ""
    """The hash of the files that the agent left, if the run's store has kept them: `ludus rescore` needs them."""
    times: RolloutTimes | None = None
    """None: it was not run by an engine."""
    skill_use: SkillUse | None = None
    """What became of the skill's files; None if it had none in its slot."""
    library_use: Mapping[str, SkillUse] | None = None
    """The same for each package of a library, by name; None if it had no library."""

    def __post_init__(self) -> None:
        if self.score is not None and self.failure is not None:
            raise ValueError("Rollout: a score and a failure exclude each other")
        if (self.failure is not None) != (self.stop is StopReason.FAILED):
            raise ValueError(f"Rollout: stop is {self.stop.value}, but failure is {self.failure}")

    @property
    def facts(self) -> JsonObject:
        """What is known beside the conversation and the result: every other field that is set, by name. Rows, pages and
        transcripts show what is in here, so a new field is stored and shown without a change of theirs."""
        values = {name: getattr(self, name) for name in self.__struct_fields__ if name not in _MAIN_FIELDS}
        return {name: value for name, value in values.items() if value}

    @property
    def agent_stop(self) -> StopReason:
        """Why the agent stopped, whatever happened then: `stop` may say what its judge found."""
        if self.stop not in (StopReason.FAILED, StopReason.BROKEN, StopReason.FORGED):
            return self.stop
        return (self.turns[-1].stop if self.turns else None) or StopReason.FINISHED

    @property
    def kind(self) -> str:
        """The kind of the task; if the task has none, what the agent that acted said of it."""
        return self.task.kind or str((self.details or {}).get("kind") or "")

    @property
    def messages(self) -> tuple[Message, ...]:
        return (*self.opening, *(m for turn in self.turns for m in turn.messages))

    @property
    def answer(self) -> str:
        """The last non-empty text of the model."""
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


_MAIN_FIELDS = frozenset(
    {"task", "provenance", "opening", "turns", "stop", "score", "failure", "seconds", "details", "times"}
)
"""Those that are shown by their own names, or not at all."""


class Group(Struct, frozen=True, kw_only=True):
    """Rollouts of one task under one policy. `size` is the requested number; a `partial` group has fewer scores."""

    task: Task
    rollouts: tuple[Rollout, ...]
    size: int

    @property
    def scored(self) -> tuple[Rollout, ...]:
        return tuple(r for r in self.rollouts if r.score is not None)

    @property
    def excluded(self) -> int:
        """The number of rollouts that ended without a score."""
        return len(self.rollouts) - len(self.scored)

    @property
    def partial(self) -> bool:
        return len(self.scored) < self.size
