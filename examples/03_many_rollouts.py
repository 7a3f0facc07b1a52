"""Many rollouts into a run directory: stored as they end, resumable, summed up.

Stop it with Ctrl-C and run it again with the same folder: nothing finished is run twice.
    python examples/03_many_rollouts.py [FOLDER]
"""

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ludus.agent import Policy
from ludus.batch import Batch, evaluate, load_tasks
from ludus.cli.output import print_summary
from ludus.envs.gsm8k import Gsm8k
from ludus.models.scripted import ScriptedModel
from ludus.store import RunDir
from ludus.types import Message, Sampling, ToolSpec


def guess(messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> str:
    """A poor mathematician: 27 is the answer to one of the questions, and the seed decides whether it says so."""
    return "#### 27" if (sampling.seed or 0) % 2 else "I do not know."


async def main(folder: Path) -> None:
    env = Gsm8k()
    batch = Batch(env, load_tasks(env, "train"), Policy(ScriptedModel(guess)), group_size=4)
    with RunDir.open(folder, {"example": 3}, resume=True) as run:
        summary = await evaluate(batch, None, run)
    print_summary(summary)
    print(f"\nlook at {folder}/trajectories.html")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp()) / "run"))
