"""The parsers of docs/parsers.md read what they write."""

import re
from pathlib import Path
from typing import Any

import pytest

from ludus.parsers import make_parser
from ludus.types import Call, ToolSpec

PAGE = Path(__file__).resolve().parents[2] / "docs" / "parsers.md"
EXAMPLES = [code for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "PARSER = " in code]


@pytest.mark.parametrize("code", EXAMPLES, ids=["format", "object"])
def test_an_example_of_the_page_is_a_parser(code: str) -> None:
    names: dict[str, Any] = {}
    exec(code, names)
    parser = make_parser(names["PARSER"])
    calls = (Call("call_0", "f", "{}"), Call("call_1", "g", "{}"))
    reply = parser.parse(parser.render(calls, "Hi."), (ToolSpec("f", "", {}),))
    assert (reply.content, reply.calls, reply.problems) == ("Hi.", calls, ())
