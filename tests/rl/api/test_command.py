"""`ludus api`, as a user runs it; killed at random points, it loses and doubles nothing."""

import http.client
import json
import random
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.api_kit import ENV, TRAINER, make_wire_group, read_tags

pytestmark = pytest.mark.usefixtures("folder")

LUDUS = Path(sys.executable).with_name("ludus")


def start_server(data: Path, *flags: str, port: int = 0) -> tuple[subprocess.Popen[str], str]:
    command = [str(LUDUS), "api", "--json", "--port", str(port), "--data", str(data), *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()[1]
    return process, json.loads(line)["url"]


@contextmanager
def serving(data: Path, *flags: str):
    process, url = start_server(data, *flags)
    try:
        yield process, url
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def call(url: str, path: str, value: Any = None, **headers: str) -> tuple[Any, Any]:
    """The JSON of a reply, and its headers."""
    body = None if value is None else json.dumps(value).encode()
    request = urllib.request.Request(url + path, body, {k.replace("_", "-"): v for k, v in headers.items()})
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.loads(reply.read()), reply.headers


def test_the_command_serves_drains_and_continues(tmp_path):
    data = tmp_path / "data"
    process, url = start_server(data)
    call(url, "/register", TRAINER)
    call(url, "/batch")
    for tag in range(3):
        call(url, "/scored_data", make_wire_group(tag=tag))
    assert read_tags(call(url, "/batch")[0]["batch"]) == [0, 1]
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert f"stopped at step 1; 1 groups wait in {data}" in err
    with serving(data) as (_, url):
        status, _ = call(url, "/status")
        assert (status["current_step"], status["queue_size"]) == (1, 1)


def test_the_start_message_says_what_to_do(tmp_path):
    command = [str(LUDUS), "api", "--port", "0"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = [process.stderr.readline() for _ in range(6)]
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
    text = "".join(lines)
    assert "runs/api-" in text
    assert "ludus serve ENV" in text
    assert "/register" in text


def test_another_address_needs_a_token(tmp_path, ludus, monkeypatch):
    refused = ludus("api", "--host", "0.0.0.0", "--data", str(tmp_path))
    assert refused.code != 0
    assert "--api.token_var" in refused.err
    monkeypatch.delenv("NO_SUCH_TOKEN", raising=False)
    missing = ludus("api", "--api.token_var", "NO_SUCH_TOKEN", "--data", str(tmp_path))
    assert missing.code != 0
    assert "NO_SUCH_TOKEN" in missing.err


def test_a_directory_in_use_is_refused(tmp_path, ludus):
    with serving(tmp_path / "data"):
        refused = ludus("api", "--port", "0", "--data", str(tmp_path / "data"))
    assert refused.code != 0
    assert "another server" in refused.err


# ---- kill -9 ------------------------------------------------------------------------------------------------------


def find_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Killer:
    """Kills the server after a sampled number of its replies, and starts it again on the same port and data."""

    def __init__(self, data: Path, sample: random.Random, kills: int, *flags: str) -> None:
        self._data, self._sample, self._flags = data, sample, flags
        self.port = find_port()
        self.left = kills
        self._lock = threading.Lock()
        self._process, self.url = start_server(data, *flags, port=self.port)
        self._countdown = sample.randint(3, 25)

    def note_reply(self) -> None:
        with self._lock:
            self._countdown -= 1
            if self._countdown > 0 or not self.left:
                return
            self.left -= 1
            self._countdown = self._sample.randint(3, 25)
            self._process.kill()  # in the middle of the other threads' requests
            self._process.communicate()
            self._process, self.url = start_server(self._data, *self._flags, port=self.port)

    def wait_for_restart(self) -> None:
        with self._lock:
            pass

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()


def send_until_answered(killer: Killer, method: str, path: str, value: Any, headers: dict[str, str]) -> Any:
    """Repeat a request until there is a whole answer."""
    while True:
        link = http.client.HTTPConnection("127.0.0.1", killer.port, timeout=60)
        try:
            link.request(method, path, None if value is None else json.dumps(value).encode(), headers)
            reply = link.getresponse()
            body = reply.read()
        except (OSError, http.client.HTTPException):
            killer.wait_for_restart()
            continue
        finally:
            link.close()
        if reply.status != 200:
            continue
        killer.note_reply()
        return json.loads(body), reply.headers.get("X-Ludus-Batch-Id")


@pytest.mark.parametrize("seed", [1, 2])
def test_kill_9_at_random_points_loses_no_group_and_doubles_none(tmp_path, seed):
    """Four environments post with keys, a trainer acknowledges; the server is killed four times on the way."""
    killer = Killer(tmp_path / "data", random.Random(seed), 4)
    per_env, total = 20, 80
    batches: dict[str, list[int]] = {}

    def feed(env: int) -> None:
        for number in range(per_env):
            group = make_wire_group(2, env * per_env + number, length=200 * (number % 7) + 3)
            key = {"X-Ludus-Idempotency-Key": f"{env}-{number}"}
            send_until_answered(killer, "POST", "/scored_data", group, key)

    def train() -> None:
        ack: dict[str, str] = {}
        while len(batches) < total // 2:
            reply, id = send_until_answered(killer, "GET", "/batch", None, {"X-Ludus-Consumer": "t", **ack})
            if reply["batch"] is not None:
                tags = read_tags(reply["batch"])
                assert batches.setdefault(id, tags) == tags
                ack = {"X-Ludus-Batch-Ack": id}

    try:
        call(killer.url, "/register", TRAINER)
        call(killer.url, "/batch")
        call(killer.url, "/register-env", ENV)
        threads = [threading.Thread(target=feed, args=(env,)) for env in range(4)]
        threads.append(threading.Thread(target=train))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive()
        status, _ = call(killer.url, "/status")
        assert (status["current_step"], status["queue_size"]) == (total // 2, 0)
    finally:
        killer.stop()
    assert killer.left == 0
    assert sorted(tag for tags in batches.values() for tag in tags) == list(range(total))
