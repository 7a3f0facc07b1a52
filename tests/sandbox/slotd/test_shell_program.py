"""The last steps of a process that becomes a slot's shell."""

import os
import resource
from pathlib import Path

import pytest

from ludus.sandbox.shell_starter import ShellEnds
from ludus.sandbox.slotd.children import run_to_exit
from ludus.sandbox.slotd.shell_program import (
    ShellProgram,
    become_program,
    lower_oom_score,
    raise_oom_score,
)


def run_program(script: str, limits=(), confine=lambda: None) -> tuple[int, bytes, bytes]:
    """Run a script as a slot's shell. Returns its exit code, stdout and stderr."""
    null = os.open(os.devnull, os.O_RDWR)
    (out, out_end), (err, err_end) = os.pipe(), os.pipe()
    program = ShellProgram("/bin/bash", "", "/io", "/home", {"PATH": os.environ["PATH"], "X": "1"}, tuple(limits))
    arguments = [b"bash", b"--norc", b"-c", f"exec >&5 2>&6; {script}".encode()]
    pid = os.fork()
    if pid == 0:
        ends = ShellEnds(null, null, out_end, err_end)
        run_to_exit(lambda: become_program(program, arguments, ends, confine))
    for fd in (null, out_end, err_end):
        os.close(fd)
    with os.fdopen(out, "rb") as stdout, os.fdopen(err, "rb") as stderr:
        texts = stdout.read(), stderr.read()
    return os.waitpid(pid, 0)[1] >> 8, *texts


def test_a_shell_has_its_four_pipes_and_no_other_descriptor():
    leaked = os.open("/etc/passwd", os.O_RDONLY)
    try:
        code, out, _ = run_program("readlink /proc/self/fd/{0,1,2,3,4,5,6}; readlink /proc/self/fd/*; echo $X; exit 5")
    finally:
        os.close(leaked)
    lines = out.decode().splitlines()
    assert code == 5
    assert (lines[0], lines[3], lines[4]) == ("/dev/null",) * 3
    assert lines[1:3] == lines[5:7]
    assert "/etc/passwd" not in lines
    assert lines[-1] == "1"


def test_limits_hold():
    code, out, _ = run_program("ulimit -n; ulimit -c", [(resource.RLIMIT_NOFILE, 64), (resource.RLIMIT_CORE, 0)])
    assert (code, out) == (0, b"64\n0\n")


def test_what_goes_wrong_before_is_on_the_shells_stderr():
    def fail() -> None:
        raise PermissionError(1, "not permitted", "/somewhere")

    code, out, err = run_program("echo on", confine=fail)
    assert (code, out) == (125, b"")
    assert b"not permitted" in err


def test_the_arguments_name_the_folders_of_the_slot():
    program = ShellProgram("/bin/bash", "inner", "/io", "/home", {}, ())
    assert program.make_arguments(b"/a\xff") == [
        *(b"bash", b"--norc", b"--noprofile", b"-c", b"inner", b"bash", b"/io", b"/a\xff", b"/home"),
    ]


@pytest.mark.parametrize(("change", "expected"), [(raise_oom_score, {"1000"}), (lower_oom_score, {"-999", "0"})])
def test_the_kernel_is_told_what_to_end_first(change, expected):
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        change()
        os.write(writing, Path("/proc/self/oom_score_adj").read_bytes())
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(reading, 100).decode().strip() in expected
    os.close(reading)
    os.close(writing)
