"""What classes and objects of the user must define, checked when they are loaded, before any model is asked.

Each function takes what was loaded and its label, such as "MyEnv in 'my_env.py'". It returns what is wrong, or an empty
text. A method is refused as not async only if it is certain: a plain `def` that neither wraps a coroutine function nor
is annotated to return an awaitable.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, get_origin, get_type_hints

import msgspec

from ludus.env import Env, EnvSettings
from ludus.errors import explain_not_async
from ludus.sandbox.backend import Backend, SlotBackend

if TYPE_CHECKING:
    from ludus.harness import Harness

Check = Callable[[Any, str], str]
"""Takes what was loaded and its label. Returns what is wrong with it, or an empty text."""


def find_no_fault(found: Any, label: str) -> str:
    """The check of things that have nothing to check."""
    return ""


def check_env(kind: type[Env], label: str) -> str:
    if not kind.name:
        return f'{label} has no name; add: name: ClassVar[str] = "my-env"'
    fields = {f.name for f in msgspec.structs.fields(kind)}
    if facts := sorted(fields & get_type_hints(Env).keys()):
        return (
            f"{label} makes an option of '{facts[0]}', which is a fact about the environment: write "
            f"{facts[0]}: ClassVar[…] = …, or leave its type out"
        )
    if both := fields & {f.name for f in msgspec.structs.fields(EnvSettings)}:
        return f"{label} has a field '{min(both)}', a name that Ludus uses itself; rename it"
    if hasattr(kind, "grader"):
        return f"{label} has a grader: declare graded: ClassVar[bool] = True, and define grade(rollout, box, judges)"
    if problem := _check_call(kind.slot, ("self", "task", "default")):
        return f"{label}: slot is called with (task, default), but its parameters do not fit: {problem}"
    judging = {"grade": "grade(rollout, box, judges)"} if kind.graded else {"verify": "verify(rollout, box)"}
    return (
        _check_defined(kind, Env, {"tasks": "tasks(split)", **judging}, label)
        or _check_async(kind, ("prepare", "setup", "follow_up", "verify", "verify_group", "grade", "solve"), label)
    )  # fmt: skip


def check_proposer(kind: type[Any], label: str) -> str:
    from ludus.reflact.proposers import Proposer

    if not kind.name:
        return f'{label} has no name; add: name: ClassVar[str] = "mine"'
    return (
        _check_defined(kind, Proposer, {"reflect": "reflect(view, batch, rollouts)"}, label)
        or _check_async(kind, ("reflect", "aggregate", "select"), label)
    )  # fmt: skip


def check_rule(found: Any, label: str) -> str:
    call: Any = found
    if isinstance(found, type):
        if needed := _find_required(found):
            return f"{label} must be constructible without arguments, but needs '{needed}'"
        call = getattr(found, "__call__")  # noqa: B004, B009  # of its instances
    if _is_async(call) or _is_async(get_call(call)):
        return f"{label} must be written as `def`: a gate rule is not asynchronous"
    arguments = ("gate", "candidate", "current", "best")
    problem = _check_call(call, (found, *arguments) if isinstance(found, type) else arguments)
    return problem and f"{label} is called with ({', '.join(arguments)}), but its parameters do not fit: {problem}"


def get_call(instance: Any) -> Any:
    """The function that is run when an instance is called; None if it cannot be called."""
    return getattr(type(instance), "__call__", None)  # pyright: ignore[reportUnknownArgumentType]  # noqa: B004


def check_model(kind: type[Any], label: str) -> str:
    return _check_async(kind, ("complete", "close"), label)


def check_backend(kind: type[Backend[Any]], label: str) -> str:
    if not kind.name:
        return f'{label} has no name; add: name = "my-backend"'
    if problem := _check_call(kind, ("settings", "secrets")):
        return f"{label} is made with (settings, secrets), but the parameters of its __init__ do not fit: {problem}"
    if issubclass(kind, SlotBackend):
        return _check_defined(kind, SlotBackend, {"create": "create(spec)"}, label) or _check_async(
            kind, ("check", "create", "close"), label
        )
    needed = {"get_kind": "get_kind(spec)", "launch": "launch(spec)"}
    from ludus.sandbox.remote.fleet import RemoteBackend

    return _check_defined(kind, RemoteBackend, needed, label) or _check_async(kind, ("launch", "close"), label)


def check_harness(harness: "Harness", label: str) -> str:
    return "" if harness.command.strip() else f"{label} has no command; add what starts the agent: command=…"


def check_tracker(kind: type[Any], label: str) -> str:
    plain = {"start": ("run",), "log": ("values", "step"), "close": ()}
    for name, arguments in plain.items():
        method = getattr(kind, name)
        if _is_async(method):
            return f"{label}: {name} must be written as `def`: a tracker is not asynchronous"
        if problem := _check_call(method, ("self", *arguments)):
            wanted = f"{name}({', '.join(arguments)})"
            return f"{label} is called with {wanted}, but the parameters do not fit: {problem}"
    return ""


# ---- parts ----------------------------------------------------------------------------------------------------------


def _check_defined(kind: type[Any], base: type[Any], methods: dict[str, str], label: str) -> str:
    """Whether a class defines these methods itself. `methods` has the form of each, by name."""
    missing = [form for name, form in methods.items() if getattr(kind, name) is getattr(base, name)]
    return f"{label} does not define {' and '.join(missing)}" if missing else ""


def _check_async(kind: type[Any], methods: Iterable[str], label: str) -> str:
    plain = [name for name in methods if _is_plain(inspect.getattr_static(kind, name), name)]
    return f"{label}: {explain_not_async(plain[0])}" if plain else ""


def _is_plain(method: Any, name: str) -> bool:
    """Whether a method is written as a plain `def` of this name. A decorated one may return an awaitable."""
    if not inspect.isfunction(method) or method.__name__ != name:
        return False
    if inspect.iscoroutinefunction(method) or inspect.iscoroutinefunction(inspect.unwrap(method)):
        return False
    returned = method.__annotations__.get("return")
    if isinstance(returned, str):
        return not any(word in returned for word in ("Awaitable", "Coroutine", "Future", "Task["))
    origin = get_origin(returned) or returned
    return not (isinstance(origin, type) and issubclass(origin, Awaitable))


def _is_async(call: Any) -> bool:
    return inspect.iscoroutinefunction(call) or inspect.isasyncgenfunction(call)


def _check_call(call: Any, arguments: tuple[Any, ...]) -> str:
    """Why something cannot be called with these arguments; empty if it can, or if its parameters are unknown."""
    try:
        signature = inspect.signature(call)
    except (TypeError, ValueError):
        return ""
    try:
        signature.bind(*arguments)
    except TypeError as error:
        return str(error)
    return ""


def _find_required(kind: type[Any]) -> str:
    """The first parameter that the constructor cannot do without."""
    try:
        parameters = inspect.signature(kind).parameters.values()
    except (TypeError, ValueError):
        return ""
    needed = (p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD))
    return next(needed, "")
