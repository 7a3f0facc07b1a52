"""The program of a scoring process: it runs one function after the other and answers on its standard output.

Read `scoring_process` first. A request is a line of JSON with `function` (`module:name`) and `arguments`. There are two
answers: an empty object when the module is imported, then an object with `value`, or with `error` if the function
raised. What libraries print does not reach the answers.
"""

import importlib
import os
import resource
import sys
import warnings
from typing import Any, BinaryIO

import msgspec

MEMORY = 4 * 2**30
"""The address space that one process may use. Hostile answers ask for more."""


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    for line in requests:
        request = msgspec.json.decode(line)
        try:
            function = _find_function(request["function"])
            _write(answers, {})
            answer = {"value": function(*request["arguments"])}
            _write(answers, answer)
        except (Exception, RecursionError) as error:
            _write(answers, {"error": f"{type(error).__name__}: {error}"[:2000]})


def _find_function(name: str) -> Any:
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


def _write(answers: BinaryIO, answer: dict[str, Any]) -> None:
    answers.write(msgspec.json.encode(answer) + b"\n")
    answers.flush()


def _main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("ignore")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # prints of libraries go where errors go
    serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    _main()
