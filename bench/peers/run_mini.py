"""mini-swe-agent: its default agent in threads, its LiteLLM model, and an environment that runs no commands.

The agent has only a shell. Its commands are answered in process, which is cheaper than its local environment.
Trajectories are saved, as by its batch runner.
"""

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

from meter import PROMPT, Work, measure, set_environment

set_environment()
os.environ["MSWEA_SILENT_STARTUP"] = "1"
os.environ["MSWEA_COST_TRACKING"] = "ignore_errors"
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

from minisweagent.agents.default import DefaultAgent  # noqa: E402
from minisweagent.environments.local import LocalEnvironment  # noqa: E402
from minisweagent.models.litellm_model import LitellmModel  # noqa: E402


class NullEnvironment(LocalEnvironment):
    """Its local environment, with every `echo` answered in process."""

    def execute(self, action: dict, cwd: str = "", *, timeout: int | None = None) -> dict:
        text = action["command"].replace("&& echo", "\n").removeprefix("echo").replace(" ", "")
        output = {"output": f"{text}\n", "returncode": 0, "exception_info": ""}
        self._check_finished(output)
        return output


def solve(base_url: str, path: Path) -> bool:
    """Run one rollout. Returns whether it submitted 42."""
    model = LitellmModel(model_name="openai/mock", model_kwargs={"api_base": base_url})
    agent = DefaultAgent(
        model,
        NullEnvironment(),
        system_template="You are a helpful assistant that can interact with a computer.",
        instance_template="{{task}}",
        output_path=path,
    )
    return agent.run(PROMPT)["submission"].strip() == "42"


def solve_many(work: Work) -> int:
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(work.concurrency) as threads:
        paths = [Path(folder, f"{number}.traj.json") for number in range(work.rollouts)]
        return sum(threads.map(lambda path: solve(work.base_url, path), paths))


if __name__ == "__main__":
    measure(f"mini-swe-agent {version('mini-swe-agent')}, null environment", solve_many)
