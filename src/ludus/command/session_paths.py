"""Which past sessions a user names: files, folders, or the agents whose folders are known."""

from collections.abc import Callable, Iterable
from pathlib import Path

from ludus.command.terminal import print_notice
from ludus.config.secrets import find_session_folders


def name_session_paths(words: Iterable[str], say: Callable[[str], None] = print_notice) -> list[Path]:
    """The paths that a user names. `claude-code` and `codex` stand for the folders of these agents, and are said.

    Raises:
        ConfigError: such an agent has no sessions here.
    """
    paths: list[Path] = []
    for word in words:
        folders = find_session_folders(word)
        for folder in folders:
            say(f"{word}: reading {folder}")
        paths += folders or [Path(word).expanduser()]
    return paths
