"""verifiers 0.1.14: `ToolEnv` with a tool that runs in process and a rubric, run by `Environment.evaluate`.

Progress bars are off. Results stay in memory, as by default. Saving them would cost more.
"""

import asyncio

from meter import PROMPT, Work, measure, set_environment

set_environment()

import verifiers as vf  # noqa: E402
from datasets import Dataset  # noqa: E402
from verifiers.types import ClientConfig  # noqa: E402


def add(a: int, b: int) -> str:
    """Add two whole numbers."""
    return str(a + b)


def score_answer(completion: list, answer: str) -> float:
    return float(answer in completion[-1].content)


def hide_progress(*_: object) -> None:
    """Replaces the progress bar."""


async def evaluate(work: Work) -> int:
    items = {"question": [PROMPT] * work.rollouts, "answer": ["42"] * work.rollouts}
    env = vf.ToolEnv(tools=[add], eval_dataset=Dataset.from_dict(items), rubric=vf.Rubric(funcs=[score_answer]))
    results = await env.evaluate(
        client=ClientConfig(api_key_var="OPENAI_API_KEY", api_base_url=work.base_url),
        model="mock",
        max_concurrent=work.concurrency,
        on_start=hide_progress,
        on_progress=hide_progress,
    )
    return sum(output["reward"] == 1.0 for output in results["outputs"])


if __name__ == "__main__":
    measure("verifiers 0.1.14 ToolEnv", lambda work: asyncio.run(evaluate(work)))
