"""Mutations of Python source: one small wrong change each, as a programmer's slip would be.

Only code inside functions is changed. Left alone: types, decorators, texts, what a `raise` says, module
constants and the defaults of options (a test that repeats a tuned number proves nothing), guards against
slips of our own (`assert`, `zip(..., strict=True)`), sorts that are asked to be stable (on a CPU torch's
always are), the -1 of a reshape (any negative number means the same), and guards smaller than 1e-6. "<" does
not become "<=": real numbers are hardly ever equal, and counts are changed by one where they stand.
"""

from __future__ import annotations

import ast
import copy
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

OPERATORS: dict[type, tuple[type, ...]] = {
    ast.Lt: (ast.Gt,),
    ast.LtE: (ast.Gt,),
    ast.Gt: (ast.Lt,),
    ast.GtE: (ast.Lt,),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div,),
    ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Mult,),
    ast.Mod: (ast.FloorDiv,),
    ast.Pow: (ast.Mult,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
    ast.BitXor: (ast.BitOr,),
    ast.And: (ast.Or,),
    ast.Or: (ast.And,),
}
NAMES = {
    "min": "max",
    "max": "min",
    "minimum": "maximum",
    "maximum": "minimum",
    "amin": "amax",
    "amax": "amin",
    "argmin": "argmax",
    "argmax": "argmin",
    "any": "all",
    "all": "any",
    "floor": "ceil",
    "ceil": "floor",
    "sin": "cos",
    "cos": "sin",
    "sum": "mean",
    "mean": "sum",
    "logical_and": "logical_or",
    "median": "mean",
}
SMALLEST = 1e-6  # numbers below are there so that nothing is divided by zero


@dataclass(frozen=True)
class Mutation:
    """One change of one file."""

    path: str  # of the file, as it was given
    function: str
    lines: tuple[int, int]  # of the statement that is changed, from 1, both included
    old: str
    new: str
    number: int  # among equal changes of the same function
    place: tuple[int, int]  # bytes of the source that are replaced
    around: str  # digest of the function: what was found out about it stays true while it is the same

    @property
    def name(self) -> str:
        return f"{self.path}::{self.function}: {self.old} -> {self.new} #{self.number}"

    def apply(self, source: str) -> str:
        content = source.encode()
        return (content[: self.place[0]] + self.new.encode() + content[self.place[1] :]).decode()


def mutations_of(path: str, source: str) -> list[Mutation]:
    """All mutations of a file, in its order; each compiles."""
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    made: list[Mutation] = []
    seen: dict[tuple[str, str, str], int] = {}
    for function, body, statement, node in _changeable(ast.parse(source)):
        around = hashlib.sha256(ast.dump(body).encode()).hexdigest()[:12]
        place = (
            starts[node.lineno - 1] + node.col_offset,
            starts[node.end_lineno - 1] + node.end_col_offset,
        )
        old = " ".join(source.encode()[place[0] : place[1]].decode().split())
        for changed in _changes(node):
            new = changed if isinstance(changed, str) else f"({ast.unparse(changed)})"
            key = (function, old, new)
            seen[key] = seen.get(key, 0) + 1
            lines = (statement.lineno, _last_line(statement))
            made.append(Mutation(path, function, lines, old, new, seen[key], place, around))
    return [mutation for mutation in made if _compiles(mutation.apply(source))]


def _changeable(tree: ast.Module) -> Iterator[tuple[str, ast.AST, Any, Any]]:
    """(name of the function, its node, statement, node) of all that may be changed."""

    def inside(
        node: ast.AST, names: str, body: ast.AST, statement: Any
    ) -> Iterator[tuple[str, ast.AST, Any, Any]]:
        for child in _children(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{names}.{child.name}" if names else child.name
                is_function = not isinstance(child, ast.ClassDef)
                yield from inside(child, name, child if is_function else body, child)
                continue
            at = child if isinstance(child, ast.stmt) else statement
            if body is not tree and hasattr(child, "lineno"):
                yield names, body, at, child
            yield from inside(child, names, body, at)

    yield from inside(tree, "", tree, tree)


def _children(node: ast.AST) -> Iterator[ast.AST]:
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "args") and isinstance(
            node, ast.FunctionDef | ast.AsyncFunctionDef | ast.AnnAssign | ast.arg | ast.Lambda
        ):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _is_left_alone(node, child):
                yield child


def _is_left_alone(node: ast.AST, child: ast.AST) -> bool:
    if isinstance(child, ast.keyword):
        return child.arg in ("strict", "stable")
    if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "reshape":
        return ast.unparse(child) == "-1"
    return isinstance(child, ast.Raise | ast.JoinedStr | ast.Assert)


def _changes(node: Any) -> Iterator[ast.AST | str]:
    if isinstance(node, ast.Compare):
        for number, operator in enumerate(node.ops):
            for other in OPERATORS.get(type(operator), ()):
                changed = copy.deepcopy(node)
                changed.ops[number] = other()
                yield changed
    elif isinstance(node, ast.BinOp | ast.BoolOp):
        for other in OPERATORS.get(type(node.op), ()):
            if isinstance(node, ast.BinOp) and _is_text(node.left):
                continue  # formatting and joining of texts
            changed = copy.deepcopy(node)
            changed.op = other()
            yield changed
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not | ast.Invert):
        if not isinstance(node.operand, ast.Constant):  # a number is changed as a number
            yield copy.deepcopy(node.operand)
    elif isinstance(node, ast.Constant):
        yield from _other_constants(node.value)
    elif isinstance(node, ast.Call):
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name in NAMES:
            changed = copy.deepcopy(node)
            setattr(changed.func, "attr" if hasattr(changed.func, "attr") else "id", NAMES[name])
            yield changed
    elif isinstance(node, ast.AugAssign) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        yield "pass"
    elif isinstance(node, ast.If | ast.While | ast.For):
        return
    elif isinstance(node, ast.Continue):
        yield "break"
    elif isinstance(node, ast.Break):
        yield "continue"


def _other_constants(value: object) -> Iterator[ast.AST]:
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, int):
        yield ast.Constant(value + 1)
    elif isinstance(value, float) and not 0 < abs(value) < SMALLEST:
        yield ast.Constant(2 * value if value else 1.0)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _last_line(statement: Any) -> int:
    """Of a compound statement its head only: its body are statements of their own."""
    body = getattr(statement, "body", None)
    return max(statement.lineno, body[0].lineno - 1) if isinstance(body, list) else statement.end_lineno


def _compiles(source: str) -> bool:
    try:
        compile(source, "mutant", "exec")
    except (SyntaxError, ValueError):
        return False
    return True
