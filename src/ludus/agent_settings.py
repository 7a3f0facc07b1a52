"""The settings of the agent: what it is told, and which program it is."""

from typing import ClassVar, Literal

from msgspec import field

from ludus.settings import Settings

SkillAs = Literal["text", "file", "both", "listed"]
ExamplesAs = Literal["text", "turns"]


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


class AgentSettings(Settings, frozen=True):
    """The agent: what it is told beside the environment's own text, and which program it is."""

    added_later: ClassVar[tuple[str, ...]] = ("skill_folder", "library")

    system: str = ""
    """System text, added after the environment's."""
    skill: str = ""
    """A file with instructions (such as a SKILL.md), added after the system text; or the folder of a skill package (see
    docs/skills.md)."""
    library: str = ""
    """A folder of skill packages, in place of `skill`: all of them lie in the slot, the agent is told their names and
    descriptions, and reads what fits the task. Where there is no slot it reads them with the tool `load_skill`."""
    skill_as: SkillAs = "text"
    """How the agent gets the skill: in the system text (`text`); as files in its slot, in the Agent Skills form, whose
    path the system text names (`file`); `both`; or `listed`, as agents deploy skills: it is told name and description,
    and reads the files if they fit the task. A folder is `listed` where this is `text`."""
    skill_folder: str = ""
    """The folder in the slot that skills are put into, such as `~/.claude/skills`, `~/.agents/skills` or
    `/workspace/.agents/skills`. Empty: where the command-line agent looks for them, or /tmp/skills."""
    examples_as: ExamplesAs = "text"
    """Where the skill's worked examples are: in its text, or as earlier turns of the conversation."""
    harness: str = ""
    """A command-line agent that runs in place of Ludus's own loop: `mini-swe-agent`, `codex`, `claude-code` (see
    docs/agents.md), one of `harnesses`, or one of your own: `module:NAME` or `file.py:NAME`. Its model calls go to
    `model`."""
    harnesses: dict[str, HarnessSettings] = field(default_factory=dict[str, HarnessSettings])
    """Command-line agents of your own, or changes to known ones, by name."""
