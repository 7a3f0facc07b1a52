from collections.abc import Callable
from typing import Any

from ludus.tools.toolsets import make_tools

InBox = Callable[..., Any]


async def test_a_script_runs_in_the_slot(in_each_box: InBox):
    async with in_each_box() as box:
        (run_python,) = make_tools(["code"], box)
        assert await run_python.run({"code": "print('ünï', \"q'\")\nprint(6 * 7)"}) == "ünï q'\n42"
        await box.write("helper.py", b"NAME = 'mine'\n")
        assert await run_python.run({"code": "import helper\nprint(helper.NAME)"}) == "mine"
        failed = await run_python.run({"code": "x = 1\nraise ValueError('no')"})
        assert 'File "<stdin>", line 2' in failed
        assert failed.endswith("ValueError: no\n[exit code 1]")
        assert await run_python.run({"code": "print(x)"}) != "1"
        assert "EOFError" in await run_python.run({"code": "input()"})
        assert "[exit code 7]" in await run_python.run({"code": "raise SystemExit(7)"})
        assert "SyntaxError" in await run_python.run({"code": "def"})
        assert await run_python.run({"code": ""}) == "(no output)"
        assert "timed out" in await run_python.run({"code": "while True: pass", "timeout": 1})
