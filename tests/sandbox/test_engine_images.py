"""The commands of an engine, by a stand-in. `tests/sandbox/remote/test_engine_builds.py` has a real one."""

import json
import os
from pathlib import Path

import pytest

from ludus.errors import SandboxError
from ludus.sandbox import ImageSpec
from ludus.sandbox.engine_images import LABEL, EngineImage, export_image, make_image, read_inspection

DOCKER = """#!/bin/bash
here=$(dirname "$0")
echo "$*" >>"$here/calls"
case "$1 $2" in
"build --force-rm")
    [ -f "$8" ] || { echo "no Dockerfile in $9" >&2; exit 1; }
    cat "$8" >"$here/built"; echo sha256:built >"$6"
    ;;
"pull --quiet") touch "$here/pulled" ;;
"image inspect") [ "$3" = sha256:built ] || [ -f "$here/pulled" ] || exit 1; cat "$here/inspection" ;;
create*) echo c1 ;;
export*) tar -C "$here/root" -cf - . ;;
esac
"""
INSPECTION = [
    {"Id": "sha256:0123", "Config": {"Env": ["PATH=/opt:/bin", "A=b=c"], "WorkingDir": "/app", "User": "me:us"}}
]
IMAGE = EngineImage("0123", {"PATH": "/opt:/bin", "A": "b=c"}, "/app", "me")


@pytest.fixture
def bin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    (folder / "root/app").mkdir(parents=True)
    (folder / "root/app/x").write_text("x")
    (folder / "docker").write_text(DOCKER)
    (folder / "docker").chmod(0o755)
    (folder / "inspection").write_text(json.dumps(INSPECTION))
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


async def make(spec: ImageSpec, engine: str = "docker") -> EngineImage:
    return await make_image(spec, (engine,))


async def test_a_folder_is_built_and_a_name_pulled_once(bin: Path, tmp_path: Path):
    (tmp_path / "Dockerfile").write_text("FROM x\nRUN <<EOF\necho 1\nEOF\n")
    assert await make(ImageSpec(folder=str(tmp_path))) == IMAGE
    for _ in range(2):
        assert await make(ImageSpec(name="org/x:1")) == IMAGE
    calls = (bin / "calls").read_text().splitlines()
    assert calls[0].startswith(f"build --force-rm --label {LABEL} --iidfile ")
    assert calls[0].endswith(f" {tmp_path}")
    assert (bin / "built").read_text() == 'FROM x\nRUN ["/bin/sh","-c","echo 1\\n"]\n'  # for engines of any age
    assert calls.count("pull --quiet org/x:1") == 1
    (bin / "pulled").unlink()
    with pytest.raises(SandboxError, match="docker has no image 'org/x:1', and 'pull' is off"):
        await make_image(ImageSpec(name="org/x:1"), ("docker",), pull=False)


def test_files_are_exported_and_the_container_is_removed(bin: Path, tmp_path: Path):
    (tmp_path / "out").mkdir()
    export_image("docker", IMAGE, tmp_path / "out")
    assert (tmp_path / "out/app/x").read_text() == "x"
    assert (bin / "calls").read_text().splitlines() == ["create 0123 true", "export c1", "rm --force c1"]


async def test_what_the_engine_says_is_the_error(bin: Path, tmp_path: Path):
    with pytest.raises(SandboxError, match=f"docker cannot build {tmp_path}: no Dockerfile in"):
        await make(ImageSpec(folder=str(tmp_path)))
    with pytest.raises(SandboxError, match="there is no program 'podman-of-nobody'"):
        await make(ImageSpec(name="x"), "podman-of-nobody")
    for text in ("", "[]", "{}"):
        with pytest.raises(SandboxError, match="is not understood"):
            read_inspection(text)
    assert read_inspection('[{"Id": "sha256:1"}]') == EngineImage("1", {}, "/", "")
