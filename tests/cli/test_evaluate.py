"""`ludus evaluate`."""

import json
import threading
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.cli_kit import (
    Ludus,
    script_flags,
    write_sums,
)


@pytest.fixture(autouse=True)
def _files(folder: Path) -> None:
    write_sums(folder)


def test_evaluate_for_machines_is_json_alone(ludus: Ludus, folder: Path):
    code, out, _ = ludus("evaluate", "sums.py", "--out", "r", "--json", *script_flags())
    assert code == 0
    found = json.loads(out)
    assert (found["status"], found["run"], found["resume"]) == ("completed", "r", "")
    assert found["summary"]["overall"]["mean"] == 1.0
    assert found["ledger"]["agent"]["calls"] == 4
    assert json.loads(Path(found["files"]["summary"]).read_text()) == found["summary"]


def test_a_real_sandbox_end_to_end(ludus: Ludus):
    code, out, err = ludus("evaluate", "terminal-test", "--out", "r", "--json", *script_flags("write"))
    assert code == 0, err
    assert json.loads(out)["summary"]["overall"]["mean"] == 1.0


SECRET = "sk-this-is-the-secret-value"


@pytest.fixture
def echoing_server() -> Generator[str]:
    """A model server that gives back the key it was sent, as a careless one might."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            reply = {"choices": [{"message": {"role": "assistant", "content": self.headers["Authorization"]}}]}
            body = json.dumps(reply).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()


def test_a_key_is_in_no_file_and_no_output(
    ludus: Ludus, folder: Path, echoing_server: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MY_KEY", SECRET)
    server = ["--model.base_url", echoing_server, "--model.name", "m", "--model.api_key_var", "MY_KEY"]
    for command in ("process", "evaluate"):
        code, out, err = ludus(command, "sums.py", "--out", command, *server)
        assert code == 0, err
        files = [path for path in (folder / command).rglob("*") if path.is_file()]
        assert len(files) >= 5
        assert not [path for path in files if SECRET.encode() in path.read_bytes()]
        assert any(b"[redacted]" in path.read_bytes() for path in files)
        assert SECRET not in out + err
    assert SECRET not in ludus("process", "sums.py", "--print-config", *server).out
