"""DocVQA on a CSV file and pictures in its format."""

import struct
import zlib
from pathlib import Path

import pytest

from ludus.env_checks import validate
from ludus.envs.docvqa import DocVQA
from ludus.errors import ConfigError
from ludus.models.scripted import ScriptedModel
from ludus.policy import Policy
from ludus.rollout import run
from ludus.runner import Job, Runner

HEADER = "questionId,question,answer,image_path,topic\n"


def make_png() -> bytes:
    """A white picture of one pixel."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0\xff")) + chunk(b"IEND", b"")
    )


def write(tmp_path: Path, rows: str) -> DocVQA:
    (tmp_path / "val").mkdir()
    (tmp_path / "val" / "val.csv").write_text(HEADER + rows)
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").write_bytes(make_png())
    (tmp_path / "images" / "b.png").write_text("no picture")
    return DocVQA(path=str(tmp_path))


async def test_it_is_valid_and_the_picture_is_in_the_opening(tmp_path: Path):
    env = write(
        tmp_path, "7,What is the date?,\"['May 4', '4 May']\",a.png,form\n8,Total? document_path: a.png,12.50,,table\n"
    )
    tasks = list(env.tasks("validation"))
    assert [(task.id, task.prompt, task.kind, task.answer) for task in tasks] == [
        ("7", "What is the date?", "form", ["May 4", "4 May"]),
        ("8", "Total?", "table", ["12.50"]),
    ]
    assert (await validate(Runner(env), "validation", tasks)).ok
    rollout = await run(Job(tasks[0], Policy(ScriptedModel(["<answer>May 5</answer>"]))), Runner(env))
    assert rollout.opening[-1].images[0].url.startswith("data:image/png;base64,")
    assert rollout.score is not None and (rollout.score.passed, rollout.score.soft) == (False, 0.8)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ("7,q,a,c.png,t\n", r"val\.csv, row 1: image_path: there is no file c\.png"),
        ("7,q,a,b.png,t\n", "row 1: image_path: .*no PNG"),
        ("7,q,a,,t\n", "row 1: image_path: it is missing"),
        ("7,q,,a.png,t\n", "row 1: answer: it is missing"),
        ("7,q,a,a.png,t\n7,q,a,a.png,t\n", "row 2: questionId: '7' is also"),
        ("7,q,a\n", "row 1: it has more or fewer fields"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, rows: str, says: str):
    with pytest.raises(ConfigError, match=says):
        list(write(tmp_path, rows).tasks("val"))
