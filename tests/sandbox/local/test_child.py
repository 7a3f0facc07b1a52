"""Children of the driver."""

import asyncio
import signal
import subprocess
from pathlib import Path

from ludus.sandbox.local.child import Child


async def test_several_tasks_wait_for_the_exit_of_a_child():
    child = Child(subprocess.Popen(["sh", "-c", "read -r; exit 3"], stdin=subprocess.PIPE))  # noqa: ASYNC220
    assert child.pid
    waiting = [asyncio.create_task(child.wait()) for _ in range(2)]
    await asyncio.sleep(0)
    waiting[0].cancel()  # the others go on
    assert child._popen.stdin is not None
    child._popen.stdin.close()
    assert await waiting[1] == 3
    assert (await child.wait(), child.pid) == (3, 0)
    child.kill()
    child.stop()


async def test_a_stopped_child_can_be_killed():
    child = Child(subprocess.Popen(["sleep", "60"]))  # noqa: ASYNC220
    await asyncio.to_thread(child.stop)
    assert Path(f"/proc/{child.pid}/stat").read_text().split()[2] == "T"
    child.kill()
    assert await child.wait() == -signal.SIGKILL
