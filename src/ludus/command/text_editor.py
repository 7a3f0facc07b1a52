"""The user's own text editor, for a text that a command asks about."""

import os
import shlex
import subprocess
import tempfile
from pathlib import Path

from ludus.errors import ConfigError


def edit_text(text: str, suffix: str = ".md") -> str:
    """The text after the user has edited it in $VISUAL or $EDITOR. Raises `ConfigError` if no editor works."""
    words = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi")
    with tempfile.TemporaryDirectory(prefix="ludus-edit-") as folder:
        path = Path(folder, f"text{suffix}")
        path.write_text(text if text.endswith("\n") else f"{text}\n")
        try:
            code = subprocess.run([*words, str(path)], check=False).returncode
        except OSError as error:
            raise ConfigError(f"the editor {words[0]} cannot be started ({error.strerror}): set $EDITOR") from None
        if code:
            raise ConfigError(f"the editor {words[0]} ended with exit code {code}: the text is as it was")
        return path.read_text(errors="replace").strip("\n")
