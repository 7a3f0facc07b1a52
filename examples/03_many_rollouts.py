"""Run many rollouts with a run directory. Each rollout is stored when it ends. A summary is printed at the end.

Stop it with Ctrl-C and run it again with the same folder: finished rollouts are not run again.
    python examples/03_many_rollouts.py [FOLDER]
"""

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ludus.batch import Batch, evaluate, load_tasks
from ludus.envs.gsm8k import Gsm8k
from ludus.models.scripted import ScriptedModel
from ludus.output import print_summary
from ludus.policy import Policy
from ludus.runner import Runner
from ludus.store import RunDir
from ludus.types import Message, Sampling, ToolSpec


def guess(messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> str:
    """A weak model: it answers 27, which is right for one of the questions, or nothing, depending on the seed."""
    return "#### 27" if (sampling.seed or 0) % 2 else "I do not know."


async def main(folder: Path) -> None:
    env = Gsm8k()
    batch = Batch(load_tasks(env, "train"), Policy(ScriptedModel(guess)), group_size=4)
    with RunDir.open(folder, {"example": 3}, resume=True) as run:
        summary = await evaluate(batch, Runner(env, store=run))
    print_summary(summary)
    print(f"\nLook at it in a browser: ludus view {folder}")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp()) / "run"))
