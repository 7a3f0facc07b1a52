"""Pages of the docs, as their tests read them: code blocks, files, commands and links. The README: `readme_kit`."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGES = sorted(path for folder in (".", "docs", "compat", "compat/docs") for path in (ROOT / folder).glob("*.md"))
"""Every page of the project."""


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    text: str

    @property
    def name(self) -> str:
        """The file that a first line `# name.py` names, or ""."""
        found = re.match(r"# ([\w.]+)\n", self.text)
        return found[1] if found else ""

    @property
    def commands(self) -> list[str]:
        """The commands of a shell block. Continued lines are one command, and comments are removed."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [command for line in lines if (command := re.sub(r"(^|\s+)#\s.*$", "", line).strip())]


def read_blocks(page: str, *languages: str) -> list[Block]:
    """The blocks of a page in their order; only those in the given languages."""
    blocks = [Block(*found) for found in re.findall(r"^```([a-z]*)\n(.*?)^```$", page, re.M | re.S)]
    return [block for block in blocks if not languages or block.language in languages]


def read_files(page: str) -> dict[str, str]:
    """The blocks that name their file, by name."""
    return {block.name: block.text for block in read_blocks(page, "python", "yaml") if block.name}


def read_commands(page: str, *languages: str) -> list[str]:
    """The commands of all shell blocks, in order."""
    return [command for block in read_blocks(page, *(languages or ("bash", "sh"))) for command in block.commands]


def read_links(page: str) -> list[str]:
    """The targets of relative links and pictures."""
    text = re.sub(r"^```.*?^```$", "", page, flags=re.M | re.S)
    found = re.findall(r"\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"", text)
    return [target for pair in found if "://" not in (target := pair[0] or pair[1])]


def list_anchors(page: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", page, flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
