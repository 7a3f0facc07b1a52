"""Scorers in a process of their own: results, errors, time and memory."""

import os
from pathlib import Path

import pytest

from ludus.verify import scoring_process
from ludus.verify.scoring_process import ScorerFailed, ScoringPool, run_scorer


async def test_a_function_gets_plain_values_and_its_result_comes_back():
    assert await run_scorer("json:loads", '{"a": [1, 2.5, null]}') == {"a": [1, 2.5, None]}


async def test_what_it_raises_is_an_error_and_the_process_goes_on():
    with pytest.raises(ScorerFailed, match="JSONDecodeError"):
        await run_scorer("json:loads", "{")
    assert await run_scorer("json:loads", "1") == 1


async def test_what_it_prints_does_not_reach_the_answers():
    assert await run_scorer("builtins:print", '{"value": 1}') is None


def test_one_that_takes_too_long_is_ended_and_replaced():
    pool = ScoringPool(1)
    try:
        with pytest.raises(TimeoutError, match=r"more than 0\.01 seconds"):
            pool.call("signal:pause", (), 0.01)
        assert pool.call("json:loads", ("2",), 20.0) == 2
    finally:
        pool.close()


def test_one_whose_process_dies_is_an_error():
    pool = ScoringPool(1)
    try:
        with pytest.raises(ScorerFailed, match="died"):
            pool.call("os:_exit", (3,), 20.0)
        assert pool.call("json:loads", ("2",), 20.0) == 2
    finally:
        pool.close()


def test_it_has_no_variables_of_the_driver_and_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SECRET_KEY", "hush")
    pool = ScoringPool(1)
    try:
        assert pool.call("os:getenv", ("SECRET_KEY",), 20.0) is None
        assert pool.call("os:getenv", ("PYTHONHASHSEED",), 20.0) == "0"
        folder = Path(pool.call("os:getcwd", (), 20.0))
        assert pool.call("os.path:expanduser", ("~",), 20.0) == str(folder)
        assert folder.is_dir() and not list(folder.iterdir())
    finally:
        pool.close()
    assert not folder.exists()


def test_children_are_used_again():
    pool = ScoringPool(1)
    try:
        first = pool.call("os:getpid", (), 20.0)
        assert first != os.getpid()
        assert pool.call("os:getpid", (), 20.0) == first
    finally:
        pool.close()


def test_memory_is_limited():
    pool = ScoringPool(1)
    try:
        with pytest.raises(ScorerFailed, match=r"MemoryError|died"):
            pool.call("builtins:bytes", (2 * scoring_process.scoring_child.MEMORY,), 20.0)
    finally:
        pool.close()
