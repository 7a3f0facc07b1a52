"""A taskset as users of verifiers 0.1.14 write one (`verifiers.v1` of that release): the rollouts of a group start with
different words, and the best of them gets the point."""

import verifiers as vf
import verifiers.v1 as v1
from verifiers.types import State


@vf.reward(stage="group")
async def longest(tasks, states) -> list[float]:
    lengths = [len(state["word"]) for state in states]
    return [float(length == max(lengths)) for length in lengths]


@vf.metric
async def started(task, state) -> float:
    return float(state["number"])


class Words(v1.Taskset):
    async def init_group(self, task, num_rollouts):
        tasks, states = await super().init_group(task, num_rollouts)
        for number, state in enumerate(states):
            state["number"], state["word"] = number, "x" * number
        return tasks, states


def load_environment():
    rows = [{"prompt": [{"role": "user", "content": "Say a word."}], "example_id": 0}]
    return v1.Env(taskset=Words(source=rows, rewards=[longest], metrics=[started]))
