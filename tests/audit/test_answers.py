"""Replies that solve nothing."""

import ast

from ludus.audit.answers import REPLIES, say_answer


def test_programs_define_the_function_that_is_asked_for():
    for name, reply in REPLIES.items():
        if name.startswith("code"):
            code = reply("Complete:\ndef add_all(numbers):\n    ...").removeprefix("```python\n").removesuffix("\n```")
            ast.parse(code)
            assert "NAME" not in code and ("exit" in name or "process" in name or "def add_all" in code), name


def test_an_answer_is_said_in_the_forms_that_are_read():
    assert all(form in say_answer("7") for form in ("\\boxed{7}", "#### 7", "<answer>7</answer>", "Answer: 7"))
