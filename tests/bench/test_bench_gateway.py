"""Parts of `bench/gateway.py`. No measured figure is asserted."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))  # the benchmarks are scripts, not a package

import common  # noqa: E402
import gateway  # noqa: E402
from mock_openai import run_mock  # noqa: E402
from peers.load import Seen, is_whole, send_conversations  # noqa: E402

OURS = [
    gateway.Row(gateway.OURS, c, s, cpu_ms=0.3, rate=1000.0, p50_ms=10.0, p99_ms=50.0)
    for c in (64, 512)
    for s in (False, True)
]
PEERS = [gateway.Row(peer, c, False, cpu_ms=6.0) for peer in gateway.PEERS for c in (64, 512)]


def list_missed(rows: list[gateway.Row]) -> list[str]:
    return [check.name for check in gateway.make_checks(rows)[0] if not check.passed]


def test_all_targets_met() -> None:
    assert list_missed([*OURS, *PEERS]) == []
    assert gateway.make_checks(OURS)[1] == ["peers not run"]


@pytest.mark.parametrize(
    ("place", "change", "names"),
    [
        (
            0,
            {"cpu_ms": 0.6},
            ["slowest in token mode", "at 64 lead over agentlightning", "at 64 lead over rllm-model-gateway"],
        ),
        (0, {"trouble": "recorded 3 of 4 requests"}, ["valid runs of ours"]),
        (3, {"p99_ms": 300.0}, ["p99 to p50 at 512"]),
    ],
)
def test_missed_targets_are_reported(place: int, change: dict[str, float | str], names: list[str]) -> None:
    rows = [replace(row, **change) if number == place else row for number, row in enumerate(OURS)]
    assert list_missed([*rows, *PEERS]) == names


def test_the_table_shows_ratios_and_troubles() -> None:
    shown = gateway.render_report([*OURS, replace(PEERS[0], trouble="did not run")])
    assert "did not run" in shown and "3333" in shown


def test_a_reading_is_valid_only_if_every_request_was_answered() -> None:
    row = gateway.judge_row(OURS[0], Seen(good=3, trouble="HTTP/1.1 500"), 4, 1.0, 1.0)
    assert row.trouble.startswith("3 of 4 answered")
    assert gateway.judge_row(OURS[0], Seen(good=4), 4, 1.0, 2.0).rate == 2.0


def test_is_whole_detects_complete_responses() -> None:
    assert not is_whole(b"HTTP/1.1 200 OK\r\nContent-Le")
    assert not is_whole(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab")
    assert is_whole(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc")
    assert not is_whole(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n")
    assert is_whole(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n")


async def test_agents_get_good_replies_from_the_mock() -> None:
    with run_mock(seconds=300) as mock:
        port = int(mock.base_url.split(":")[2].split("/")[0])
        for stream in (False, True):
            seen = await send_conversations(port, ["a", "b", "c"], 2, stream, lambda _: "/v1")
            assert (seen.good, seen.trouble, len(seen.seconds)) == (12, "", 12)


def test_find_python_checks_the_version() -> None:
    assert common.find_python(0) == sys.executable
    assert common.find_python(90) is None
