"""Finds what users bring: environments, proposers, gate rules, models, sandbox backends, tools, parsers, harnesses and
trackers.

A setting that names one of these takes

    a built-in name           gsm8k
    an installed name         an entry point of a package, in the group of the seam (`ludus.envs` and so on)
    a module or file          package.module:Class    my_env.py:Class
    a file with only one      my_env.py

`SEAMS` is the table: one `Seam` for each kind of thing. A built-in name wins over an installed one.

What is found is foreign code. Importing it may fail in any way; the error shows the code's own traceback, without the
frames of Ludus. What it must define is checked when it is loaded (`contracts`). Options of such a class are the
parameters of its constructor, checked like any other settings.
"""

import dataclasses
import functools
import hashlib
import importlib
import importlib.util
import inspect
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, get_type_hints

import msgspec

from ludus.config import contracts
from ludus.config.reading import Problems, check_value, convert_tree
from ludus.env import Env
from ludus.envs import BUILTIN
from ludus.errors import ConfigError, LudusError, describe_error, suggest
from ludus.reflact.gate_rules import RULES
from ludus.sandbox.backends import REFERENCES

if TYPE_CHECKING:
    from ludus.parsers import ReplyParser

# ---- the seams ----------------------------------------------------------------------------------------------------


class Installed(NamedTuple):
    """An entry point of an installed package."""

    reference: str
    package: str


@dataclass(frozen=True, eq=False)
class Seam:
    """A kind of thing that users can bring."""

    kind: str
    """In words, such as "environment"."""
    setting: str
    """The setting that names one."""
    group: str
    """The entry points of installed packages."""
    must_be: str
    """What is accepted, in words."""
    accepts: Callable[[Any], bool]
    example: str
    """How users refer to one of their own."""
    builtin: Mapping[str, str] = field(default_factory=dict[str, str])
    """Names of those that come with Ludus, and where they are."""
    check: contracts.Check = contracts.find_no_fault
    """What is wrong with one that is accepted."""

    def load(self, name: str, setting: str = "") -> Any:
        """Return what a name or reference stands for.

        Raises:
            ConfigError: there is none, it is something else or incomplete, or its module cannot be imported.
        """
        setting = setting or self.setting
        if name in self.builtin:
            found = load_object(self.builtin[name], setting)
        elif name.endswith(".py"):
            found = self._find_only(_import_file(Path(name), setting), name, setting)
        elif ":" in name:
            found = load_object(name, setting)
        elif entry := self.find_installed().get(name):
            setting = f"{setting} '{name}' (an entry point of the package '{entry.package}')"
            found = load_object(entry.reference, setting)
        else:
            raise ConfigError(self.describe_unknown(name, setting))
        if not self.accepts(found):
            raise ConfigError(f"{setting}: '{name}' is not {_add_article(self.kind)}: it must be {self.must_be}")
        if fault := self.check(found, f"{_get_name(found)} in '{name}'"):
            raise ConfigError(f"{setting}: {fault}")
        return found

    def make(self, name: str, options: Mapping[str, Any], setting: str = "", options_setting: str = "options") -> Any:
        """Load a class and make an instance with these options."""
        return make_instance(self.load(name, setting), options, options_setting, setting or self.setting)

    def list_names(self) -> list[str]:
        """Built-in and installed names."""
        return [*self.builtin, *(name for name in self.find_installed() if name not in self.builtin)]

    def knows(self, name: str) -> bool:
        """Whether the name is built in, installed, or has the form of a reference. Imports nothing of the user's."""
        return name in self.builtin or is_reference(name) or name in self.find_installed()

    def describe_unknown(self, name: str, setting: str = "", more: Iterable[str] = (), kind: str = "") -> str:
        """The error for an unknown name. `more`: names that are known elsewhere. `kind`: another word for the kind."""
        known = suggest(name, [*more, *self.list_names()])
        return f"{setting or self.setting}: unknown {kind or self.kind} '{name}'; {known} (your own: {self.example})"

    def find_installed(self) -> dict[str, Installed]:
        """The entry points of installed packages, by name."""
        from importlib.metadata import entry_points  # takes a while, and most names are built in

        return {
            entry.name: Installed(entry.value.partition("[")[0].strip(), entry.dist.name if entry.dist else "unknown")
            for entry in entry_points(group=self.group)
        }

    def _find_only(self, module: ModuleType, name: str, setting: str) -> Any:
        """The only thing of this kind that a file defines."""
        own = {
            key: value
            for key, value in vars(module).items()
            if not key.startswith("_") and _is_defined_in(value, module) and self.accepts(value)
        }
        if len(own) != 1:
            names = ", ".join(f"{name}:{key}" for key in own)
            what = f"several {self.kind}s; choose one: {names}" if own else f"no {_drop_article(self.must_be)}"
            raise ConfigError(f"{setting}: {name} has {what}")
        return next(iter(own.values()))


def is_reference(name: str) -> bool:
    """Whether a name has the form of `module:name`, `file.py:name` or `file.py`."""
    return ":" in name or name.endswith(".py")


def _is_defined_in(value: Any, module: ModuleType) -> bool:
    """Whether a module defines a class or function, and did not import it. Other values do not know their module."""
    return not (inspect.isclass(value) or inspect.isfunction(value)) or value.__module__ == module.__name__


def _get_name(found: Any) -> str:
    return getattr(found, "__name__", type(found).__name__)


def _add_article(words: str) -> str:
    return f"an {words}" if words[0] in "aeio" else f"a {words}"


def _drop_article(words: str) -> str:
    return words.removeprefix("a ").removeprefix("an ")


def _is_env(found: Any) -> bool:
    return isinstance(found, type) and issubclass(found, Env)


def _is_proposer(found: Any) -> bool:
    from ludus.reflact.proposers import Proposer

    return isinstance(found, type) and issubclass(found, Proposer) and found is not Proposer


def _is_rule(found: Any) -> bool:
    """Whether it is a function, a class whose instances can be called, or such an instance. Aliases of types, which can
    be called too, are not rules."""
    if isinstance(found, type):
        return any("__call__" in vars(base) for base in found.__mro__)
    is_instance = type(found).__module__ != "typing" and inspect.isfunction(contracts.get_call(found))
    is_function = inspect.isfunction(found) or hasattr(found, "__wrapped__")
    return is_function or is_instance or isinstance(found, functools.partial)


def _has_methods(*names: str) -> Callable[[Any], bool]:
    return lambda found: isinstance(found, type) and all(callable(getattr(found, name, None)) for name in names)


def _is_backend(found: Any) -> bool:
    from ludus.sandbox.backend import SlotBackend
    from ludus.sandbox.remote.fleet import RemoteBackend

    return isinstance(found, type) and issubclass(found, SlotBackend | RemoteBackend)


def _is_tool(found: Any) -> bool:
    from ludus.tools import BoundTool, Tool
    from ludus.tools.toolsets import Toolset

    return isinstance(found, Tool | BoundTool | Toolset)


def _is_parser(found: Any) -> bool:
    from ludus.parsers import Format, is_parser

    return isinstance(found, Format) or is_parser(found)


def _is_harness(found: Any) -> bool:
    from ludus.harness import Harness

    return isinstance(found, Harness)


ENV = Seam(
    "environment",
    "env.name",
    "ludus.envs",
    "a class derived from ludus.env.Env",
    _is_env,
    "module:Class, or a file such as my_env.py",
    BUILTIN,
    contracts.check_env,
)
PROPOSER = Seam(
    "proposer",
    "train.proposer",
    "ludus.proposers",
    "a class derived from ludus.reflact.proposers.Proposer",
    _is_proposer,
    "module:Class, or a file such as my_proposer.py",
    {
        "analysts": "ludus.reflact.proposers.analysts:Analysts",
        "exemplars": "ludus.reflact.proposers.exemplars:Exemplars",
        "plain": "ludus.reflact.proposers.plain:PlainAnalyst",
    },
    contracts.check_proposer,
)
GATE = Seam(
    "gate rule",
    "train.gate.rule",
    "ludus.gates",
    "a function like ludus.reflact.gate.judge, or a class whose instances can be called like it",
    _is_rule,
    "module:name, or a file such as my_rule.py",
    RULES,
    contracts.check_rule,
)
MODEL = Seam(
    "model",
    "model.type",
    "ludus.models",
    "a class with the methods of ludus.models.Model: complete and close",
    _has_methods("complete", "close"),
    "module:Class, or a file such as my_model.py",
    check=contracts.check_model,
)
SANDBOX = Seam(
    "sandbox backend",
    "sandbox.backend",
    "ludus.sandboxes",
    "a class derived from SlotBackend (ludus.sandbox.backend) or RemoteBackend (ludus.sandbox.remote.fleet)",
    _is_backend,
    "module:Class, or a file such as my_backend.py",
    REFERENCES,
    contracts.check_backend,
)
TOOL = Seam(
    "tool",
    "tools.enabled",
    "ludus.tools",
    "a function with @tool, a ludus.tools.Tool or a ludus.tools.toolsets.Toolset",
    _is_tool,
    "module:name, or a file such as my_tool.py",
)
PARSER = Seam(
    "parser",
    "model.parser",
    "ludus.parsers",
    "a ludus.parsers.Format, or an object with the methods of ludus.parsers.ReplyParser",
    _is_parser,
    "module:NAME, or a file such as my_parser.py",
)
HARNESS = Seam(
    "harness",
    "agent.harness",
    "ludus.harnesses",
    "a ludus.harness.Harness",
    _is_harness,
    "module:NAME, or a file such as my_agent.py",
    check=contracts.check_harness,
)
TRACKER = Seam(
    "tracker",
    "tracking.use",
    "ludus.trackers",
    "a class with the methods of ludus.trackers.Tracker: start, log and close",
    _has_methods("start", "log", "close"),
    "module:Class, or a file such as my_tracker.py",
    {
        "wandb": "ludus.trackers.client_trackers:WandbTracker",
        "trackio": "ludus.trackers.client_trackers:TrackioTracker",
        "mlflow": "ludus.trackers.mlflow_tracker:MlflowTracker",
        "tensorboard": "ludus.trackers.tensorboard_tracker:TensorBoardTracker",
        "otel": "ludus.trackers.otel_tracker:OtelTracker",
    },
    contracts.check_tracker,
)
SOURCE = Seam(
    "source",
    "env.name",
    "ludus.sources",
    "a class derived from ludus.sources.Source",
    _has_methods("name_env", "read_settings", "open_agent", "translate"),
    "an entry point of an installed package",
)
SEAMS = (ENV, PROPOSER, GATE, MODEL, SANDBOX, TOOL, PARSER, HARNESS, TRACKER, SOURCE)


# ---- environments, parsers ----------------------------------------------------------------------------------------


def load_env_class(name: str) -> type[Env]:
    """The environment class that `env.name` stands for.

    Raises:
        ConfigError: there is none, it cannot be used, or its module cannot be imported.
    """
    kind: type[Env] = ENV.load(name)
    return kind


def load_parser(name: str, setting: str) -> "ReplyParser":
    """The parser of a built-in name (`docs/parsers.md`), or one of the user's own."""
    from ludus.parsers import list_names, make_parser

    try:
        return make_parser(name)
    except ConfigError:
        if PARSER.knows(name):
            return make_parser(PARSER.load(name, setting))
        raise ConfigError(PARSER.describe_unknown(name, setting, list_names(), "tool-call parser")) from None


# ---- options ------------------------------------------------------------------------------------------------------


def make_instance(kind: type[Any], options: Mapping[str, Any], setting: str, class_setting: str = "") -> Any:
    """Make an instance of a user's class. The options are checked against its fields or its constructor.

    `setting`: where the options are. `class_setting`: the setting that names the class.

    Raises:
        ConfigError: an option is unknown, missing or wrong, or the class refuses it.
    """
    if issubclass(kind, msgspec.Struct):
        return convert_tree(_check_options(options, kind, setting), kind, setting)
    parameters = list(inspect.signature(kind).parameters.values())
    if any(p.kind is p.VAR_KEYWORD for p in parameters):  # it checks its options itself
        arguments = dict(options)
    else:
        fields = _make_fields(kind, parameters)
        given = _check_options(options, fields, setting)
        checked = convert_tree(given, fields, setting)
        arguments = {name: getattr(checked, name) for name in given}
    try:
        return kind(**arguments)
    except LudusError:
        raise
    except Exception as error:  # foreign code
        if isinstance(error, TypeError | ValueError) and (options or not class_setting):  # most likely, an option
            raise ConfigError(f"{setting}: {kind.__name__}: {error}") from error
        failure = f"{kind.__name__} could not be made: {describe_error(error)}"
        raise ConfigError(f"{class_setting or setting}: {failure}") from error


def _check_options(options: Mapping[str, Any], kind: type[msgspec.Struct], setting: str) -> dict[str, Any]:
    problems = Problems({})
    found = check_value(dict(options), kind, setting, problems)
    problems.raise_if_any()
    return found


def _make_fields(kind: type[Any], parameters: "list[inspect.Parameter]") -> type[msgspec.Struct]:
    """The parameters of a constructor as a Struct, so that options are checked in one way."""
    hints = get_type_hints(kind if dataclasses.is_dataclass(kind) else kind.__init__, include_extras=True)
    fields: list[Any] = []
    for parameter in parameters:
        accepted = hints.get(parameter.name, Any)
        try:
            msgspec.inspect.type_info(accepted)
        except TypeError:  # a type that settings cannot describe: the class checks it
            accepted = Any
        required = parameter.default is inspect.Parameter.empty
        fields.append((parameter.name, accepted) if required else (parameter.name, accepted, None))
    return msgspec.defstruct(kind.__name__, fields, forbid_unknown_fields=True, kw_only=True)


# ---- modules and files --------------------------------------------------------------------------------------------


MOVED = {
    "ludus.compat.skillopt_adapters": "ludus.compat.skillopt.adapters",
    "ludus.compat.hermes_env.hermes_file_env": "ludus.compat.hermes_env.file_env",
}
"""Modules of Ludus that settings of older runs name, and where they are now."""


def load_object(reference: str, setting: str) -> Any:
    """Return what `module:name` or `file.py:name` refers to. A name may have dots."""
    place, _, name = reference.rpartition(":")
    if not place or not name:
        raise ConfigError(f"{setting}: '{reference}' should be module:name or file.py:name")
    found: Any = _import_file(Path(place), setting) if place.endswith(".py") else _import_module(place, setting)
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            known = [key for key in dir(found) if not key.startswith("_")]
            raise ConfigError(f"{setting}: {place} has no '{part}'; {suggest(part, known)}") from None
    return found


def _import_module(name: str, setting: str) -> ModuleType:
    _add_to_path(Path.cwd())  # as `python -m` does
    try:
        return importlib.import_module(MOVED.get(name, name))
    except (Exception, SystemExit) as error:  # foreign code: the user must see whatever it raises
        raise ConfigError(f"{setting}: importing '{name}' failed:\n{_format_trace(error)}") from error


def _import_file(path: Path, setting: str) -> ModuleType:
    path = path.expanduser().resolve()
    if not path.is_file():
        raise ConfigError(f"{setting}: there is no file {path}")
    name = f"ludus_user_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # types are looked up there
    _add_to_path(path.parent)  # as `python file.py` does
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # foreign code: the user must see whatever it raises
        del sys.modules[name]
        raise ConfigError(f"{setting}: importing {path} failed:\n{_format_trace(error)}") from error
    return module


def _add_to_path(folder: Path) -> None:
    """Let modules in a folder be found, after all others."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _format_trace(error: BaseException) -> str:
    """The traceback without the frames of the import machinery and of this file."""
    trace = traceback.TracebackException.from_exception(error)
    frames = [f for f in trace.stack if "importlib" not in f.filename and f.filename != __file__]
    trace.stack = traceback.StackSummary.from_list(frames)
    return textwrap.indent("".join(trace.format(chain=False)).rstrip(), "  ")
