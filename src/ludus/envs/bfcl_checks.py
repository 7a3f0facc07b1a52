"""The checkers of the package `bfcl-eval`, without the model clients that it brings. They run in a scoring process.

`bfcl-eval` installs a client of every provider, and its checkers import the list of them for one fact: whether a model
writes `math_factorial` for `math.factorial`, as the APIs for tools demand. Here every model does. So the list is
replaced by one that says just that, and the package is enough as it is: `pip install --no-deps bfcl-eval`.
"""

import importlib
import sys
from types import ModuleType
from typing import Any


class _Naming:
    underscore_to_dot = True


class _Models(dict[str, _Naming]):
    def __missing__(self, key: str) -> _Naming:
        return _Naming()


def check_calls(
    category: str, functions: list[dict[str, Any]], calls: list[dict[str, dict[str, Any]]], wanted: list[Any]
) -> str:
    """What is wrong with the calls of a reply; empty if nothing is. A call is an object of name and arguments."""
    if not all(len(call) == 1 for call in calls):
        return "a call has one name"
    checker = _import_checker("ast_eval.ast_checker")
    language: Any = importlib.import_module("bfcl_eval.constants.enums").Language
    found = checker.ast_checker(functions, calls, wanted, language.PYTHON, category, "any")
    return "" if found["valid"] else "; ".join(map(str, found["error"]))[:500] or "the calls are wrong"


def _import_checker(name: str) -> Any:
    stub = "bfcl_eval.constants.model_config"
    if stub not in sys.modules:
        module = ModuleType(stub)
        module.MODEL_CONFIG_MAPPING = _Models()  # pyright: ignore[reportAttributeAccessIssue]
        sys.modules[stub] = module
    return importlib.import_module(f"bfcl_eval.eval_checker.{name}")
