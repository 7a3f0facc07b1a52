"""Asking a run: what goes over the wire, and what there is to say if no run answers."""

import socket
import threading
from pathlib import Path

import msgspec
import pytest

from ludus.control_client import FOLDER, SOCKET, ControlReply, ControlRequest, RequeueRequest, SetRequest, ask_run
from ludus.errors import StoreError


def answer_once(folder: Path, reply: bytes) -> threading.Thread:
    """A stand-in for a run that answers one request with these bytes."""
    folder.mkdir(parents=True)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(folder / SOCKET))
    listening.listen()

    def serve() -> None:
        with listening, listening.accept()[0] as client:
            client.recv(1000)
            client.sendall(reply)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("request_", "line"),
    [
        (SetRequest(concurrency=3), b'{"do":"set","concurrency":3}'),
        (RequeueRequest(ids=("a", "b#2")), b'{"do":"requeue","ids":["a","b#2"]}'),
    ],
)
def test_requests_are_plain_json(request_: ControlRequest, line: bytes):
    assert msgspec.json.encode(request_) == line
    assert msgspec.json.decode(line, type=ControlRequest) == request_


def test_a_reply_is_read_whole(tmp_path: Path):
    reply = ControlReply(ok=True, text="x" * 200_000)
    thread = answer_once(tmp_path / FOLDER, msgspec.json.encode(reply) + b"\n")
    assert ask_run(tmp_path, SetRequest(concurrency=1)) == reply
    thread.join()


@pytest.mark.parametrize("reply", [b"", b"nonsense\n", b'{"ok":'])
def test_what_is_no_reply_is_an_error(tmp_path: Path, reply: bytes):
    thread = answer_once(tmp_path / FOLDER, reply)
    with pytest.raises(StoreError, match="no run answers there"):
        ask_run(tmp_path, SetRequest(concurrency=1))
    thread.join()


def test_a_run_that_does_not_answer_is_not_waited_for_for_ever(tmp_path: Path):
    (tmp_path / FOLDER).mkdir()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / FOLDER / SOCKET))
        listening.listen()
        with pytest.raises(StoreError, match=r"did not answer within 0\.1 s"):
            ask_run(tmp_path, SetRequest(concurrency=1), 0.1)
