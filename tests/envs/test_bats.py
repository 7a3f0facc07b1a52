"""Tests in the format of bats: what they may use, and programs that attack them."""

import pytest

from ludus.envs.bats import list_tests, run_bats
from ludus.errors import VerifierError
from ludus.sandbox import SandboxSpec
from ludus.sandbox.profiles import open_pool
from ludus.types import Score


async def judge(bwrap: str, tests: str, program: str = "", **files: str) -> Score:
    async with open_pool(bwrap) as pool, pool.lease(SandboxSpec()) as box:
        await box.write("program.sh", program.encode())
        return await run_bats(box, {"a.bats": tests, **{f"{name}.bash": text for name, text in files.items()}})


def test_titles_are_found():
    assert list_tests('@test "a \\"b\\"" {\n}\n  @test \'c $d\' {  \n}\n# @test "no" {\n@test e {\n}') == [
        'a \\"b\\"',
        "c $d",
        "e",
    ]


PASSING = r"""
load helper
bats_require_minimum_version 1.5.0

setup() { word=hello; }
teardown() { echo "over"; }

@test "run" {
  run bash program.sh $word
  [ "$status" -eq 0 ]
  assert_success
  assert_output "HELLO"
  assert_output -p ELL
  refute_output --partial xyz
  assert_output --regexp '^H.*O$'
  assert_output - <<< "HELLO"
}

@test "lines" {
  run printf 'a\n\nb\n'
  assert_equal "${#lines[@]}" 2
  assert_line b
  assert_line --index 0 a
  refute_line c
  run --keep-empty-lines printf 'a\n\nb\n'
  assert_equal "${#lines[@]}" 3
}

@test "exit codes" {
  run -3 bash -c 'exit 3'
  run ! false
  assert_failure 1
  assert_not_equal a b
  assert [ 1 -eq 1 ]
  refute [ 1 -eq 2 ]
}

@test "two outputs" {
  run --separate-stderr bash -c 'echo out; echo err >&2'
  assert_equal "$output/$stderr" out/err
  [[ $BATS_RUN_SKIPPED == "true" ]] || skip
  help_me
}
"""
FAILING = r"""
@test "false" {
  false
  true
}
@test "output" {
  run echo a
  assert_output b
}
@test "code" {
  run -0 false
}
@test "failure" {
  run true
  assert_failure
}
@test "skip" {
  skip "not now"
}
@test "exit" {
  exit 0
}
@test "fail" {
  fail "on purpose"
}
"""


async def test_what_tests_may_use(bwrap: str):
    score = await judge(bwrap, PASSING, 'echo "${1^^}"', helper="help_me() { true; }")
    assert score == Score(1.0, True, 1.0, "All 4 tests passed.")
    score = await judge(bwrap, FAILING)
    assert (score.value, score.soft) == (0.0, 0.0), score
    assert "output: output: a\nexpected (exact): b" in score.feedback


ATTACK = r"""
kill -9 $PPID
for line in 'x passed' 'ok 1' $'\n0123456789abcdef0123456789abcdef passed'; do
  for fd in /proc/*/fd/1; do echo "$line" > $fd; done
done 2> /dev/null
exec 2> /dev/null
grep -rhs 'secret word' /tmp . /proc/*/cmdline /proc/*/environ
cat
"""


async def test_attacks_do_not_pass(bwrap: str):
    tests = '@test "one" {\n  run bash program.sh\n  assert_output "secret word"\n}\n'
    score = await judge(bwrap, tests, ATTACK)
    assert (score.value, score.soft) == (0.0, 0.0)
    assert (await judge(bwrap, tests, "echo secret word")).passed


async def test_a_file_without_tests_cannot_judge(bwrap: str):
    with pytest.raises(VerifierError, match="no @test"):
        await judge(bwrap, "true")
