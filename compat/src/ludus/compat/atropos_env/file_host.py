"""Runs the code of a file in a thread and a loop of its own.

Files block: they read data sets, use executors, and wait for a slot in a plain function. In a thread of their own they
do not stop the models and slots of the run. The modules that the file imports exist from its load to its end.
"""

import asyncio
import contextvars
import inspect
import textwrap
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Self

from ludus.compat.atropos_env.base_env import SERVICES, BaseEnv, FileServices
from ludus.compat.atropos_env.file_import import import_file, name_package
from ludus.compat.atropos_env.provided_modules import Names, provide_modules
from ludus.compat.atropos_env.thread_alarms import allow_thread_alarms
from ludus.errors import ConfigError, LudusError


class LoadedFile:
    """A file and its environment class. Its modules exist until `close`."""

    def __init__(self, path: Path, kind: type[BaseEnv], stack: ExitStack) -> None:
        self.path = path
        self.kind = kind
        self._stack = stack

    def close(self) -> None:
        self._stack.close()


def load_file(
    path: Path, name: str, modules: Names, bases: tuple[type[BaseEnv], ...], *, package: str = ""
) -> LoadedFile:
    """Import a file and find its environment: the class `name`, or the only one that it defines. `package`: one of the
    modules, to which relative imports of the file refer.

    Raises:
        ConfigError: the file cannot be imported, or has none or several.
    """
    path = path.expanduser().resolve()
    if not path.is_file():
        raise ConfigError(f"env.name: there is no file {path}")
    folders = [path.parent, *path.parents[1:4]]
    stack = ExitStack()
    stack.enter_context(provide_modules(modules, folders))
    stack.enter_context(allow_thread_alarms())
    try:
        module = _import(path, package, stack)
        return LoadedFile(path, _find_class(module, path, name, bases), stack)
    except BaseException:
        stack.close()
        raise


def _import(path: Path, package: str, stack: ExitStack) -> ModuleType:
    try:
        return stack.enter_context(import_file(path, package))
    except LudusError:
        raise
    except (Exception, SystemExit) as error:  # foreign code: the user must see whatever it raises
        trace = traceback.TracebackException.from_exception(error)
        home = str(Path(__file__).parent)
        frames = [f for f in trace.stack if "importlib" not in f.filename and not f.filename.startswith(home)]
        frames = [f for f in frames if "contextlib" not in f.filename]
        trace.stack = traceback.StackSummary.from_list(frames)
        shown = textwrap.indent("".join(trace.format(chain=False)).rstrip(), "  ")
        raise ConfigError(f"env.name: importing {path} failed:\n{shown}{name_package(error)}") from error


def _find_class(module: ModuleType, path: Path, name: str, bases: tuple[type[BaseEnv], ...]) -> type[BaseEnv]:
    known = " or ".join(base.__name__ for base in bases)
    own = {
        key: value
        for key, value in vars(module).items()
        if inspect.isclass(value) and issubclass(value, bases) and value.__module__ == module.__name__
    }
    if name:
        if name not in own:
            raise ConfigError(f"env.name: {path} has no class '{name}' derived from {known}")
        return own[name]
    parents = {parent for value in own.values() for parent in value.__mro__[1:]}
    leaves = {key: value for key, value in own.items() if value not in parents}
    if len(leaves) != 1:
        names = ", ".join(f"{path.name}:{key}" for key in leaves)
        what = f"several environments; choose one: {names}" if leaves else f"no class derived from {known}"
        raise ConfigError(f"env.name: {path} has {what}")
    return next(iter(leaves.values()))


class FileHost:
    """The thread and the loop of a file's code."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="ludus-file", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._end)
        self._thread.join(10)
        if not self._thread.is_alive():
            self._loop.close()

    def _end(self) -> None:
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.call_soon(self._loop.call_soon, self._loop.stop)

    async def run(self, work: Callable[[], Any]) -> Any:
        """Call a function in the file's loop and wait for what it returns, there. Context variables are passed on."""
        context = contextvars.copy_context()

        async def call() -> Any:
            task = asyncio.get_running_loop().create_task(_call(work), context=context)
            return await task

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call(), self._loop))

    async def make_env(
        self, kind: type[BaseEnv], services: FileServices, config: Any, servers: list[Any], flags: Mapping[str, bool]
    ) -> BaseEnv:
        """Make an instance of a file's class, and set it up."""

        async def make() -> BaseEnv:
            SERVICES.set(services)
            given: tuple[Any, ...] = (config, servers, flags.get("slurm", False), flags.get("testing", False))
            env = kind(*given[: _count_places(kind)])
            await await_if_needed(env.begin_run())
            return env

        try:
            return await self.run(make)
        except LudusError:
            raise
        except Exception as error:
            raise ConfigError(f"env: {kind.__name__} cannot be set up:\n{describe_trace(error)}") from error


def _count_places(kind: type[BaseEnv]) -> int:
    """How many arguments a class takes by place. Some files leave out the last ones."""
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    listed = inspect.signature(kind).parameters.values()
    if any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in listed):
        return 4
    return sum(each.kind in places for each in listed)


async def _call(work: Callable[[], Any]) -> Any:
    try:
        return await await_if_needed(work())
    except SystemExit as error:  # it would end the loop, and the run would wait for ever
        raise FileExit(f"the file ended itself with sys.exit({error.code!r})").with_traceback(
            error.__traceback__
        ) from None


class FileExit(Exception):
    """The code of a file called `sys.exit`."""


async def await_if_needed(value: Any) -> Any:
    """What a hook returns. Some files define plain functions where others define coroutines."""
    return await value if inspect.isawaitable(value) else value


def describe_trace(error: BaseException) -> str:
    """The traceback of a file's error, without the frames of Ludus, and how to get a package that is missing."""
    trace = traceback.TracebackException.from_exception(error)
    home = str(Path(__file__).parents[2])
    frames = [f for f in trace.stack if not f.filename.startswith(home) and "asyncio" not in f.filename]
    trace.stack = traceback.StackSummary.from_list(frames)
    return textwrap.indent("".join(trace.format(chain=False)).rstrip(), "  ") + name_package(error)
