"""Scenes of BFCL's conversations: the stateful classes of the package `bfcl-eval`, and its checks of their states. They
run in a scoring process.

A scene is made anew for every call, and all calls so far are run in it: a process keeps nothing, and the same calls
lead to the same state. Methods are called with plain JSON values. The package would evaluate calls as Python text; no
text of an agent is evaluated here. Its checks are used as they are, with this way of calling instead of its own.
"""

import ast
import copy
import importlib
import inspect
import json
from typing import Any, cast

CALL_ERROR = "Error during execution: "
"""The beginning of a result that is an error, as in the package."""


def run_last_call(scene: dict[str, Any], calls: list[tuple[str, dict[str, Any]]]) -> str:
    """Run the calls one after the other in a new scene. Returns the result of the last one, as an agent sees it."""
    instances = _make_instances(scene)
    return [_run_call(instances, name, (), arguments) for name, arguments in calls][-1]


def check_conversation(
    scene: dict[str, Any], steps: list[list[list[tuple[str, dict[str, Any]]]]], gold: list[list[str]]
) -> tuple[int, str]:
    """How many of the user's requests were done, counted from the first, and what is wrong with the next one. `steps`
    are the calls of each reply, for each request; `gold` has the right calls for each request, as Python text."""
    for done in range(len(gold)):
        if problem := _check_requests(scene, steps[: done + 1], gold[: done + 1]):
            return done, problem
    return len(gold), ""


def _check_requests(scene: dict[str, Any], steps: list[Any], gold: list[list[str]]) -> str:
    """What the package's check finds after the last of these requests."""
    checker: Any = importlib.import_module("bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker")
    scenes: dict[str, dict[str, Any]] = {}

    def run_calls(func_call_list: list[Any], model_name: str, **_: Any) -> tuple[list[str], dict[str, Any]]:
        if model_name not in scenes:  # the agent's scene, or that of the right calls
            scenes[model_name] = _make_instances(scene)
        calls = [_read_call(each) if isinstance(each, str) else (each[0], (), each[1]) for each in func_call_list]
        return [_run_call(scenes[model_name], *call) for call in calls], scenes[model_name]

    checker.execute_multi_turn_func_call = run_calls
    entry = {"id": scene["id"], "initial_config": scene["config"], "involved_classes": scene["classes"]}
    found = checker.multi_turn_checker(steps, gold, entry, "", "agent")
    return "" if found["valid"] else str(found["error_message"])[:500]


def _make_instances(scene: dict[str, Any]) -> dict[str, Any]:
    """The objects of a scene in their first state, by class."""
    backend: Any = importlib.import_module("bfcl_eval.constants.executable_backend_config")
    instances: dict[str, Any] = {}
    for name in scene["classes"]:
        module = importlib.import_module(backend.CLASS_FILE_PATH_MAPPING[name])
        instances[name] = getattr(module, name)()
        if name not in backend.STATELESS_CLASSES:
            config = copy.deepcopy(scene["config"].get(name, {}))
            instances[name]._load_scenario(config, long_context=scene["long_context"])
    return instances


def name_arguments(text: str, parameters: list[str]) -> tuple[str, dict[str, Any]]:
    """A right call with every argument by its name. `parameters` are the function's, in their order."""
    name, unnamed, named = _read_call(text)
    return name, {**dict(zip(parameters, unnamed, strict=False)), **named}


def _read_call(text: str) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """A call of the package's data: a name and literal arguments."""
    call: Any = ast.parse(text.strip(), mode="eval").body
    named = {each.arg: ast.literal_eval(each.value) for each in call.keywords}
    return call.func.id, tuple(ast.literal_eval(each) for each in call.args), named


def _run_call(instances: dict[str, Any], name: str, unnamed: tuple[Any, ...], named: dict[str, Any]) -> str:
    """The result of a call as text, or its error: the agent's mistakes are part of the conversation."""
    methods = [getattr(each, name, None) for each in instances.values() if not name.startswith("_")]
    method: Any = next((each for each in reversed(methods) if inspect.ismethod(each)), None)
    try:
        if method is None:
            raise NameError(f"name '{name}' is not defined")
        return _write_result(method(*unnamed, **named))
    except Exception as error:
        return f"{CALL_ERROR}{error}"


def _write_result(value: Any) -> str:
    try:
        return json.dumps(value) if isinstance(value, dict) else str(value)
    except TypeError:  # an object of the scene
        return str(cast("object", value))
