"""What an agent and its user did together, as its transcript tells it."""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct, field

from ludus.types import Message, Score, Usage

Format = Literal["openai", "claude-code", "codex", "sharegpt", "atif", "gateway", "ludus"]
"""`openai`: chat messages. `gateway`: a session that our gateway recorded. `ludus`: a rollout of a run directory."""

Sighting = Literal["listed", "read", "called", "recorded"]
"""How a transcript shows a skill: the agent was told of it, it got the document, it called the skill by its name, or
the program that ran the agent recorded it."""

Counts = Mapping[str, int]
"""How many of each kind, by the name of the kind."""


class PastSkill(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A skill that a session shows."""

    name: str
    path: str = ""
    """The document, or the folder, as the transcript names it."""
    hash: str = ""
    """The content hash, if the transcript has it (`Skill.hash`)."""
    seen: tuple[Sighting, ...] = ()

    @property
    def used(self) -> bool:
        """Whether the agent had its text. A skill that is only listed was not used."""
        return any(way != "listed" for way in self.seen)


class PastSession(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One conversation of an agent with its user, that has ended or goes on."""

    id: str
    """The id that the transcript has, or one made of its content. Two sessions of one intake never share an id."""
    format: Format
    path: str
    """The file or run directory that it was read from."""
    agent: str = ""
    """The program and its version, such as `claude-code 2.1.0`."""
    project: str = ""
    """The folder that the agent worked in, as recorded. It is a text: nobody looks whether it exists."""
    begun: float | None = None
    """Seconds since 1970; None if the transcript has no times."""
    ended: float | None = None
    messages: tuple[Message, ...] = ()
    request: str = ""
    """What the user asked for first. Programs put texts of their own into messages of the user; those do not count."""
    feedback: tuple[str, ...] = ()
    """What the user said after the agent's first reply, in order."""
    skills: tuple[PastSkill, ...] = ()
    files: tuple[str, ...] = ()
    """The files that tool calls name, in the order in which they were first touched."""
    score: Score | None = None
    """The verdict, if the session is a rollout that was scored."""
    model: str = ""
    usage: Usage = Usage()
    dropped: Counts = field(default_factory=dict[str, int])
    """What of this session was left out, by kind."""
    masked: Counts | None = None
    """How many values were masked, by kind. None: it was not masked, and no model may see it."""
