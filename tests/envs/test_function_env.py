"""Environments about single functions: what counts as the solution."""

from ludus.envs.function_env import FunctionEnv, FunctionTests, check_python, list_functions, list_names, make_task
from ludus.models.scripted import ScriptedModel, call, say
from ludus.policy import Policy
from ludus.rollout import run
from ludus.runner import Job, Runner
from ludus.sandbox.profiles import open_pool
from ludus.types import Completion, Score

GIVEN = "def double(n):\n    ...\n"
TASK = make_task(
    "double",
    "Double it.",
    GIVEN,
    FunctionTests(["double"], ["assert double(2) == 4"], "def double(n): return 2 * n"),
    "train",
)
BLOCK = "I think:\n```python\ndef double(n):\n    return {0}\n```\n"


async def score(bwrap: str, *turns: Completion | str) -> Score:
    async with open_pool(bwrap) as pool:
        rollout = await run(Job(TASK, Policy(ScriptedModel(list(turns)))), Runner(FunctionEnv(), pool))
    assert rollout.score is not None, rollout.failure
    return rollout.score


def write(code: str) -> Completion:
    return call("write_file", path="solution.py", content=code)


async def test_a_file_or_else_the_last_block_of_the_answer_is_judged(bwrap: str):
    assert (await score(bwrap, write("def double(n): return n + n"), say(BLOCK.format("7")))).passed
    assert (await score(bwrap, say(BLOCK.format("7") + BLOCK.format("n * 2")))).passed
    assert not (await score(bwrap, say("I am done."))).passed


def test_helpers_that_read_code():
    code = "import os\nasync def a(): ...\ndef b(x):\n    return os.path\n"
    assert list(list_functions(code)) == ["b"]
    assert list_names(code) == {"os"}
    assert check_python("def (", "code").startswith("code: it is not Python")
    assert check_python("x = 1", "code") == ""


async def test_a_solution_that_was_replaced_by_a_folder_scores_zero(bwrap: str):
    found = await score(
        bwrap, call("terminal", command="rm solution.py; mkdir solution.py"), say(BLOCK.format("n * 2"))
    )
    assert found.value == 0.0
