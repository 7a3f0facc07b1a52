"""Counts the cases of tests from their source, without running it.

`@pytest.mark.parametrize` multiplies the cases of a test; on a class or as `pytestmark`, those of all its tests. Its
values are counted where the source shows how many there are: lists, tuples and dicts, `range`, sums and repetitions of
those, a comprehension without condition, or a variable of the module that is assigned once. Other values count as one.
"""

import ast
from math import prod

_SAME_LENGTH = ("list", "tuple", "sorted", "reversed", "enumerate")
_READING = ("items", "keys", "values", "copy")

_Scope = dict[str, ast.expr]


def count_module_cases(tree: ast.Module) -> dict[str, int]:
    """The tests of a module, as `function` and `Class::function`, with the least number of their cases."""
    return _count_body(tree, _find_constants(tree))


def _count_body(node: ast.Module | ast.ClassDef, scope: _Scope) -> dict[str, int]:
    found: dict[str, int] = {}
    outer = prod(_count_mark(mark, scope) for mark in _list_marks(node))
    for item in node.body:
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) and item.name.startswith("test"):
            found[item.name] = outer * prod(_count_mark(mark, scope) for mark in item.decorator_list)
        elif isinstance(item, ast.ClassDef) and (item.name.startswith("Test") or _is_unittest(item)):
            inner = _count_body(item, scope)
            found |= {f"{item.name}::{name}": outer * number for name, number in inner.items()}
    return found


def _is_unittest(item: ast.ClassDef) -> bool:
    return any(ast.unparse(base).rpartition(".")[2].endswith("TestCase") for base in item.bases)


def _list_marks(node: ast.Module | ast.ClassDef) -> list[ast.expr]:
    """The decorators of a class, and what `pytestmark` holds."""
    marks = list(node.decorator_list) if isinstance(node, ast.ClassDef) else []
    for item in node.body:
        if isinstance(item, ast.Assign) and [ast.unparse(target) for target in item.targets] == ["pytestmark"]:
            marks += item.value.elts if isinstance(item.value, ast.List | ast.Tuple) else [item.value]
    return marks


def _count_mark(mark: ast.expr, scope: _Scope) -> int:
    """The number of cases of one decorator; 1 if it is not `parametrize`, or if the number is not known."""
    if not (isinstance(mark, ast.Call) and ast.unparse(mark.func).endswith("mark.parametrize")):
        return 1
    values = [word.value for word in mark.keywords if word.arg == "argvalues"] or mark.args[1:2]
    return max(1, (_count_values(values[0], scope) if values else None) or 1)


def _count_values(node: ast.expr, scope: _Scope, depth: int = 20) -> int | None:
    """The number of items of an expression; None if its source does not show it."""
    if depth == 0:
        return None

    def count(inner: ast.expr) -> int | None:
        return _count_values(inner, scope, depth - 1)

    match node:
        case ast.List() | ast.Tuple():
            return _add(*(count(item.value) if isinstance(item, ast.Starred) else 1 for item in node.elts))
        case ast.Dict(keys=keys) if all(isinstance(key, ast.Constant) for key in keys):
            return len({key.value for key in keys if isinstance(key, ast.Constant)})
        case ast.Name(id=name) if name in scope:
            return count(scope[name])
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _add(count(left), count(right))
        case ast.BinOp(left=left, op=ast.Mult(), right=ast.Constant(value=int(times))):
            number = count(left)
            return None if number is None else number * max(0, times)
        case ast.ListComp(generators=[ast.comprehension(iter=values, ifs=[])]):
            return count(values)
        case ast.Call(func=ast.Name(id="range"), args=args, keywords=[]):
            return _count_range(args)
        case ast.Call(func=ast.Name(id=name), args=[values, *_]) if name in _SAME_LENGTH:
            return count(values)
        case ast.Call(func=ast.Name(id="zip"), args=[_, *_] as args):
            numbers = [count(item) for item in args]
            known = [number for number in numbers if number is not None]
            return min(known) if len(known) == len(numbers) else None
        case ast.Call(func=ast.Attribute(value=values, attr=name), args=[]) if name in _READING:
            return count(values)
        case _:
            return None


def _add(*numbers: int | None) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None


def _count_range(args: list[ast.expr]) -> int | None:
    try:
        return len(range(*(ast.literal_eval(item) for item in args)))
    except (ValueError, TypeError, OverflowError):
        return None


def _find_constants(tree: ast.Module) -> _Scope:
    """The variables of a module that are assigned once and never changed, as far as the source shows."""
    assigned: _Scope = {}
    for item in tree.body:
        if isinstance(item, ast.Assign) and len(item.targets) == 1 and isinstance(item.targets[0], ast.Name):
            assigned[item.targets[0].id] = item.value
        elif isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and item.value is not None:
            assigned[item.target.id] = item.value
    stores: dict[str, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            stores[node.id] = stores.get(node.id, 0) + 1
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr not in _READING:
            stores[node.value.id] = stores.get(node.value.id, 0) + 2  # a method that may change it
        elif (
            isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and not isinstance(node.ctx, ast.Load)
        ):
            stores[node.value.id] = stores.get(node.value.id, 0) + 2
    return {name: value for name, value in assigned.items() if stores.get(name) == 1}
