"""`ludus sandbox`: a slot to try things in, what there is, and what dead processes have left."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ludus.cli import main
from ludus.sandbox.local.host_dir import HostDir, find_host_resources
from ludus.sandbox.owner import make_owner_mark

LUDUS = [sys.executable, "-c", "import sys; from ludus.cli import main; sys.exit(main())"]


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody else has folders."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


@pytest.fixture
def ludus(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple]:
    def run(*words: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(("sandbox", *words))
        return code, *capfd.readouterr()

    return run


def test_a_command_in_a_fresh_slot(backend, ludus):
    kind = ("--sandbox.backend", backend)
    assert ludus("exec", "echo out; echo err >&2; exit 3", *kind) == (3, "out\n", "err\n")
    assert ludus("exec", *kind, "--", "echo", "-n", "words") == (0, "words", "")
    code, out, _ = ludus("exec", "sleep 60", "--json", "--sandbox.command_seconds", "0.2", *kind)
    found = json.loads(out)
    assert code == 0
    assert (found["timed_out"], found["exit_code"]) == (True, 124)


def test_options_may_come_before_the_command_and_none_is_taken_out_of_it(ludus):
    code, out, _ = ludus("exec", "--json", "echo before")
    assert (code, json.loads(out)["stdout"]) == (0, "before\n")
    assert ludus("exec", "--sandbox.disk_mb", "8", "--", "echo", "--a.b", "c", "--json") == (0, "--a.b c --json\n", "")
    code, out, _ = ludus("exec", "--json", "--", "echo", "--a.b=c", "--", "d")
    assert json.loads(out)["stdout"] == "--a.b=c -- d\n"


def test_a_command_is_needed_and_nothing_else_takes_one(ludus):
    code, _, err = ludus("exec")
    assert code == 2
    assert "which command?" in err
    code, _, err = ludus("status", "docker")
    assert code == 2
    assert "what is 'docker'?" in err
    with pytest.raises(SystemExit):
        ludus("exec", "--jsn", "echo")


@pytest.mark.parametrize("source", ["pipe", "file"])
def test_a_shell_reads_lines_and_keeps_its_state(source, tmp_path):
    typed = "cd /tmp\nX=kept\n\necho $PWD $X\nexit 4"
    command = [*LUDUS, "sandbox", "shell", "--sandbox.backend", "local"]
    if source == "pipe":
        done = subprocess.run(command, input=typed, capture_output=True, text=True, timeout=300, check=False)
    else:
        (tmp_path / "typed").write_text(typed)
        with (tmp_path / "typed").open() as file:
            done = subprocess.run(command, stdin=file, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (4, "/tmp kept\n", "")


def test_status_names_every_backend_and_who_has_what(alone, ludus):
    host = HostDir()
    try:
        code, out, _ = ludus("status", "--json")
        text = ludus("status")[1]
    finally:
        host.close()
    found = json.loads(out)
    assert code == 0
    backends = {each["backend"] for each in found["backends"]}
    assert backends == {"bwrap", "local", "docker", "podman", "ssh", "apptainer", "nomad", "modal"}
    assert [(each["name"], each["dead"]) for each in found["held"]] == [(str(host.path), False)]
    assert f"folder {host.path} (this host): process {os.getpid()} of" in text
    assert "memory: " in text


def test_status_looks_at_the_socket_of_a_backend_that_is_not_chosen(alone, ludus, tmp_path):
    socket = tmp_path / "d.sock"
    code, out, _ = ludus("status", "--sandbox.docker.socket", str(socket))
    assert code == 0
    assert f"docker: there is no {socket}\n" in out
    assert "--sandbox.backend docker --sandbox.docker.socket SOCKET --sandbox.docker.image IMAGE" in out
    code, _, err = ludus("status", "--sandbox.docker.socket", str(socket), "--sandbox.backend", "docker")
    assert code == 2
    assert "sandbox.docker.image is not set: --sandbox.docker.image IMAGE" in err


def test_only_what_dead_processes_left_is_removed(alone, ludus, tmp_path):
    living = HostDir()
    host, boot, _, _ = make_owner_mark().split("_")
    marks = {"dead": f"{host}_{boot}_999999_1", "rebooted": f"{host}_other_{os.getpid()}_1", "elsewhere": "far_b_1_2"}
    groups = tmp_path / "groups"
    (groups / "slot-1").mkdir(parents=True)
    for name, mark in marks.items():
        folder = tmp_path / f"ludus-{name}"
        (folder / "slot-1").mkdir(parents=True)
        cgroups = [str(groups)] if name == "dead" else []
        (folder / "owner.json").write_text(json.dumps({"owner": mark, "cgroups": cgroups}))
    (tmp_path / "ludus-strange").mkdir()
    (tmp_path / "ludus-strange" / "owner.json").write_text("not ours")
    try:
        assert "2 left by dead processes; remove them with: ludus sandbox prune" in ludus("status")[1]
        code, out, _ = ludus("prune")
        assert code == 0
        assert len(out.splitlines()) == 2
        left = {each.name.rpartition("/")[2] for each in find_host_resources()}
        assert left == {living.path.name, "ludus-elsewhere"}
        assert (tmp_path / "ludus-strange").exists()
        assert not groups.exists()
        assert ludus("prune")[1] == "dead processes have left nothing\n"
    finally:
        living.close()


def test_what_others_have_laid_out_for_us_is_left_alone(alone, ludus, tmp_path):
    """Folders of another user, and links: their notes could name anything to be removed."""
    host, boot, _, _ = make_owner_mark().split("_")
    precious = tmp_path / "precious"
    (precious / "empty").mkdir(parents=True)
    note = json.dumps({"owner": f"{host}_{boot}_999999_1", "cgroups": [str(precious)]})
    (precious / "owner.json").write_text(note)
    (tmp_path / "ludus-link").symlink_to(precious)
    if os.geteuid() == 0:
        (tmp_path / "ludus-theirs").mkdir()
        (tmp_path / "ludus-theirs" / "owner.json").write_text(note)
        os.chown(tmp_path / "ludus-theirs", 12345, 12345)
    assert ludus("prune") == (0, "dead processes have left nothing\n", "")
    assert (precious / "empty").exists()


def test_what_cannot_be_removed_is_reported(alone, ludus, tmp_path, monkeypatch):
    host, boot, _, _ = make_owner_mark().split("_")
    folder = tmp_path / "ludus-stuck"
    folder.mkdir()
    (folder / "owner.json").write_text(json.dumps({"owner": f"{host}_{boot}_999999_1", "cgroups": []}))
    monkeypatch.setattr("ludus.sandbox.local.host_dir.remove_tree", lambda path: None)
    code, out, _ = ludus("prune")
    assert code == 1
    assert "ludus-stuck cannot be removed" in out


def test_a_backend_that_does_not_answer_is_reported_and_the_rest_is_not_affected(alone, ludus, tmp_path):
    docker = (
        "--sandbox.backend",
        "docker",
        "--sandbox.docker.image",
        "x",
        "--sandbox.docker.socket",
        str(tmp_path / "s"),
    )
    code, out, _ = ludus("status", *docker)
    assert code == 0
    assert "docker did not answer: the engine at" in out
    code, out, _ = ludus("prune", *docker)
    assert code == 1
    assert "cannot be reached" in out


RAISES = """
from ludus.sandbox.backend import SlotBackend

class Raises(SlotBackend):
    name = "raises"
    async def create(self, spec):
        raise OSError("no disk")
    async def list_resources(self):
        raise KeyError("list")

class ReturnsNone(SlotBackend):
    name = "none"
    async def create(self, spec):
        return None
"""


def test_a_backend_of_the_user_that_raises_is_shown_as_broken(ludus, alone, tmp_path):
    (tmp_path / "bk.py").write_text(RAISES)
    code, out, _ = ludus("status", "--sandbox.backend", f"{tmp_path}/bk.py:Raises")
    assert code == 0
    assert "broken  raises: no slot could be made: OSError: no disk (bk.py, line 7)" in out
    assert "bwrap: " in out
    assert "raises did not answer: KeyError: 'list' (bk.py, line 9)" in out


def test_a_backend_that_returns_no_slot_is_an_error(ludus, alone, tmp_path):
    (tmp_path / "bk.py").write_text(RAISES)
    code, _, err = ludus("exec", "true", "--sandbox.backend", f"{tmp_path}/bk.py:ReturnsNone")
    assert code == 2
    assert "sandbox.backend 'none' gives no slot: ReturnsNone.create returned None, which is not a Sandbox" in err
