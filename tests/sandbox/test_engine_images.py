"""The commands of an engine, by a stand-in. `tests/sandbox/remote/test_engine_builds.py` has a real one."""

import json
import os
from pathlib import Path

import pytest

from ludus.errors import SandboxError
from ludus.sandbox import ImageSpec
from ludus.sandbox.local.engine_images import EngineImage, export_image, make_image, read_inspection

DOCKER = """#!/bin/bash
here=$(dirname "$0")
echo "$*" >>"$here/calls"
case "$1 $2" in
"build --quiet") [ -f "$3/Dockerfile" ] || { echo "no Dockerfile in $3" >&2; exit 1; }; echo sha256:built ;;
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


def test_a_folder_is_built_and_a_name_pulled_once(bin: Path, tmp_path: Path):
    (tmp_path / "Dockerfile").write_text("FROM x")
    assert make_image(ImageSpec(engine="docker", folder=str(tmp_path))) == IMAGE
    for _ in range(2):
        assert make_image(ImageSpec(engine="docker", name="org/x:1")) == IMAGE
    calls = (bin / "calls").read_text().splitlines()
    assert calls[0] == f"build --quiet {tmp_path}"
    assert calls.count("pull --quiet org/x:1") == 1


def test_files_are_exported_and_the_container_is_removed(bin: Path, tmp_path: Path):
    (tmp_path / "out").mkdir()
    export_image("docker", IMAGE, tmp_path / "out")
    assert (tmp_path / "out/app/x").read_text() == "x"
    assert (bin / "calls").read_text().splitlines() == ["create 0123 true", "export c1", "rm --force c1"]


def test_what_the_engine_says_is_the_error(bin: Path, tmp_path: Path):
    with pytest.raises(SandboxError, match=f"'docker build --quiet {tmp_path}' failed: no Dockerfile in"):
        make_image(ImageSpec(engine="docker", folder=str(tmp_path)))
    with pytest.raises(SandboxError, match="there is no program 'podman-of-nobody'"):
        make_image(ImageSpec(engine="podman-of-nobody", name="x"))
    for text in ("", "[]", "{}"):
        with pytest.raises(SandboxError, match="is not understood"):
            read_inspection(text)
    assert read_inspection('[{"Id": "sha256:1"}]') == EngineImage("1", {}, "/", "")
