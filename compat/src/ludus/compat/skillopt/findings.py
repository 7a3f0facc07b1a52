"""What is found while a configuration of SkillOpt is read: problems, which refuse it, and notes for the user."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ludus.errors import ConfigError, suggest


@dataclass
class Findings:
    """The problems of a configuration, all of which are reported at once, and the notes on it."""

    source: str
    problems: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])

    def refuse(self, problem: str) -> None:
        self.problems.append(problem)

    def note(self, note: str) -> None:
        self.notes.append(note)

    def check_names(self, section: str, given: Iterable[str], known: Iterable[str]) -> None:
        """Refuse names that SkillOpt does not have."""
        names = list(known)
        self.problems += [
            f"{section}.{key} is not a setting of SkillOpt; {suggest(str(key), names)}"
            for key in given
            if key not in names
        ]

    def read_choice(self, setting: str, value: object, names: Mapping[str, str]) -> str:
        """The name that a spelling stands for. An unknown one is refused, and any name is returned."""
        found = names.get(str(value).strip().lower())
        if found is None:
            self.refuse(f"{setting}: '{value}' is not one; {suggest(str(value), list(names))}")
            return next(iter(names.values()))
        return found

    def raise_problems(self) -> None:
        """Raise `ConfigError` if there are problems."""
        if self.problems:
            raise ConfigError("\n".join(f"{self.source}: {problem}" for problem in dict.fromkeys(self.problems)))
