"""Marks on the methods of environments and rubrics: `@vf.stop`, `@vf.cleanup`, `@vf.teardown`."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any


def _make_mark(name: str) -> Any:
    """A decorator that marks a function, with or without arguments."""

    def mark(function: Callable[..., Any] | None = None, priority: int = 0, **options: Any) -> Any:
        def decorate(marked: Any) -> Any:
            setattr(marked, name, True)
            setattr(marked, f"{name}_priority", priority)
            for option, value in options.items():
                setattr(marked, f"{name}_{option}", value)
            return marked

        return decorate if function is None else decorate(function)

    return mark


stop, cleanup, teardown = _make_mark("stop"), _make_mark("cleanup"), _make_mark("teardown")


def discover_decorated(owner: Any, name: str) -> list[Callable[..., Any]]:
    """The marked methods: those with a higher priority first, then by name."""
    methods = [method for _, method in inspect.getmembers(owner, inspect.ismethod) if hasattr(method, name)]
    return sorted(methods, key=lambda method: (-getattr(method, f"{name}_priority", 0), method.__name__))


async def maybe_await(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    result = function(*args, **kwargs)
    return await result if inspect.isawaitable(result) else result


def pick_arguments(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What a function takes of the values that there are: all of them if it has `**kwargs`."""
    parameters = inspect.signature(function).parameters
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return dict(given)
    return {name: value for name, value in given.items() if name in parameters}


async def maybe_call_with_named_args(function: Callable[..., Any], **given: Any) -> Any:
    return await maybe_await(function, **pick_arguments(function, given))
