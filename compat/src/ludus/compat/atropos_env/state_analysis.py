"""Finds state that a file carries through a group on its environment object, by reading its code.

    get_next_item:         self.current = item            another group may write it here
    collect_trajectories:  … await the model …  <────────────────────┘
    score:                 self.current["answer"]         and this group reads the other one's

Published files do so: atroposlib's `process` makes one group after the other. Groups of such a file must not run side
by side. What is written by one group and never read by a group again is harmless, and so are counters, running records
and buffers: `self.seen += 1`, `self.best = max(self.best, score)`, `self.scores.append(score)`.

The analysis errs on the side of caution: a file that it suspects loses speed, no more. What it cannot see (`setattr`,
code of other modules) is watched while groups run (`group_turns`).
"""

import ast
import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

OUTSIDE = frozenset(
    {
        "__init__",
        "add_rollouts_for_wandb",
        "cli",
        "config_cls",
        "config_init",
        "create_rollout_table",
        "evaluate",
        "evaluate_log",
        "get_next_item",
        "load_checkpoint",
        "save_checkpoint",
        "setup",
        "wandb_log",
    }
)
"""Methods of an environment that are not called while a group is made."""
TAKE = "get_next_item"
RESETS = frozenset({"reset"})
"""Methods after which an object has new state: `self.game.reset(item)`."""

Place = tuple[int, int]


@dataclass(frozen=True)
class Access:
    """A place where a method uses an attribute. `key` is its path: `current`, `state.item` or `state['item']`."""

    key: str
    at: Place
    writes: bool = False


@dataclass
class Method:
    """What one method does with the environment object."""

    name: str
    accesses: list[Access] = field(default_factory=list[Access])
    waits: list[Place] = field(default_factory=list[Place])
    """Where other groups may run in between."""
    loops: list[tuple[Place, Place]] = field(default_factory=list[tuple[Place, Place]])
    """Loops: what is at their end may run before what is at their beginning."""
    calls: set[str] = field(default_factory=set[str])
    """Other methods of the object that it refers to."""


def find_carried(kind: type, home: str = "ludus") -> list[str]:
    """The attributes through which groups of a class would mix if they ran side by side. `home`: the package of the
    base classes, which are not read."""
    methods = list(_read_methods(kind, home))
    hooks = {name for cls in kind.__mro__ if cls.__module__.partition(".")[0] == home for name in vars(cls)}
    begun = {each.name for each in methods} & hooks - OUTSIDE
    collecting, taking = _reach(methods, begun), _reach(methods, {TAKE})
    written = {each.key for method in (*collecting, *taking) for each in method.accesses if each.writes}
    return sorted(key for key in written if _is_carried(key, taking, collecting))


def _is_carried(key: str, taking: Iterable[Method], collecting: Iterable[Method]) -> bool:
    """Whether a value that one group wrote under a key can be read after another group wrote there, too."""
    used = [(method, own) for method in collecting if (own := _select(method, key))]
    if not any(not each.writes for _, own in used for each in own):
        return False  # no group reads it
    if any(each.writes for method in taking for each in _select(method, key)):
        return True
    if not any(each.writes for _, own in used for each in own):
        return False
    if len(used) > 1:
        return True
    method, own = used[0]
    places = [each.at for each in own]
    ends = [end for start, end in method.loops if any(start < place < end for place in places)]
    return any(min(places) < wait < max([*places, *ends]) for wait in method.waits)


def _select(method: Method, key: str) -> list[Access]:
    """The uses of a key: writes of it, and reads of it, of a part of it, or of what it is part of."""
    return [each for each in method.accesses if each.key == key or (not each.writes and _overlap(each.key, key))]


def _overlap(one: str, other: str) -> bool:
    short, long = sorted((one, other), key=len)
    return long == short or (long.startswith(short) and long[len(short)] in ".[")


def _reach(methods: list[Method], roots: set[str]) -> list[Method]:
    found, waiting = set[str](), set(roots)
    while waiting:
        name = waiting.pop()
        found.add(name)
        waiting |= {call for each in methods if each.name == name for call in each.calls} - found
    return [each for each in methods if each.name in found]


# ---- reading code -------------------------------------------------------------------------------------------------


def _read_methods(kind: type, home: str) -> Iterator[Method]:
    """The methods of a class and its parents, without those of the base classes and those that are replaced."""
    replaced: set[str] = set()
    for cls in kind.__mro__:
        if cls is object or cls.__module__.partition(".")[0] == home:
            continue
        own = [node for node in _find_class(cls) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        yield from (read_method(node) for node in own if node.args.args and node.name not in replaced)
        replaced |= {node.name for node in own if not _calls_super(node)}


def _calls_super(node: ast.AST) -> bool:
    return any(isinstance(each, ast.Name) and each.id == "super" for each in ast.walk(node))


def _find_class(cls: type) -> list[ast.stmt]:
    try:
        tree = parse_file(inspect.getsourcefile(cls) or "")
    except (TypeError, OSError):
        return []
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == cls.__name__]
    return nodes[0].body if nodes else []


def parse_file(path: str) -> ast.Module:
    """The code of a file; nothing if it cannot be read."""
    try:
        return ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ast.Module([], [])


def read_method(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Method:
    """What a method does with its first argument."""
    method, owner = Method(node.name), node.args.args[0].arg
    updates: dict[ast.stmt, set[str]] = {}
    for statement, keys in list_updates(node, owner):
        updates.setdefault(statement, set()).update(keys)
    for each in ast.walk(node):
        if isinstance(each, ast.Await | ast.AsyncFor | ast.AsyncWith):
            method.waits.append((each.lineno, each.col_offset))
        if isinstance(each, ast.For | ast.AsyncFor | ast.While):
            method.loops.append(((each.lineno, each.col_offset), _get_end(each)))
        if isinstance(each, ast.stmt):
            method.accesses += _list_writes(each, owner, updates.get(each, set()))
    for each in _list_chains(node, owner):
        method.calls.add(each.key.partition(".")[0].partition("[")[0])
        method.accesses.append(each)
        if each.key.rpartition(".")[2] in RESETS:
            method.accesses.append(Access(each.key.rpartition(".")[0], each.at, writes=True))
    return method


def _list_writes(statement: ast.stmt, owner: str, updates: set[str]) -> Iterator[Access]:
    """The attributes that a statement replaces. It does so at its end."""
    end = _get_end(statement)
    for target in _list_targets(statement):
        keys = (read_key(each, owner) for each in ast.walk(target) if isinstance(getattr(each, "ctx", None), ast.Store))
        yield from (Access(key, end, writes=True) for key in keys if key and key not in updates)
    if isinstance(statement, ast.Expr) and (key := _read_setattr(statement.value, owner)):
        yield Access(key, end, writes=True)


def _get_end(statement: ast.stmt) -> Place:
    return (statement.end_lineno or statement.lineno, statement.end_col_offset or 0)


def _list_targets(statement: ast.stmt) -> list[ast.expr]:
    match statement:
        case ast.Assign():
            return statement.targets
        case ast.AnnAssign() if statement.value is not None:
            return [statement.target]
        case ast.For() | ast.AsyncFor():
            return [statement.target]
        case ast.With() | ast.AsyncWith():
            return [item.optional_vars for item in statement.items if item.optional_vars is not None]
        case _:
            return []


def _read_setattr(call: ast.expr, owner: str) -> str:
    match call:
        case ast.Call(func=ast.Name(id="setattr"), args=[ast.Name(id=name), ast.Constant(value=str(key)), _]):
            return key if name == owner else ""
        case _:
            return ""


def list_updates(node: ast.AST, owner: str) -> Iterator[tuple[ast.stmt, set[str]]]:
    """Statements that make a new value of the old one, or set it on a condition that looks at it, and the keys."""
    for each in ast.walk(node):
        if isinstance(each, ast.AugAssign):
            yield each, {read_key(each.target, owner)}
        elif isinstance(each, ast.Assign | ast.AnnAssign) and each.value is not None:
            yield each, {access.key for access in _list_chains(each.value, owner)}
        elif isinstance(each, ast.If):
            looked = {access.key for access in _list_chains(each.test, owner)}
            for inner in (each, *each.body, *each.orelse):
                for statement in ast.walk(inner):
                    if isinstance(statement, ast.Assign) and looked:
                        own = {access.key for access in _list_chains(statement.value, owner)}
                        yield statement, looked | own


def _list_chains(node: ast.AST, owner: str) -> Iterator[Access]:
    """The paths that are read in a piece of code, each at its full length."""
    path = node if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Load) else None
    if path is not None and (key := read_key(path, owner)):
        yield Access(key, (path.lineno, path.col_offset))
        return
    for child in ast.iter_child_nodes(node):
        yield from _list_chains(child, owner)


def read_key(node: ast.AST, owner: str) -> str:
    """The path of an attribute: `a`, `a.b`, `a['b']`; empty for what is none."""
    match node:
        case ast.Attribute(value=ast.Name(id=name), attr=attr):
            return attr if name == owner else ""
        case ast.Attribute(value=inner, attr=attr):
            key = read_key(inner, owner)
            return f"{key}.{attr}" if key else ""
        case ast.Subscript(value=inner, slice=ast.Constant(value=str(name))):
            key = read_key(inner, owner)
            return f"{key}[{name!r}]" if key else ""
        case _:
            return ""
