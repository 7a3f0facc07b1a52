"""Parts of the benchmarks: tables, verdicts, checks, the mock, and the drivers that need no peer.

No measured figure is asserted.
"""

import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))  # the benchmarks are scripts, not a package

import common  # noqa: E402
import footprint  # noqa: E402
import loop  # noqa: E402
import mock_openai  # noqa: E402
from peers.meter import Reading  # noqa: E402


def test_table_aligns_figures_to_the_right() -> None:
    assert common.render_table([("system", "ms"), ("ours", 0.314), ("a peer", 7.9), ("gone", "")]).splitlines() == [
        "| system |   ms |",
        "|--------|-----:|",
        "| ours   | 0.31 |",
        "| a peer |  7.9 |",
        "| gone   |      |",
    ]


@pytest.mark.parametrize(
    ("number", "text"), [(0.03125, "0.031"), (0.6, "0.6"), (7.941, "7.94"), (24.27, "24.3"), (1312.4, "1312"), (0, "0")]
)
def test_format_figure(number: float, text: str) -> None:
    assert common.format_figure(number) == text


def test_verdict_is_one_line_and_an_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    good, floor = common.Check("cpu", 0.31, 0.6, "ms/turn"), common.Check("lead", 11, 12, "x", at_least=True)
    assert common.print_verdict("loop", [good], notes=["peers not run"]) == 0
    assert common.print_verdict("loop", [good, floor]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "loop: PASS cpu 0.31 ms/turn (target ≤ 0.6), peers not run",
        "loop: FAIL cpu 0.31 ms/turn (target ≤ 0.6), lead 11 x (MISSED target ≥ 12)",
    ]


def test_a_venv_is_ready_only_for_the_requirements_it_was_made_for(tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.touch()
    assert common.find_venv(tmp_path, ["a"]) is None
    (tmp_path / "requirements.txt").write_text("a\nb==1")
    assert common.find_venv(tmp_path, ["a", "b==1"]) == python
    assert common.find_venv(tmp_path, ["a"]) is None


def test_footprint_counts_files_and_distributions(tmp_path: Path) -> None:
    (tmp_path / "some_pkg-1.2.dist-info").mkdir()
    (tmp_path / "some_pkg-1.2.dist-info" / "METADATA").write_bytes(b"x" * 500_000)
    (tmp_path / "code.py").write_bytes(b"x" * 500_000)
    (tmp_path / "link.py").symlink_to(tmp_path / "code.py")
    assert footprint.measure_size(tmp_path) == pytest.approx(1.0, abs=0.01)
    assert footprint.list_packages(tmp_path) == {"some_pkg"}


# ---- judging ------------------------------------------------------------------------------------------------------


def make_row(
    system: loop.System, cpu_ms: float, *, at_once: int = 64, grown_mb: float = 1.0, perfect: int = 100
) -> loop.Row:
    reading = Reading(system.name, 100, at_once, perfect, cpu_ms * 0.4, 1.0, 50.0, 50.0 + grown_mb)
    return loop.judge_row(loop.Row(system, at_once, reading))


PEER = loop.PEERS[0]


def list_missed(rows: list[loop.Row]) -> list[str]:
    return [check.name for check in loop.make_checks(rows)[0] if not check.passed]


def test_all_targets_met() -> None:
    rows = [make_row(loop.OURS, 0.3), make_row(loop.OURS, 0.4, at_once=1024), make_row(PEER, 8.0)]
    assert list_missed(rows) == []
    assert loop.make_checks(rows)[1] == []


@pytest.mark.parametrize(
    ("rows", "missed"),
    [
        ([make_row(loop.OURS, 0.7)], ["cpu"]),
        ([make_row(loop.OURS, 0.2), make_row(loop.OURS, 0.5, at_once=1024)], ["spread"]),
        ([make_row(loop.OURS, 0.3, grown_mb=10.0)], ["memory"]),
        ([make_row(loop.OURS, 0.5), make_row(PEER, 5.0)], [f"at 64 lead over {PEER.name}"]),
        ([make_row(loop.OURS, 0.3, perfect=99)], ["valid runs of ours"]),
        ([loop.Row(loop.OURS, 64, trouble="exit 1")], ["valid runs of ours"]),
    ],
)
def test_missed_targets_are_reported(rows: list[loop.Row], missed: list[str]) -> None:
    assert list_missed(rows) == missed


def test_a_peer_with_missing_rewards_is_noted_and_not_compared() -> None:
    found, notes = loop.make_checks([make_row(loop.OURS, 0.3), make_row(PEER, 0.1, perfect=99)])
    assert all(check.passed for check in found)
    assert notes == [f"no figure for {PEER.name} at 64", "peers not run"]
    assert "reward 1 in only 99 of 100" in loop.render_report([make_row(PEER, 0.1, perfect=99)])


def test_take_median_takes_medians_and_keeps_trouble() -> None:
    rows = [make_row(loop.OURS, cpu) for cpu in (0.9, 0.2, 0.3)]
    reading = loop.take_median(rows).reading
    assert reading is not None and reading.cpu_ms_per_turn == pytest.approx(0.3)
    assert loop.take_median([*rows, make_row(loop.OURS, 0.1, perfect=1)]).trouble


# ---- the mock -----------------------------------------------------------------------------------------------------


def test_take_request_splits_complete_requests() -> None:
    fixed = b"POST /a HTTP/1.1\r\ncontent-length: 3\r\n\r\nabc"
    chunked = b"POST /b HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n"
    bare = b"GET /c HTTP/1.1\r\n\r\n"
    for part in (fixed, chunked, bare):
        assert all(mock_openai.take_request(part[:cut]) is None for cut in range(len(part)))
    stream, bodies = fixed + chunked + bare, []
    while request := mock_openai.take_request(stream):
        _, body, stream = request
        bodies.append(body)
    assert bodies == [b"abc", b"abcde", b""]


def send_request(base_url: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(f"{base_url}/chat/completions", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.loads(response.read())["choices"][0]


def test_mock_answers_four_calls_and_counts_them() -> None:
    with mock_openai.run_mock(seconds=300) as mock:
        messages: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
        finishes: list[str] = []
        for _ in range(4):
            choice = send_request(mock.base_url, {"model": "mock", "messages": messages})
            finishes.append(choice["finish_reason"])
            messages.append(choice["message"])
        bash = send_request(
            mock.base_url, {"messages": [], "tools": [{"type": "function", "function": {"name": "bash"}}]}
        )
        with urllib.request.urlopen(f"{mock.base_url}/models", timeout=60) as response:
            models = json.loads(response.read())
    assert finishes == ["tool_calls", "tool_calls", "tool_calls", "stop"]
    assert "42" in messages[-1]["content"]
    assert bash["message"]["tool_calls"][0]["function"]["name"] == "bash"
    assert models["data"][0]["id"] == "mock"
    assert mock.requests == 5


def test_mock_ends_after_its_time_limit() -> None:
    command = [sys.executable, str(BENCH / "mock_openai.py"), "--seconds", "0.1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.wait(timeout=120) == 0
        assert process.stderr is not None and b"ended after 0.1 s" in process.stderr.read()


@pytest.mark.parametrize("system", [loop.OURS, loop.RAW], ids=lambda system: system.name)
def test_every_rollout_of_a_driver_has_reward_1(system: loop.System) -> None:
    with mock_openai.run_mock(seconds=300) as mock:
        taken = loop.run_driver(system, Path(sys.executable), mock.base_url, rollouts=12, concurrency=5, seconds=300)
    assert taken.trouble == ""
    assert taken.reading is not None and taken.reading.perfect == taken.reading.rollouts == 12
