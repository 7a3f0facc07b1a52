"""Files of prompts: what a row may have, what is wrong with one, ids, and rows that repeat others."""

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ludus.errors import ConfigError
from ludus.trajectories.prompt_rows import PromptFile, get_details, has_images, make_task

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def write(folder: Path, *rows: dict[str, Any] | str, name: str = "p.jsonl") -> Path:
    path = folder / name
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def list_ids(file: PromptFile) -> Sequence[str]:
    return [task.id for task in file.read_tasks()]


def encode(**row: Any) -> bytes:
    return json.dumps(row).encode()


def test_a_row_keeps_all_that_it_has(tmp_path: Path):
    task = make_task(
        encode(
            id=7, prompt="do it", system="S", cwd="a/b", image="py:3", files={"x": "X"}, answer="42", topic="t", n=1
        ),
        tmp_path,
    )
    assert (task.id, task.prompt, task.files, task.answer) == ("7", "do it", {"x": "X"}, "42")
    assert task.details == {"system": "S", "cwd": "a/b", "image": "py:3", "metadata": {"topic": "t", "n": 1}}


def test_messages_take_the_place_of_a_prompt(tmp_path: Path):
    said = [
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "+1?"},
    ]
    task = make_task(encode(messages=[{"role": "system", "content": "S"}, *said]), tmp_path)
    assert (task.prompt, get_details(task)) == ("+1?", {"system": "S", "messages": said})


def test_pictures_are_read_beside_the_file(tmp_path: Path):
    (tmp_path / "a.png").write_bytes(PNG)
    assert make_task(encode(prompt="what?", images=["a.png"]), tmp_path).images[0].startswith("data:image/png;base64,")


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("[1]", "it is not a JSON object"),
        ("{oops", "malformed"),
        ({"text": "x"}, "prompt: there is none"),
        ({"prompt": "  "}, "prompt: there is none"),
        ({"prompt": 5}, r"\$\.prompt"),
        ({"prompt": "a", "messages": [{"role": "user", "content": "b"}]}, "messages: the row has a prompt"),
        ({"messages": [{"role": "assistant", "content": "b"}]}, "messages: the last one is from 'assistant'"),
        ({"messages": [{"role": "user", "content": [{"type": "audio"}]}]}, "audio"),
        ({"prompt": "a", "id": " "}, "id: it is empty"),
        ({"prompt": "a", "image": "x", "docker_image": "y"}, "docker_image: "),
        ({"prompt": "a", "images": ["none.png"]}, "images: there is no file"),
        ({"prompt": "a", "images": ["data:x"]}, "images: "),
        ({"id": "first", "prompt": "other"}, "id: an earlier row with other content has the id 'first'"),
    ],
)
def test_a_bad_row_is_named_by_line_and_field_or_counted(tmp_path: Path, row: Any, words: str):
    path = write(tmp_path, {"id": "first", "prompt": "good"}, "", row, {"prompt": "good, too"})
    with pytest.raises(ConfigError, match=rf"p\.jsonl, line 3: .*{words}"):
        PromptFile.scan(path)
    file = PromptFile.scan(path, skip_bad=True)
    assert (len(file), file.bad.count, file.bad.first[0][:7]) == (2, 1, "line 3:")


def test_ids_are_stable_and_repeated_rows_are_run_once(tmp_path: Path):
    rows = [{"prompt": "a"}, {"prompt": "b", "n": 1}, {"prompt": "b", "n": 2}, {"n": 1, "prompt": "b"}, {"prompt": "a"}]
    file = PromptFile.scan(write(tmp_path, *rows))
    other = PromptFile.scan(write(tmp_path, *reversed(rows), name="q.jsonl"))
    assert len(set(list_ids(file))) == 3
    assert sorted(list_ids(file)) == sorted(list_ids(other))
    assert (file.repeated.count, str(file.repeated)) == (2, "line 4; line 5")


def test_rows_can_be_chosen(tmp_path: Path):
    path = write(tmp_path, *({"id": f"t{n}", "prompt": f"{n}"} for n in range(9)))
    assert list_ids(PromptFile.scan(path, limit=2)) == ["t0", "t1"]
    assert list_ids(PromptFile.scan(path, ids=["t7", "t3"])) == ["t3", "t7"]
    with pytest.raises(ConfigError, match=r"env\.ids: no row of .* has the id 't99'"):
        PromptFile.scan(path, ids=["t99"])


def test_what_many_rows_share_is_counted(tmp_path: Path):
    file = PromptFile.scan(write(tmp_path, *({"prompt": f"{n}", "cwd": "d"} for n in range(9))))
    assert (file.with_cwd.count, str(file.with_cwd)) == (9, "line 1; line 2; line 3; line 4; line 5; and 4 more")


@pytest.mark.parametrize(
    ("row", "found"),
    [({"docker_image": "x"}, True), ({"image": "x"}, True), ({"images": ["x"]}, False), ("{image", False)],
)
def test_whether_a_file_has_rows_with_images(tmp_path: Path, row: Any, found: bool):
    assert has_images(write(tmp_path, {"prompt": "a"}, row)) is found


@pytest.mark.parametrize(("name", "words"), [("none.jsonl", "cannot read"), ("p.csv", "must end in .jsonl")])
def test_a_file_that_is_none(tmp_path: Path, name: str, words: str):
    with pytest.raises(ConfigError, match=words):
        PromptFile.scan(tmp_path / name)


def test_a_file_without_prompts_and_one_that_changes(tmp_path: Path):
    with pytest.raises(ConfigError, match="has no prompt"):
        PromptFile.scan(write(tmp_path, "", ""))
    path = write(tmp_path, {"prompt": "a"}, {"prompt": "b"})
    file = PromptFile.scan(path)
    path.write_text("{}\n" * 9)
    with pytest.raises(ConfigError, match="has changed since it was checked"):
        list(file.read_tasks())
