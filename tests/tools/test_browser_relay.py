"""The relay in the slot, with a small program in place of Chromium."""

import socket
import subprocess
import sys
from pathlib import Path

from ludus.tools import browser_relay

RELAY = browser_relay.__file__
CHROMIUM = """#!{python}
import pathlib, socket, sys
(profile,) = [word.partition("=")[2] for word in sys.argv if word.startswith("--user-data-dir=")]
server = socket.create_server(("127.0.0.1", 0))
pathlib.Path(profile, "DevToolsActivePort").write_text(f"{{server.getsockname()[1]}}\\n/devtools/browser/x")
connection, _ = server.accept()
connection.sendall(connection.recv(100).upper())
"""


def start(port: int, executable: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-I", RELAY, str(port), executable, "800", "600"]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def test_bytes_go_both_ways_until_one_side_ends(tmp_path: Path):
    program = tmp_path / "chromium"
    program.write_text(CHROMIUM.format(python=sys.executable))
    program.chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as driver:
        relay = start(driver.getsockname()[1], str(program))
        connection, _ = driver.accept()
        with connection, connection.makefile("rb") as reader:
            assert reader.readline() == b"/devtools/browser/x\n"
            connection.sendall(b"hello")
            assert reader.read() == b"HELLO"
        assert relay.wait(timeout=60) == 0
        assert relay.stderr is not None
        relay.stderr.close()


def test_no_chromium_and_one_that_ends_at_once():
    for executable, words in {
        "/no/such/file": "no-executable: /no/such/file",
        "false": "ended with exit code 1",
    }.items():
        relay = start(1, executable)
        _, err = relay.communicate(timeout=60)
        assert relay.returncode == 1 and words in err
