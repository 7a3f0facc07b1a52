"""The doctor says what works, and what to do about the rest."""

import json
import threading
import tomllib
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ludus.config import load
from ludus.host_checks import (
    EXTRAS,
    HostFinding,
    check_disk,
    check_extras,
    check_host,
    check_python,
    check_sandboxes,
    check_server,
    format_findings,
    is_healthy,
    make_models_request,
)
from ludus.models.server import ServerSettings

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
MODELS = json.dumps({"object": "list", "data": [{"id": "qwen-small"}, {"id": "qwen-large"}]})


@contextmanager
def serve_models(status: int, body: str) -> Generator[tuple[str, list[tuple[str, str]]]]:
    """A server that answers every GET alike; what it was asked is noted."""
    asked: list[tuple[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers.get("Authorization") or self.headers.get("x-api-key") or ""))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


def make_model(**settings: str) -> ServerSettings:
    found = load([], [(f"model.{name}", value) for name, value in settings.items()]).model
    assert isinstance(found, ServerSettings)
    return found


async def check_served(status: int, body: str, **settings: str) -> HostFinding:
    with serve_models(status, body) as (url, _):
        return await check_server(make_model(base_url=f"{url}/v1", **settings))


@pytest.mark.parametrize(
    ("status", "body", "name", "verdict", "words"),
    [
        (200, MODELS, "qwen-small", "ok", "lists the model"),
        (200, MODELS, "", "ok", "the server answers"),
        (200, MODELS, "qwen-smal", "warn", "does not list 'qwen-smal'"),
        (200, "<html>", "m", "warn", "not with a list of models"),
        (404, "", "m", "warn", "status 404"),
        (401, "", "m", "fail", "the server refuses the key (none was sent)"),
    ],
)
async def test_what_a_server_s_answer_means(status: int, body: str, name: str, verdict: str, words: str):
    finding = await check_served(status, body, name=name)
    assert finding.status == verdict
    assert words in finding.message


async def test_a_near_name_is_suggested():
    assert (await check_served(200, MODELS, name="qwen-smal")).remedy == "did you mean 'qwen-small'?"


async def test_the_key_is_sent_and_not_shown(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MY_KEY", "sk-secret-value")
    with serve_models(401, "no") as (url, asked):
        finding = await check_server(make_model(base_url=f"{url}/v1", name="m", api_key_var="MY_KEY"))
    assert asked == [("/v1/models", "Bearer sk-secret-value")]
    assert "in MY_KEY" in finding.message and "sk-secret" not in finding.message


async def test_a_missing_key_and_a_dead_server_fail(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("MY_KEY", raising=False)
    missing = await check_server(make_model(base_url="http://127.0.0.1:9", name="m", api_key_var="MY_KEY"))
    assert missing.status == "fail" and "MY_KEY is not set" in missing.message
    dead = await check_server(make_model(base_url="http://127.0.0.1:9/v1", name="m"))
    assert dead.status == "fail" and "127.0.0.1:9" in dead.message and dead.remedy


@pytest.mark.parametrize(
    ("kind", "url", "header"),
    [
        ("openai", "http://h/v1/models", ("Authorization", "Bearer k")),
        ("anthropic", "http://h/v1/v1/models", ("x-api-key", "k")),
        ("azure", "http://h/v1/openai/models?api-version=2024-10-21", ("api-key", "k")),
    ],
)
def test_where_each_kind_of_server_lists_its_models(kind: str, url: str, header: tuple[str, str]):
    found, headers = make_models_request(make_model(type=kind), "http://h/v1/", "k")
    assert found == url
    assert header in headers.items()


def test_an_old_python_and_a_full_disk():
    assert check_python((3, 10)).status == "fail"
    assert check_python((3, 12)).status == "ok"
    assert check_disk(5_000_000).status == "warn"
    assert check_disk(50_000_000_000).message == "50.0 GB free"


async def test_the_sandbox_is_really_tried():
    findings = await check_sandboxes(load())
    assert findings[0].what == "sandbox bwrap"
    if findings[0].status == "ok":
        assert {f.what for f in findings[1:]} >= {"sandbox memory", "sandbox processes"}
    else:
        assert findings[0].remedy


async def test_every_backend_has_a_line_and_only_those_that_are_wanted_can_fail():
    findings = {f.what: f for f in await check_sandboxes(load())}
    names = ("bwrap", "local", "docker", "podman", "ssh", "apptainer", "nomad", "modal")
    assert {f"sandbox {name}" for name in names} <= set(findings)
    for name in names[1:]:
        finding = findings[f"sandbox {name}"]
        assert finding.status != "fail"
        assert finding.status == "ok" or finding.remedy


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"backend": "docker"}, "sandbox.docker.image is not set"),
        ({"backend": "docker", "docker.image": "x", "docker.socket": "/nowhere/d.sock"}, "/nowhere/d.sock"),
        ({"backend": "nomad", "nomad.token_var": "LUDUS_NO_SUCH_VARIABLE"}, "LUDUS_NO_SUCH_VARIABLE is not set"),
    ],
)
async def test_a_backend_that_is_wanted_and_does_not_work_fails(flags: dict[str, str], words: str):
    config = load([], [(f"sandbox.{name}", value) for name, value in flags.items()])
    findings = await check_sandboxes(config)
    assert findings[0].status == "fail"
    assert words in findings[0].message


async def test_local_slots_say_that_they_hold_nothing():
    findings = await check_sandboxes(load([], [("sandbox.backend", "local")]))
    assert "isolates nothing" in findings[0].message
    assert {f.status for f in findings if f.what == "sandbox memory"} == {"warn"}


def test_extras_are_optional():
    for finding in check_extras():
        assert finding.status == "ok" or finding.remedy.startswith("pip install 'ludus-train[")
    extras = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    for extra, (module, _) in EXTRAS.items():
        assert any(requirement.startswith(module) for requirement in extras[extra])


async def test_every_server_is_checked(tmp_path: Path):
    with serve_models(200, MODELS) as (first, _), serve_models(500, "") as (second, _):
        config = load([], [("model.base_url", first), ("model.servers", second), ("model.name", "qwen-small")])
        findings = [f for f in await check_host(config, tmp_path) if f.what == "model server"]
    assert [f.status for f in findings] == ["ok", "warn"]
    assert first in findings[0].message and second in findings[1].message


async def test_everything_at_once(tmp_path: Path):
    findings = await check_host(load(), tmp_path)
    assert {"python", "ludus", "sandbox bwrap", "embedded model", "disk"} <= {f.what for f in findings}
    assert "model server" not in {f.what for f in findings}
    text = format_findings([HostFinding("a", "ok", "fine"), HostFinding("b", "fail", "broken", "mend it")])
    assert text == "ok    a: fine\nfail  b: broken\n      → mend it"
    assert not is_healthy([HostFinding("b", "fail", "broken")])
    assert is_healthy([HostFinding("b", "warn", "missing")])


async def test_a_check_that_raises_is_a_finding_and_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> Path:
        raise PermissionError(13, "Permission denied", "/root/.cache")

    async def fail(_: object) -> list[HostFinding]:
        raise KeyError("getpwuid(): uid not found: 65534")

    monkeypatch.setattr("ludus.host_checks.find_weights_folder", refuse)
    monkeypatch.setattr("ludus.host_checks.check_sandboxes", fail)
    found = {each.what: each for each in await check_host(load(), tmp_path / "missing")}
    assert found["python"].status == "ok"
    assert (found["sandbox"].status, found["disk"].status) == ("fail", "warn")
    assert "uid not found: 65534" in found["sandbox"].message
    if "is not installed" not in found["embedded model"].message:
        assert "may not look for its weights" in found["embedded model"].message
        assert "XDG_CACHE_HOME" in found["embedded model"].remedy
