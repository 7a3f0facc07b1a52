"""Files that are read or replaced as a whole."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ludus.catalogue import Catalogue
from ludus.envs.dataset import load_rows
from ludus.envs.triggers import read_queries
from ludus.errors import ConfigError
from ludus.images import read_image
from ludus.reflact.prompt_templates import Prompts
from ludus.reflact.splits import read_folder
from ludus.skill_folder import read_skill
from ludus.sleep.past_env import read_tasks
from ludus.tokens.template import read_template
from ludus.types import Task
from ludus.whole_files import NotRegular, open_regular, read_whole, read_whole_text, write_whole


def test_a_file_is_replaced_as_a_whole_or_stays(tmp_path: Path):
    path = tmp_path / "facts"
    write_whole(path, [b"one, ", b"two"], 0o600)
    assert path.read_bytes() == b"one, two" and path.stat().st_mode & 0o777 == 0o600

    def fail():
        yield b"three"
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        write_whole(path, fail())
    assert path.read_bytes() == b"one, two" and list(tmp_path.iterdir()) == [path]


def test_links_are_replaced_and_not_followed(tmp_path: Path):
    (tmp_path / "mine").write_text("mine")
    for name in ("facts", ".facts.tmp"):
        (tmp_path / name).symlink_to(tmp_path / "mine")
    write_whole(tmp_path / "facts", [b"one"])
    assert (tmp_path / "facts").read_text() == "one" and (tmp_path / "mine").read_text() == "mine"
    assert not (tmp_path / "facts").is_symlink()


def test_a_regular_file_is_read_and_nothing_else(tmp_path: Path):
    (tmp_path / "text").write_bytes("ä\r\n".encode())
    assert read_whole(tmp_path / "text") == "ä\r\n".encode() and read_whole_text(tmp_path / "text") == "ä\n"
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for name in ("pipe", "link", ".", "/dev/zero"):
        with pytest.raises(NotRegular):
            open_regular(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        read_whole(tmp_path / "gone")


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("rows.jsonl", lambda path: load_rows(str(path), Task, "train")),
        ("queries.jsonl", lambda path: read_queries(str(path), Catalogue(()))),
        ("SKILL.md", read_skill),
        ("picture.png", read_image),
        ("template.jinja", lambda path: read_template(str(path))),
        ("tasks.jsonl", read_tasks),
        ("analyst_lines.md", lambda path: Prompts.load(path.parent)),
        ("train/tasks.jsonl", lambda path: read_folder(path.parent.parent)),
    ],
)
def test_a_pipe_that_nobody_writes_to_is_refused_by_name(tmp_path: Path, name: str, read: Callable[[Path], object]):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    os.mkfifo(path)
    with pytest.raises(ConfigError, match=path.name.replace(".", r"\.")):
        read(path)
