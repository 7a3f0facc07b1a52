"""The modules that environments of release 0.1 import, and what is in each: `verifiers`, `verifiers.types` …

They are provided when an environment of that release is loaded and the installed package does not have it. They stay,
because environments also import in their functions. Modules of an installed package that are not here, such as
`verifiers.v1`, are found as before.
"""

# Values of foreign code have no types.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

import importlib
import logging
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

from ludus.compat.atropos_env.provided_modules import is_installed, make_modules
from ludus.compat.verifiers_env.v0_standin import (
    decorators,
    env_group,
    environments,
    errors,
    parsers,
    rows,
    rubrics,
    tool_environments,
    tool_schema,
    values,
)
from ludus.compat.verifiers_env.verdicts import V0_NAMES, explain_missing
from ludus.errors import ConfigError

Names = dict[str, Any]
VERSION = "0.1.14"
"""The release whose behaviour this is."""


class MissingName(ConfigError, AttributeError):
    """A name that is not provided. It is an `AttributeError`, so environments can ask for it with `getattr`."""


def load_environment(env_id: str, **env_args: Any) -> Any:
    """The environment of an installed package."""
    module = importlib.import_module(env_id.replace("-", "_").split("/")[-1])
    made = module.load_environment(**env_args)
    made.env_id, made.env_args = made.env_id or env_id, made.env_args or env_args
    return made


def ensure_keys(keys: list[str]) -> None:
    """Raises MissingKeyError if an environment variable is not set."""
    if missing := [key for key in keys if not os.environ.get(key)]:
        raise errors.MissingKeyError(missing)


def setup_logging(level: str | None = None, **_: Any) -> None:
    logging.getLogger("verifiers").setLevel((level or "WARNING").upper())


def log_level(level: str) -> Any:
    return nullcontext()


def quiet_verifiers() -> Any:
    return nullcontext()


def _pick(module: Any) -> Names:
    """What a module of ours defines itself."""
    own = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    return {name: value for name, value in own.items() if getattr(value, "__module__", "") == module.__name__}


_TYPES: Names = {
    **_pick(values),
    "Message": values.Message,
    "Messages": values.Messages,
    **dict.fromkeys(("Info", "SamplingArgs", "RolloutInput", "RolloutOutput", "TrajectoryStep"), dict[str, Any]),
    **dict.fromkeys(("RewardFunc", "GroupRewardFunc", "IndividualRewardFunc"), Callable[..., Any]),
    "DatasetBuilder": Callable[[], Any],
    "MessageType": str,
    "ChatMessage": dict[str, Any],
}
_ERRORS = {name: value for name, value in _pick(errors).items() if name != "MissingKeyError"}
_MARKS: Names = {name: getattr(decorators, name) for name in ("stop", "cleanup", "teardown")}
_PARSERS = {name: value for name, value in _pick(parsers).items() if name.endswith("Parser")}
_RUBRICS = {name: value for name, value in _pick(rubrics).items() if name.endswith(("Rubric", "RubricGroup"))}
_EXTRACTORS: Names = {name: getattr(parsers, name) for name in ("extract_boxed_answer", "extract_hash_answer")}
_ENVIRONMENTS: Names = {
    "Environment": environments.Environment,
    "MultiTurnEnv": environments.MultiTurnEnv,
    "SingleTurnEnv": environments.SingleTurnEnv,
    "ToolEnv": tool_environments.ToolEnv,
    "StatefulToolEnv": tool_environments.StatefulToolEnv,
    "EnvGroup": env_group.EnvGroup,
}
_CONFIG: Names = {"MissingKeyError": errors.MissingKeyError, "ensure_keys": ensure_keys}
_LOGGING: Names = {"setup_logging": setup_logging, "log_level": log_level, "quiet_verifiers": quiet_verifiers}
_ASYNC: Names = {name: getattr(decorators, name) for name in ("maybe_await", "maybe_call_with_named_args")}


def _get_missing(name: str) -> Any:
    raise MissingName(explain_missing(name) or f"module 'verifiers' has no attribute '{name}'")


MODULES: Mapping[str, Names] = {
    "verifiers": {
        **_ERRORS,
        **_TYPES,
        **_MARKS,
        **_PARSERS,
        **_RUBRICS,
        **_EXTRACTORS,
        **_ENVIRONMENTS,
        **_CONFIG,
        **_LOGGING,
        "load_environment": load_environment,
        "__version__": VERSION,
        "PROVIDED_BY_LUDUS": True,
        "__getattr__": _get_missing,
    },
    "verifiers.types": _TYPES,
    "verifiers.errors": _ERRORS,
    "verifiers.decorators": _MARKS,
    "verifiers.envs": _ENVIRONMENTS,
    "verifiers.envs.environment": {"Environment": environments.Environment},
    "verifiers.envs.multiturn_env": {"MultiTurnEnv": environments.MultiTurnEnv},
    "verifiers.envs.singleturn_env": {"SingleTurnEnv": environments.SingleTurnEnv},
    "verifiers.envs.tool_env": {"ToolEnv": tool_environments.ToolEnv},
    "verifiers.envs.stateful_tool_env": {"StatefulToolEnv": tool_environments.StatefulToolEnv},
    "verifiers.envs.env_group": {"EnvGroup": env_group.EnvGroup},
    "verifiers.parsers": _PARSERS,
    "verifiers.parsers.parser": {"Parser": parsers.Parser},
    "verifiers.parsers.think_parser": {"ThinkParser": parsers.ThinkParser},
    "verifiers.parsers.maybe_think_parser": {"MaybeThinkParser": parsers.MaybeThinkParser},
    "verifiers.parsers.xml_parser": {"XMLParser": parsers.XMLParser},
    "verifiers.rubrics": _RUBRICS,
    "verifiers.rubrics.rubric": {"Rubric": rubrics.Rubric},
    "verifiers.rubrics.rubric_group": {"RubricGroup": rubrics.RubricGroup},
    "verifiers.rubrics.judge_rubric": {"JudgeRubric": rubrics.JudgeRubric},
    "verifiers.rubrics.math_rubric": {"MathRubric": rubrics.MathRubric},
    "verifiers.utils": {},
    "verifiers.utils.data_utils": _EXTRACTORS,
    "verifiers.utils.async_utils": _ASYNC,
    "verifiers.utils.config_utils": _CONFIG,
    "verifiers.utils.env_utils": {"load_environment": load_environment},
    "verifiers.utils.logging_utils": _LOGGING,
    "verifiers.utils.message_utils": {"normalize_messages": values.normalize_messages},
    "verifiers.utils.tool_utils": {"convert_func_to_tool_def": tool_schema.make_tool},
}
DATASETS: Mapping[str, Names] = {
    "datasets": {
        "Dataset": rows.Rows,
        "concatenate_datasets": rows.concatenate_datasets,
        "load_dataset": rows.load_dataset,
        "PROVIDED_BY_LUDUS": True,
    },
}
"""What there is of the package `datasets`, if that is not installed."""


def provide_v0() -> None:
    """Provide the modules in this process, once."""
    if "PROVIDED_BY_LUDUS" in vars(sys.modules.get("verifiers") or object):
        return
    wanted = dict(MODULES) if is_installed("datasets") else {**MODULES, **DATASETS}
    roots = {path.partition(".")[0] for path in wanted}
    made = make_modules(wanted, ())
    for name in [name for name in sys.modules if name.partition(".")[0] in roots]:
        del sys.modules[name]
    sys.modules.update(made)


def list_provided() -> set[str]:
    """The public names of `verifiers` that are provided."""
    return {verdict.name for verdict in V0_NAMES if verdict.name in MODULES["verifiers"]}
