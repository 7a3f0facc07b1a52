"""Pools and profiles from settings: chosen by name, by section, by profile, or a class of the user's own."""

import msgspec
import pytest

from ludus.cli import main
from ludus.config import load
from ludus.config.build_agent import build_env, build_slot
from ludus.config.build_sandboxes import list_sections, make_profiles, open_sandboxes, open_slots
from ludus.errors import ConfigError
from ludus.sandbox import SandboxSpec
from ludus.sandbox.backend_settings import BwrapSettings, DockerSettings, LocalSettings, SshSettings
from ludus.sandbox.backends import SandboxSettings

MODEL = "def say(messages, tools, sampling):\n    return 'done'\n"

OWN = '''
from ludus.sandbox.backend import BackendSettings, SlotBackend
from ludus.sandbox.local.unisolated import Local


class MineSettings(BackendSettings, frozen=True, kw_only=True):
    greeting: str
    token_var: str = ""


class Mine(SlotBackend[MineSettings]):
    """Local slots that start with a file."""

    name = "mine"
    Settings = MineSettings

    def __init__(self, settings, secrets):
        super().__init__(settings, secrets)
        self.local = Local()

    async def create(self, spec):
        box = await self.local.create(spec)
        await box.write("greeting", f"{self.settings.greeting} {self.secrets['token']}".encode())
        return box

    async def close(self):
        await self.local.close()


class Refuses(SlotBackend):
    name = "refuses"

    def __init__(self, settings, secrets):
        raise OSError("no disk")

    async def create(self, spec):
        pass
'''


def test_a_backend_that_is_not_there_is_reported_before_the_run_begins(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models.py").write_text(MODEL)
    docker = ["--sandbox.backend", "docker", "--sandbox.docker.image", "x", "--sandbox.docker.socket", "nowhere"]
    scripted = ["--model.type", "scripted", "--model.script", "models.py:say"]
    assert main(["process", "terminal-test", "--out", "r", *scripted, *docker]) == 2
    assert "sandbox.backend 'docker' gives no slot: the engine at nowhere cannot be reached" in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    "command",
    [
        ["evaluate", "harbor", "--out", "r"],
        ["process", "harbor", "--out", "r"],
        ["train", "harbor", "--out", "r"],
        ["validate", "harbor"],
    ],
    ids=lambda words: words[0],
)
def test_tasks_with_images_are_refused_before_the_run_begins_where_there_are_none(
    command, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models.py").write_text(MODEL)
    scripted = ["--model.type", "scripted", "--model.script", "models.py:say"] if command[0] != "validate" else []
    for backend in (["local"], ["ssh", "--sandbox.ssh.hosts", "nowhere.invalid"]):
        assert main([*command, *scripted, "--sandbox.backend", *backend]) == 2
        told = capsys.readouterr().err
        assert (
            f"sandbox.backend: tasks of this kind need a root file system of their own, which slots of '{backend[0]}'"
            in told
        )
        assert "--env.engine docker" in told
    assert not (tmp_path / "r").exists()


def test_which_images_a_backend_has_decides_what_harbor_runs(tmp_path):
    for name, image in (("named", "docker_image = 'org/x:1'"), ("built", "")):
        for path, text in {
            "task.toml": f"[environment]\n{image}\n",
            "instruction.md": "Do it.",
            "environment/Dockerfile": "FROM alpine:3\n",
            "tests/test.sh": "true",
        }.items():
            file = tmp_path / name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    def list_tasks(backend: str, *more: tuple[str, str]) -> list[str]:
        config = load([], [("env.name", "harbor"), ("env.path", str(tmp_path)), ("sandbox.backend", backend), *more])
        return [task.id for task in build_env(config).tasks("train")]

    assert list_tasks("docker") == list_tasks("podman") == list_tasks("modal") == ["built", "named"]
    assert list_tasks("nomad") == ["named"]
    with pytest.raises(ConfigError, match="none of the 2 tasks can be run here: built: FROM alpine:3"):
        list_tasks("bwrap")
    with pytest.raises(ConfigError, match=r"env.engine 'backend' is for backends that make images themselves"):
        list_tasks("bwrap", ("env.engine", "backend"))


async def test_an_engine_that_is_not_there_is_reported_before_the_run_begins():
    config = load([], [("env.name", "harbor"), ("sandbox.backend", "docker"), ("sandbox.docker.socket", "/nowhere")])

    with pytest.raises(ConfigError, match=r"sandbox.backend 'docker' gives no slot: there is no /nowhere"):
        async with open_sandboxes(config, build_slot(config, build_env(config))):
            raise AssertionError("not reached")


def read(text: str, tmp_path):
    (tmp_path / "c.yaml").write_text(text)
    return load([tmp_path / "c.yaml"]).sandbox


def test_a_backend_is_described_in_the_section_of_its_name(tmp_path):
    sandbox = read("sandbox: {backend: docker, docker: {image: python:3.11, slots: 4, env: {A: b}}}", tmp_path)
    assert make_profiles(sandbox) == {"": DockerSettings(image="python:3.11", slots=4, env={"A": "b"})}
    assert make_profiles(load().sandbox) == {"": BwrapSettings()}
    assert make_profiles(load([], [("sandbox.backend", "local")]).sandbox) == {"": LocalSettings()}


def test_the_sections_of_backends_that_are_not_used_may_be_incomplete(tmp_path):
    sandbox = read("sandbox: {docker: {socket: /d.sock}}", tmp_path)
    assert make_profiles(sandbox) == {"": BwrapSettings()}
    assert list_sections(sandbox) == {"docker": DockerSettings(socket="/d.sock")}


def test_profiles_have_names(tmp_path):
    sandbox = read(
        "sandbox: {profile: far, profiles: {far: {backend: ssh, hosts: [a, b]}, near: {backend: local}}}", tmp_path
    )
    assert make_profiles(sandbox) == {
        "": BwrapSettings(),
        "far": SshSettings(hosts=("a", "b")),
        "near": LocalSettings(),
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{backend: docker}", "sandbox.docker.image is not set"),
        ("{backend: docker, docker: {slots: 2}}", "sandbox.docker.image is not set: --sandbox.docker.image IMAGE"),
        ("{docker: {image: a, slot: 2}}", "sandbox.docker.slot: unknown setting; did you mean 'sandbox.docker.slots'"),
        ("{backend: dcoker}", "sandbox.backend: unknown sandbox backend 'dcoker'; did you mean 'docker'"),
        (
            "{profiles: {a: {backend: dcoker}}}",
            "sandbox.profiles.a.backend: 'dcoker' is not one; did you mean 'docker'",
        ),
        ("{profiles: {a: {backend: docker}}}", "sandbox.profiles.a.image is not set"),
        ("{profiles: {a: {image: x}}}", "sandbox.profiles.a.backend: not set"),
        ("{nomad: {token_var: 'my secret!'}}", "sandbox.nomad.token_var: this is not the name"),
        ("{docker: {image: a, env: {API_KEY: b}}}", "API_KEY looks like a secret"),
        ("{backend: local, require_sandbox: true}", "isolates nothing"),
        ("{backend: ssh, ssh: {hosts: [a], trusted: true}, require_sandbox: true}", "isolates nothing"),
    ],
)
def test_wrong_settings_are_reported(text, words, tmp_path):
    with pytest.raises(ConfigError) as told:
        make_profiles(read(f"sandbox: {text}", tmp_path))
    assert words in str(told.value)


async def test_a_profile_that_is_not_there_is_reported_before_anything_runs():
    with pytest.raises(ConfigError, match="no sandbox profile 'gpu'"):
        config = load([], [("env.name", "terminal-test"), ("sandbox.profile", "gpu")])
        async with open_sandboxes(config, build_slot(config, build_env(config))):
            raise AssertionError("not reached")


async def test_the_settings_of_the_section_are_the_pool_s():
    config = load([], [("sandbox.backend", "local"), ("run.concurrency", "3"), ("sandbox.warm", "1")])

    async with open_slots(config, SandboxSpec()) as pool:
        assert (pool._max_slots, pool._settings.warm, pool._settings.acquire_seconds) == (4, 1, 600.0)
        async with pool.lease(SandboxSpec()) as box:
            assert (await box.exec("echo on")).stdout == b"on\n"


# ---- a backend of the user's own ----------------------------------------------------------------------------------


def test_a_backend_class_of_a_file_makes_the_slots(tmp_path, monkeypatch, capfd):
    (tmp_path / "mine.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINE_TOKEN", "t0ken")
    words = ["--sandbox.backend", "mine.py:Mine", "--sandbox.options.greeting", "hello"]
    words += ["--sandbox.options.token_var", "MINE_TOKEN"]
    assert main(["sandbox", "exec", "cat greeting", *words]) == 0
    assert capfd.readouterr().out == "hello t0ken"
    assert main(["sandbox", "status", *words]) == 0
    assert "works   mine: a slot ran" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"backend": "mine.py:Mine"}, "sandbox.options.greeting: not set"),
        (
            {"backend": "mine.py:Mine", "options": "{greeting: a, greting: b}"},
            "did you mean 'sandbox.options.greeting'",
        ),
        ({"backend": "mine.py:Nobody"}, "mine.py has no 'Nobody'"),
        ({"backend": "mine.py:MineSettings"}, "is not a sandbox backend: it must be a class derived from SlotBackend"),
        ({"backend": "nowhere.py:Mine"}, "there is no file"),
        ({"backend": "mine.py:Mine", "options": "{greeting: a, token_var: NOT_SET}"}, "variable NOT_SET is not set"),
        ({"backend": "mine.py:Mine", "options": "{greeting: a}", "require_sandbox": "true"}, "isolates nothing"),
        (
            {"backend": "local", "options": "{a: b}"},
            "sandbox.options has the settings of a backend of your own; 'local' has",
        ),
        ({"backend": "docker", "options": "{a: b}"}, "the settings of 'docker' are in sandbox.docker"),
        ({"backend": "mine.py:Refuses"}, "sandbox.backend: Refuses could not be made: OSError: no disk (mine.py, line"),
    ],
)
def test_a_class_or_option_that_is_wrong_is_reported(flags, words, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as error:
        make_profiles(load([], [(f"sandbox.{name}", value) for name, value in flags.items()]).sandbox)
    assert words in str(error.value)


def test_the_sandbox_section_has_every_setting_of_a_slot_that_is_plain():
    ours = {f.name for f in msgspec.structs.fields(SandboxSettings)}
    assert {f.name for f in msgspec.structs.fields(SandboxSpec)} - ours == {
        "env",
        "base",
        "caches",
        "folders",
        "image",
    }, "those are the environment's own"
