"""A taskset as users of verifiers 0.4 write one: sums. `broken` says what goes wrong."""

import asyncio

import verifiers.v1 as vf


class SumsConfig(vf.TasksetConfig):
    count: int = 1
    broken: str = ""


class SumsData(vf.TaskData):
    answer: str
    broken: str = ""


class SumsTask(vf.Task[SumsData, vf.State, vf.TaskConfig]):
    async def setup(self, trace, runtime):
        if self.data.broken == "setup":
            raise RuntimeError("the data base is gone")

    @vf.reward
    async def exact(self, trace) -> float:
        if self.data.broken == "raise":
            raise RuntimeError("the grader is gone")
        if self.data.broken == "hang":
            await asyncio.Event().wait()
        if self.data.broken == "nan":
            return float("nan")
        return float(trace.last_reply == self.data.answer)

    @vf.metric
    async def length(self, trace) -> float:
        return float(len(trace.last_reply))


class SumsTaskset(vf.Taskset[SumsTask, SumsConfig]):
    def load(self):
        for number in range(self.config.count):
            data = SumsData(
                prompt=f"{number} + 2?",
                system_prompt="Answer with a number.",
                answer=str(number + 2),
                broken=self.config.broken,
            )
            yield SumsTask(data, self.config.task)


__all__ = ["SumsTaskset"]
