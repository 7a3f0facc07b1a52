"""Make training data of an agent that is not ours: the tool loop of Anthropic's SDK, from its first request to
checked rows.

The gateway serves the embedded model in token mode, so the rows have the exact ids that were sampled. The session's key
names the task: `TASK~1` and `TASK~2` are two attempts and become a group. The environment `gsm8k` judges what the agent
said. The model is small: this shows the way of the data, not a good score. A trainer takes the rows as they are.

Needs `pip install 'ludus-train[local,tokens]' anthropic`, and about a minute.
    python examples/08_rows_from_foreign_sessions.py
"""

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from anthropic import Anthropic, beta_tool

from ludus.envs.gsm8k import Gsm8k

LUDUS = [sys.executable, "-c", "import sys; from ludus.cli import main; sys.exit(main())"]
ATTEMPTS = 2


@beta_tool
def multiply(a: int, b: int) -> str:
    """Multiply two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return str(a * b)


@contextmanager
def serve_gateway(run: str) -> Generator[str]:
    """`ludus gateway` with the embedded model, until the block ends. Yields its address."""
    words = ["gateway", "--json", "--out", run, "--gateway.port", "0", "--model.mode", "token"]
    with subprocess.Popen(
        [*LUDUS, *words, "--sampling.max_tokens", "48"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.send_signal(signal.SIGINT)  # it finishes what runs, and stores every session
            process.wait()


def main(folder: Path) -> None:
    run, rows = str(folder / "run"), str(folder / "rows.jsonl")
    tasks = list(Gsm8k().tasks("train"))[:2]
    with serve_gateway(run) as url:
        for task in tasks:
            for attempt in range(ATTEMPTS):
                client = Anthropic(base_url=url, api_key=f"{task.id}~{attempt + 1}", max_retries=0)
                runner = client.beta.messages.tool_runner(
                    model="any",
                    max_tokens=48,
                    max_iterations=3,
                    tools=[multiply],
                    messages=[{"role": "user", "content": task.prompt}],
                )
                print(f"{task.id}, attempt {attempt + 1}: the agent made {sum(1 for _ in runner)} requests", flush=True)
    for command in (["score", run, "--env", "gsm8k"], ["check", run], ["export", run, "--to", rows]):
        print(f"\n$ ludus {' '.join(command)}", flush=True)
        subprocess.run([*LUDUS, *command], check=True)
    for line in Path(rows).read_text().splitlines():
        group = json.loads(line)
        print(f"{group['task']}: {len(group['tokens'])} rows with the scores {group['scores']}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(temporary))
