"""Mutants of a module: each is one function with one small change of its syntax tree. No tests: see runner.py."""

import ast
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from operator import setitem
from pathlib import Path
from types import CodeType
from typing import Final, final

_COMPARISONS: Final = {
    "<": ("<=", ">="),
    "<=": ("<", ">"),
    ">": (">=", "<="),
    ">=": (">", "<"),
    "==": ("!=",),
    "!=": ("==",),
    "is": ("is not",),
    "is not": ("is",),
    "in": ("not in",),
    "not in": ("in",),
}
_ARITHMETIC: Final = {"+": "-", "-": "+", "*": "//", "//": "*", "<<": ">>", ">>": "<<"}
_KINDS: Final[dict[str, type[ast.cmpop | ast.operator]]] = {
    "<": ast.Lt,
    "<=": ast.LtE,
    ">": ast.Gt,
    ">=": ast.GtE,
    "==": ast.Eq,
    "!=": ast.NotEq,
    "is": ast.Is,
    "is not": ast.IsNot,
    "in": ast.In,
    "not in": ast.NotIn,
    "+": ast.Add,
    "-": ast.Sub,
    "*": ast.Mult,
    "//": ast.FloorDiv,
    "<<": ast.LShift,
    ">>": ast.RShift,
}
_SIGNS: Final = {kind: sign for sign, kind in _KINDS.items()}
_BLOCKS: Final = ("body", "orelse", "finalbody", "handlers", "cases")
_UNCHANGED: Final = (*_BLOCKS, "annotation", "args", "decorator_list", "returns")
"""Parts of a statement that are other statements, or only types and defaults."""
_LEFT_OUT: Final = ast.Expr | ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Raise | ast.Return | ast.Delete
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Apply = Callable[[], None]
_Replace = Callable[[ast.expr], None]
_Change = tuple[int, str, _Apply]
"""The line of a change, its operator, and what makes it."""


@final
class Mutant:
    """One change of one function. `apply` makes it in the tree that all mutants of the module share."""

    __slots__ = ("apply", "function", "key", "line", "operator", "statement", "text")

    def __init__(
        self, function: str, line: int, statement: int, operator: str, text: str, key: str, apply: _Apply
    ) -> None:
        self.function = function
        """The qualified name of the function or method; what is nested in it belongs to it."""
        self.line = line
        self.statement = statement
        """The line where the changed statement begins: a test that does not reach it cannot tell the mutant."""
        self.operator = operator
        self.text = text
        """The line in the file, without indentation."""
        self.key = key
        """The same as long as nothing of the function changes."""
        self.apply = apply


@final
class Source:
    """The tree of one module."""

    def __init__(self, path: Path) -> None:
        text = path.read_text()
        self.path = path
        self.mutants: list[Mutant] = []
        """All mutants of all functions, in the order of the file."""
        self._tree = ast.parse(text)
        lines = text.splitlines()
        for name, function in _functions(self._tree, ""):
            whole = "\n".join(lines[function.lineno - 1 : function.end_lineno])
            seen: Counter[str] = Counter()
            for statement in _statements(function.body):
                if statement is function.body[-1] and isinstance(statement, ast.Return) and statement.value is None:
                    continue  # the end either way
                for line, operator, apply in _changes(statement):
                    text = lines[line - 1].strip()
                    place = f"{name}\n{whole}\n{operator}\n{text}"
                    key = hashlib.sha256(f"{place}\n{seen[place]}".encode()).hexdigest()[:16]
                    seen[place] += 1
                    self.mutants.append(Mutant(name, line, statement.lineno, operator, text, key, apply))

    def codes(self) -> dict[tuple[str, int], CodeType]:
        """The code of all functions of the tree as it is now, by name and first line."""
        return dict(_codes(compile(ast.fix_missing_locations(self._tree), str(self.path), "exec")))


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, _Function]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _Function):
            yield prefix + child.name, child
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")


def _codes(code: CodeType) -> Iterator[tuple[tuple[str, int], CodeType]]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield (constant.co_qualname, constant.co_firstlineno), constant
            yield from _codes(constant)


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """All statements, each before those in it; no docstrings and no calls that log."""
    for statement in body:
        if isinstance(statement, ast.Expr) and (isinstance(statement.value, ast.Constant) or _logs(statement.value)):
            continue
        yield statement
        for block in _BLOCKS:
            for part in getattr(statement, block, []):
                yield from _statements([part] if isinstance(part, ast.stmt) else part.body)


def _logs(node: ast.expr) -> bool:
    function = node.func if isinstance(node, ast.Call) else None
    return isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "_log"


def _changes(statement: ast.stmt) -> Iterator[_Change]:
    """The changes of a statement, without those of statements in it."""
    line = statement.lineno
    if isinstance(statement, _LEFT_OUT) and not (isinstance(statement, ast.AnnAssign) and statement.value is None):
        yield line, "leave out", partial(_become, statement, ast.Pass)
    match statement:
        case ast.Return(value=value) if not isinstance(value, ast.Constant | None):
            yield line, "return None", partial(setattr, statement, "value", ast.Constant(None))
        case ast.Break():
            yield line, "break to continue", partial(_become, statement, ast.Continue)
        case ast.Continue():
            yield line, "continue to break", partial(_become, statement, ast.Break)
        case ast.AugAssign():
            yield from _of_arithmetic(statement)
    for field, value in ast.iter_fields(statement):
        if field not in _UNCHANGED:
            yield from _in_field(statement, field, value)


def _in_field(parent: ast.AST, field: str, value: object) -> Iterator[_Change]:
    """The changes of one field of a node, and of all below it."""
    if isinstance(value, list):
        for at, node in enumerate(value):
            yield from _of_node(node, partial(setitem, value, at), field == "ifs")
    else:
        yield from _of_node(value, partial(setattr, parent, field), field == "test")


def _of_node(node: object, replace: _Replace, is_condition: bool) -> Iterator[_Change]:
    """The changes of a node and of all below it; `replace` puts another in its place."""
    if not isinstance(node, ast.AST) or isinstance(node, ast.JoinedStr):
        return  # no texts for people
    if isinstance(node, ast.expr):
        yield from _of_expression(node, replace)
        is_negation = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
        if is_condition and not (is_negation or isinstance(node, ast.Compare | ast.Constant)):
            yield node.lineno, "negate", partial(replace, ast.UnaryOp(ast.Not(), node))
    for field, value in ast.iter_fields(node):
        if not (isinstance(node, ast.Lambda) and field == "args"):
            yield from _in_field(node, field, value)


def _of_expression(node: ast.expr, replace: _Replace) -> Iterator[_Change]:
    line = node.lineno
    match node:
        case ast.Compare():
            for at, kind in enumerate(node.ops):
                sign = _SIGNS[type(kind)]
                for other in _COMPARISONS[sign]:
                    yield line, f"{sign} to {other}", partial(setitem, node.ops, at, _KINDS[other]())
        case ast.UnaryOp(op=ast.Not()):
            yield line, "without not", partial(replace, node.operand)
        case ast.BinOp() if not (_is_text(node.left) or _is_text(node.right)):
            yield from _of_arithmetic(node)
        case ast.BoolOp():
            word = "and" if isinstance(node.op, ast.And) else "or"
            for at, operand in enumerate(node.values):
                rest = node.values[:at] + node.values[at + 1 :]
                fewer = rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
                yield operand.lineno, f"{word} without operand {at + 1}", partial(replace, fewer)
        case ast.Constant(value=bool(truth)):
            yield line, f"{truth} to {not truth}", partial(setattr, node, "value", not truth)
        case ast.Constant(value=int(number)):
            yield line, f"{number} plus one", partial(setattr, node, "value", number + 1)
        case ast.Call(func=ast.Name(id="min" | "max") as function):
            other = "max" if function.id == "min" else "min"
            yield line, f"{function.id} to {other}", partial(setattr, function, "id", other)
        case ast.Call(func=ast.Attribute(attr="append") as method) if len(node.args) == 1:
            yield line, "append to insert at 0", partial(_put_first, node, method)
        case ast.Call(func=ast.Attribute(attr="appendleft" | "popleft") as method):
            other = method.attr.removesuffix("left")
            yield line, f"{method.attr} to {other}", partial(setattr, method, "attr", other)


def _of_arithmetic(node: ast.AugAssign | ast.BinOp) -> Iterator[_Change]:
    sign = _SIGNS.get(type(node.op), "")
    if sign in _ARITHMETIC:
        other = _ARITHMETIC[sign]
        yield node.lineno, f"{sign} to {other}", partial(setattr, node, "op", _KINDS[other]())


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))


def _put_first(call: ast.Call, method: ast.Attribute) -> None:
    method.attr = "insert"
    call.args.insert(0, ast.Constant(0))


def _become(statement: ast.stmt, kind: type[ast.stmt]) -> None:
    place = {field: getattr(statement, field) for field in ("lineno", "col_offset", "end_lineno", "end_col_offset")}
    statement.__dict__.clear()
    statement.__dict__.update(place)
    statement.__class__ = kind
