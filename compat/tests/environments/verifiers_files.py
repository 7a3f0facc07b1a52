"""A taskset as users of verifiers 0.4 write one: the agent runs commands, and the reward reads its files."""

import verifiers.v1 as vf


class FileTask(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
    async def setup(self, trace, runtime):
        await runtime.write("given.txt", b"41")

    @vf.reward
    async def written(self, trace, runtime) -> float:
        return float((await runtime.read("out.txt")).strip() == b"42")


class FileTaskset(vf.Taskset[FileTask, vf.TasksetConfig]):
    def load(self):
        yield FileTask(vf.TaskData(id="add", prompt="Write given.txt plus one to out.txt."), self.config.task)


__all__ = ["FileTaskset"]
