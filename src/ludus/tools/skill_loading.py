"""The tool with which an agent reads the packages of a library where there is no slot to put them in.

What was read is known from the calls that were executed without an error, not from what the agent says.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from ludus.errors import suggest
from ludus.skill import DOCUMENT
from ludus.skill_library import SkillLibrary
from ludus.tools import Tool, tool
from ludus.types import JsonObject, SkillUse, Turn

LOAD_SKILL = "load_skill"


def make_skill_tool(library: SkillLibrary) -> Tool:
    """The tool. A wrong name is an error that the agent sees."""

    @tool(parallel=True)
    async def load_skill(
        name: Annotated[str, Meta(description="The name of the skill, as it is listed")],
        file: Annotated[str, Meta(description="A file of the skill that its document names")] = DOCUMENT,
    ) -> str:
        """Load a skill: returns its document, or another of its files."""
        if name not in library.names:
            raise ValueError(f"there is no skill {name!r}; {suggest(name, list(library.names))}")
        skill = library.get(name).skill
        if file in ("", DOCUMENT):
            return skill.body
        if skill.get_file(file) is None:
            raise ValueError(f"the skill {name} has no file {file!r}; {suggest(file, list(skill.paths))}")
        text = skill.read(file)
        if text is None:
            raise ValueError(f"{file} is not text")
        return text

    return load_skill


def read_skill_calls(library: SkillLibrary, turns: Iterable[Turn]) -> Mapping[str, SkillUse]:
    """Which packages were loaded with the tool, and which of their files."""
    shown: dict[str, dict[str, None]] = {name: {} for name in library.names}
    for turn in turns:
        for result in turn.results:
            if result.call.name == LOAD_SKILL and not result.error:
                name, file = _read_arguments(result.call.arguments)
                if name in shown:
                    shown[name][file] = None
    return {name: SkillUse(loaded=DOCUMENT in files, shown=tuple(files)) for name, files in shown.items()}


def _read_arguments(arguments: str) -> tuple[str, str]:
    try:
        found = msgspec.json.decode(arguments or "{}", type=JsonObject)
    except (ValueError, RecursionError):  # the call was executed, so this does not happen
        return "", ""
    return str(found.get("name", "")), str(found.get("file") or DOCUMENT)
