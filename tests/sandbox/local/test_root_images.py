"""Images made of Dockerfiles, on the programs of this machine: no network and no other root file system is needed."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ludus.errors import SandboxError
from ludus.sandbox import ExecResult, ImageSpec, SandboxSpec
from ludus.sandbox.dockerfile import CopyStep, NeedsEngine
from ludus.sandbox.local.root_images import DebianBase, check_base, choose_base, find_problem, gather_copy
from ludus.sandbox.profiles import open_pool


@pytest.fixture(scope="module")
def open_folder() -> Iterator[Path]:
    """A folder that other users can pass through, as slots' users must."""
    with tempfile.TemporaryDirectory(prefix="ludus-images-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def make_spec(folder: Path, cache: Path, dockerfile: str) -> SandboxSpec:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "Dockerfile").write_text(dockerfile)
    return SandboxSpec(image=ImageSpec(folder=str(folder), bases=(("base", "host"),), cache=str(cache)))


async def run_all(spec: SandboxSpec, *commands: str) -> list[ExecResult]:
    async with open_pool("bwrap") as pool, pool.lease(spec) as box:
        return [await box.exec(command) for command in commands]


async def test_a_slot_has_the_image_as_its_root(bwrap: str, tmp_path: Path, open_folder: Path):
    (tmp_path / "files").mkdir()
    (tmp_path / "files/a.txt").write_text("a")
    dockerfile = (
        "FROM base:1\nENV WORD='two words'\nWORKDIR /app\nCOPY files/ .\nCOPY --chmod=755 files/a.txt /home/user/b\n"
        "RUN chown 7:7 a.txt && echo $WORD >w && rm /etc/timezone; mkdir /data && id -u >/data/user\nUSER nobody\n"
    )
    spec = make_spec(tmp_path, open_folder, dockerfile)
    commands = (
        "pwd; cat a.txt w /data/user; echo $WORD; stat -c %a /home/user/b; ls /etc/timezone",
        "echo x >/etc/new && echo y >>a.txt && cat /etc/new a.txt",
    )
    for _ in range(2):  # the second time from the cache, and without what the first slot changed
        first, second = await run_all(spec, *commands)
        assert first.stdout.decode() == "/app\natwo words\n0\ntwo words\n755\n"
        assert second.stdout.decode() == "x\nay\n"
    assert len([each for each in open_folder.iterdir() if each.name.startswith("image-")]) == 1


async def test_steps_have_none_of_the_drivers_variables(
    bwrap: str, tmp_path: Path, open_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    spec = make_spec(
        tmp_path, open_folder, "FROM base\nRUN env >/env.txt; cat /proc/*/environ >>/env.txt 2>/dev/null; true"
    )
    (seen,) = await run_all(spec, "cat /env.txt; env")
    assert "sk-secret" not in seen.text
    assert "APT_CONFIG" in seen.text


async def test_a_step_that_fails_is_named(bwrap: str, tmp_path: Path, open_folder: Path):
    spec = make_spec(tmp_path, open_folder, "FROM base\nRUN true\nRUN echo no such package >&2; exit 3")
    with pytest.raises(SandboxError) as caught:
        await run_all(spec, "true")
    assert "Dockerfile, line 3: 'RUN echo no such package" in str(caught.value)
    assert "exit code 3: no such package" in str(caught.value)
    assert not caught.value.retryable


async def test_other_backends_refuse_an_image(tmp_path: Path):
    with pytest.raises(SandboxError, match="which slots of 'local' do not have"):
        async with open_pool("local") as pool, pool.lease(SandboxSpec(image=ImageSpec(folder=str(tmp_path)))):
            pass


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("debian:bookworm-slim", DebianBase("bookworm", False)),
        ("docker.io/library/debian:12.5", DebianBase("bookworm", False)),
        ("debian", DebianBase("trixie", False)),
        ("python:3.11-slim", DebianBase("bookworm", True)),
        ("python:3.11.4-slim-bookworm", DebianBase("bookworm", True)),
        ("python:3.13-slim-bookworm", DebianBase("trixie", True)),
        ("ghcr.io/laude-institute/t-bench/python-3-13:20250620", DebianBase("trixie", True)),
        ("ubuntu:24.04", "/roots/noble"),
        ("mine:2", "host"),
    ],
)
def test_what_a_base_means(name: str, base: object):
    assert choose_base(name, [("ubuntu:24.04", "/roots/noble"), ("mine", "host")]) == base


@pytest.mark.parametrize("name", ["ubuntu:22.04", "alpine", "python:3.12", "python:3.11-alpine3", "debian:sid"])
def test_what_is_no_base(name: str):
    with pytest.raises(NeedsEngine, match=r"map it with --env\.bases"):
        choose_base(name, [("ubuntu:24.04", "/roots/noble")])


def test_why_an_image_cannot_be_made(tmp_path: Path):
    assert "Dockerfile cannot be read: No such file" in find_problem(ImageSpec(folder=str(tmp_path)))
    (tmp_path / "Dockerfile").write_text("FROM scratch")
    assert find_problem(ImageSpec(folder=str(tmp_path))) == "line 1: FROM scratch"
    assert check_base(str(tmp_path)) == f"there is no root file system in {tmp_path}"
    (tmp_path / "usr").mkdir()
    assert check_base(str(tmp_path)) == ""


def test_files_of_a_copy(tmp_path: Path):
    for name in ("a.txt", "sub/b.txt", "sub/skip.pyc", "other/c.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / ".dockerignore").write_text("**/*.pyc\n.dockerignore\nother\n")

    def list_copy(*sources: str, target: str, is_folder: bool) -> list[str]:
        entries = gather_copy(tmp_path, CopyStep(sources, target, None, 1), is_folder=is_folder)
        return sorted(entry.path for entry in entries if not entry.is_folder)

    assert list_copy(".", target="/app/", is_folder=True) == ["app/a.txt", "app/sub/b.txt"]
    assert list_copy("sub", target="/x", is_folder=False) == ["x/b.txt"]
    assert list_copy("a.txt", target="/x", is_folder=False) == ["x"]
    assert list_copy("a.txt", target="/x", is_folder=True) == ["x/a.txt"]
    assert list_copy("*.txt", "sub", target="/x/", is_folder=True) == ["x/a.txt", "x/b.txt"]
    with pytest.raises(NeedsEngine, match="line 1: COPY other: there is no such file"):
        list_copy("other", target="/x", is_folder=True)
