"""Threads that work in the context of their caller."""

import asyncio
import contextvars

from ludus.compat.hermes_env.context_threads import ContextThreads

RUN: contextvars.ContextVar[str] = contextvars.ContextVar("run", default="none")


async def test_work_of_an_executor_knows_its_run():
    threads = ContextThreads(1, "test")

    async def ask(name: str) -> str:
        RUN.set(name)
        return await asyncio.get_running_loop().run_in_executor(threads, RUN.get)

    assert await asyncio.gather(*map(ask, "abc")) == ["a", "b", "c"]
    threads.shutdown()
