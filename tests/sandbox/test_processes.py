"""Processes of this host."""

import os
import signal
import subprocess

import pytest

from ludus.sandbox.processes import (
    find_children,
    find_descendants,
    is_dead,
    is_started_after,
    kill_trees,
    read_boot_clock,
    signal_each,
)


@pytest.fixture
def tree():
    """A shell with a child that has a child, and their pids."""
    script = "sh -c 'sleep 616.5 & echo $$ $!; wait' & wait"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        pids = [process.pid, *map(int, process.stdout.readline().split())]
        yield pids
        kill_trees(lambda: [process.pid])


def test_children_and_descendants(tree):
    root, child, grandchild = tree
    assert find_children(root) == [child]
    assert find_children(child) == [grandchild]
    assert find_descendants([root]) == set(tree)
    assert root in find_children(os.getpid())


def test_a_tree_is_killed_whole(tree):
    kill_trees(lambda: [tree[0]])
    for pid in tree[1:]:
        while not is_dead(pid):
            pass
    assert is_dead(tree[1])


def test_processes_that_are_gone_are_no_error():
    with subprocess.Popen(["true"]) as process:
        pass
    gone = process.pid
    assert (find_children(gone), is_dead(gone)) == ([], True)
    assert find_descendants([gone]) == {gone}
    assert not is_started_after(gone, 0)
    signal_each([gone, 0, 1], signal.SIGKILL)  # neither a group nor the first process
    kill_trees(lambda: [gone])


def test_a_zombie_is_dead_and_still_a_child():
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert is_dead(process.pid)
    assert process.pid in find_children(os.getpid())
    process.wait()


def test_the_start_of_a_process_is_compared_with_the_boot_clock():
    before = read_boot_clock()
    with subprocess.Popen(["sleep", "60"]) as process:
        assert is_started_after(process.pid, before)
        assert not is_started_after(process.pid, read_boot_clock() + 1)
        process.kill()
