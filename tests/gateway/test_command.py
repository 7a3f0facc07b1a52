"""`ludus gateway`, as a user runs it."""

import json
import signal
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cli_kit import post, serve_gateway

from ludus.config.references import Seam
from ludus.errors import ConfigError
from ludus.gateway.command import COMMAND, check_host, run

SCRIPT = """
import asyncio, pathlib

async def reply(messages, tools, sampling):
    if messages[-1].content == "slow":
        pathlib.Path("begun").touch()
        while not pathlib.Path("go on").exists():
            await asyncio.sleep(0.01)
    return f"{messages[-1].content}, {sampling.temperature}"
"""


@contextmanager
def serving(folder: Path, *flags: str, environment: dict[str, str] | None = None):
    """The command, up; ended with Ctrl-C."""
    (folder / "play.py").write_text(SCRIPT)
    script = ["--model.type", "scripted", "--model.script", "play.py:reply"]
    with serve_gateway(folder, *script, *flags, environment=environment) as up:
        yield up


def ask(url: str, words: str, key: str = "") -> dict:
    return post(url + "/chat/completions", {"messages": [{"role": "user", "content": words}], "temperature": 0}, key)


def written(folder: Path) -> dict[str, dict]:
    lines = (folder / "run" / "sessions.jsonl").read_text().splitlines()
    return {record["name"]: record for record in map(json.loads, lines)}


def test_sessions_are_recorded_and_ctrl_c_drains(tmp_path):
    with serving(tmp_path, "--sampling.temperature", "0.5", "--gateway.session.calls", "2") as (process, url):
        assert ask(url + "/v1", "hi", "anna")["choices"][0]["message"]["content"] == "hi, 0.5"
        replies = []
        slow = threading.Thread(target=lambda: replies.append(ask(url + "/s/bob/v1", "slow")))
        slow.start()
        while slow.is_alive() and not (tmp_path / "begun").exists():
            time.sleep(0.01)
        ask(url + "/v1", "hi", "anna")
        with pytest.raises(urllib.error.HTTPError, match="429") as refused:
            ask(url + "/v1", "hi", "anna")
        refused.value.close()
        process.send_signal(signal.SIGINT)
        (tmp_path / "go on").touch()
        slow.join()
        process.wait(60)
    assert process.returncode == 0
    assert replies[0]["choices"][0]["message"]["content"] == "slow, 0.5"
    records = written(tmp_path)
    assert {name: len(record["exchanges"]) for name, record in records.items()} == {"anna": 2, "bob": 1}
    assert records["anna"]["stop"] == "budget"


def test_agents_may_have_their_own_sampling_and_need_the_token(tmp_path):
    flags = ["--gateway.enforce", "false", "--gateway.token_var", "TEST_GATEWAY_TOKEN"]
    with serving(tmp_path, *flags, environment={"TEST_GATEWAY_TOKEN": "hush"}) as (_, url):
        assert ask(url + "/v1", "hi", "hush.anna")["choices"][0]["message"]["content"] == "hi, 0.0"
    assert set(written(tmp_path)) == {"anna"}
    assert "hush" not in (tmp_path / "run" / "sessions.jsonl").read_text()


def test_routes_of_another_system_need_its_package(ludus, monkeypatch):
    monkeypatch.setattr(Seam, "find_installed", lambda seam: {})
    done = ludus("gateway", "--gateway.atropos", "true", "--gateway.port", "0")
    assert done.code == 2 and "gateway.atropos: this needs another package: pip install" in done.err


def test_scores_and_agents_need_different_tokens(tmp_path, monkeypatch):
    monkeypatch.setenv("TEST_GATEWAY_TOKEN", "hush")
    flags = ["--gateway.token_var", "TEST_GATEWAY_TOKEN", "--gateway.score_token_var", "TEST_GATEWAY_TOKEN"]
    with pytest.raises(ConfigError, match="scores need another one"):
        run(COMMAND.arguments(flags=list(zip(*[iter(w.removeprefix("--") for w in flags)] * 2, strict=True)),
                              config=[], out="run", print_config=False, json=True))  # fmt: skip


def test_other_machines_need_a_token():
    for host in ("127.0.0.1", "localhost", "::1", "127.3.4.5"):
        check_host(host, "", "gateway")
    for host in ("0.0.0.0", "::", "example.org", "10.0.0.1"):
        with pytest.raises(ConfigError, match="token_var"):
            check_host(host, "", "gateway")
        check_host(host, "hush", "gateway")
