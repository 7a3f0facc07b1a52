"""Inspect: a task with one tool that runs in process, with its OpenAI provider and its scorer, run by `eval`.

It writes its log, as by default. The display is off.
"""

import tempfile
from importlib.metadata import version

from meter import PROMPT, Work, measure, set_environment

set_environment()

from inspect_ai import Task, eval  # noqa: E402
from inspect_ai.dataset import MemoryDataset, Sample  # noqa: E402
from inspect_ai.model import get_model  # noqa: E402
from inspect_ai.scorer import includes  # noqa: E402
from inspect_ai.solver import generate, use_tools  # noqa: E402
from inspect_ai.tool import Tool, tool  # noqa: E402


@tool
def add() -> Tool:
    async def execute(a: int, b: int) -> str:
        """Add two whole numbers.

        Args:
            a: The first number.
            b: The second number.
        """
        return str(a + b)

    return execute


def evaluate(work: Work) -> int:
    samples = [Sample(input=PROMPT, target="42", id=number) for number in range(work.rollouts)]
    task = Task(dataset=MemoryDataset(samples), solver=[use_tools(add()), generate()], scorer=includes())
    model = get_model("openai/mock", base_url=work.base_url, api_key="none", responses_api=False)
    many = work.concurrency
    with tempfile.TemporaryDirectory() as folder:
        logs = eval(task, model=model, log_dir=folder, display="none", max_samples=many, max_connections=many)
    results = logs[0].results
    assert results is not None
    return round(results.scores[0].metrics["accuracy"].value * results.completed_samples)


if __name__ == "__main__":
    measure(f"inspect-ai {version('inspect-ai')}", evaluate)
