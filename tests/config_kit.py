"""Helpers of the tests that read settings."""

import textwrap
from pathlib import Path

import pytest

from ludus.config import load
from ludus.errors import ConfigError

FULL = [
    ("env.name", "gsm8k"),
    ("env.path", "items.jsonl"),
    ("env.limit", "3"),
    ("model.base_url", "http://127.0.0.1:1/v1"),
    ("model.name", "m"),
    ("model.servers", "[http://127.0.0.1:2/v1]"),
    ("model.price", "{prompt: 1, completion: 2}"),
    ("sampling.stop", '["\\n", x]'),
    ("tools.mcp.files.command", "[server, --stdio]"),
    ("tools.mcp.files.only", "read"),
    ("budget.dollars", "2.5"),
]
SERVER = [("model.base_url", "http://127.0.0.1:9/v1"), ("model.name", "m")]


def write_text(folder: Path, text: str, name: str = "a.yaml") -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return path


def find_problem(*files: Path, **flags: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(files, [(path.replace("__", "."), words) for path, words in flags.items()])
    return str(caught.value)
