"""Runs in a slot: starts Chromium and connects its debugging port with the driver.

    python3 browser_relay.py PORT EXECUTABLE WIDTH HEIGHT

The driver listens on the slot's 127.0.0.1:PORT. The first line that is sent to it is the path of Chromium's debugging
socket; after that, bytes are passed on in both directions. The program ends when either side ends. It uses only the
standard library of Python 3.8, because the slot may have no other.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

START_SECONDS = 50.0


def start_chromium(executable: str, profile: str, size: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [
            executable,
            "--headless",
            "--no-sandbox",  # the slot is the sandbox, and has no namespaces to give away
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-extensions",
            "--disable-background-networking",
            "--disable-component-update",
            "--no-first-run",
            "--no-default-browser-check",
            "--mute-audio",
            "--remote-allow-origins=*",
            "--remote-debugging-port=0",
            "--window-size=" + size,
            "--user-data-dir=" + profile,
            "about:blank",
        ],
        stdin=subprocess.DEVNULL,
    )


def find_socket(profile: str, chromium: "subprocess.Popen[bytes]") -> "tuple[int, str]":
    """The port and the path of the debugging socket, which Chromium writes to a file when it is ready."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        try:
            with open(os.path.join(profile, "DevToolsActivePort")) as file:  # noqa: PTH118, PTH123
                lines = file.read().split("\n")
            if len(lines) > 1 and lines[1].strip():
                return int(lines[0]), lines[1].strip()
        except FileNotFoundError:
            pass
        if chromium.poll() is not None:
            sys.exit(f"Chromium ended with exit code {chromium.returncode} when it was started")
        time.sleep(0.02)
    sys.exit("Chromium did not start in time")


def pass_on(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
    except OSError:
        pass
    os._exit(0)  # one side has ended: end Chromium's parent, and with it this program


def main() -> None:
    port, executable, size = int(sys.argv[1]), sys.argv[2], ",".join(sys.argv[3:5])
    found = shutil.which(executable)
    if found is None:
        sys.exit(f"no-executable: {executable}")
    profile = tempfile.mkdtemp(prefix="ludus-browser-")
    chromium = start_chromium(found, profile, size)
    debugging, path = find_socket(profile, chromium)
    inside = socket.create_connection(("127.0.0.1", debugging))
    outside = socket.create_connection(("127.0.0.1", port))
    outside.sendall(path.encode() + b"\n")
    threading.Thread(target=pass_on, args=(inside, outside), daemon=True).start()
    pass_on(outside, inside)


if __name__ == "__main__":
    main()
