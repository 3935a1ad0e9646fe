"""Mutants of a Python file: each differs from it in one small place.

What is changed: comparisons, arithmetic, shifts, `and` and `or`, `not` and the sign,
integers by one, booleans, conditions (negated), `min` and `max`, returned values (None), and
statements (left out): calls, changes of attributes and items, raises, breaks, continues.
Annotations, assertions, messages and decorators are left alone.
"""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_OTHER_CALL = {"min": "max", "max": "min"}
_SKIPPED_FIELDS = {"annotation", "returns", "decorator_list", "exc", "pattern"}

Put = Callable[[ast.AST], None]


@dataclass(frozen=True)
class Mutant:
    """One change: where, what it reads like, and how to make and unmake it in the tree."""

    line: int
    text: str
    make: Callable[[], None]
    undo: Callable[[], None]


def mutants_of(tree: ast.Module) -> Iterator[Mutant]:
    """Every mutant, in the order of the source; `tree` is changed by who makes one."""
    yield from _visit(tree)


def _visit(node: ast.AST) -> Iterator[Mutant]:
    for field, value in ast.iter_fields(node):
        if field in _SKIPPED_FIELDS:
            continue
        if isinstance(value, ast.AST):
            yield from _changes(node, value, _setter(node, field))
        elif isinstance(value, list):
            for place, item in enumerate(value):
                if isinstance(item, ast.AST):
                    yield from _changes(node, item, _item_setter(value, place))


def _setter(node: ast.AST, field: str) -> Put:
    return lambda new: setattr(node, field, new)


def _item_setter(items: list[ast.AST], place: int) -> Put:
    return lambda new: items.__setitem__(place, new)


def _changes(parent: ast.AST, node: ast.AST, put: Put) -> Iterator[Mutant]:
    """The mutants that stand in place of `node`, then those inside it."""
    if isinstance(node, ast.Assert | ast.JoinedStr):
        return
    if isinstance(node, ast.expr | ast.stmt):
        is_condition = isinstance(parent, ast.If | ast.While | ast.IfExp) and parent.test is node
        news = [*_others(node)]
        if (
            is_condition
            and isinstance(node, ast.expr)
            and not isinstance(node, ast.Compare | ast.UnaryOp)
        ):
            news.append(ast.UnaryOp(ast.Not(), node))
        for new in news:
            yield _mutant(node, new, put)
    yield from _visit(node)


def _mutant(node: ast.expr | ast.stmt, new: ast.AST, put: Put) -> Mutant:
    ast.copy_location(new, node)
    ast.fix_missing_locations(new)
    text = f"{_short(node)}  ->  {_short(new)}"
    return Mutant(node.lineno, text, lambda: put(new), lambda: put(node))


def _short(node: ast.AST) -> str:
    return ast.unparse(node).split("\n", maxsplit=1)[0]


def _others(node: ast.expr | ast.stmt) -> Iterator[ast.AST]:  # noqa: C901, PLR0912 - one case a kind
    match node:
        case ast.Compare(left, [operator], comparators):
            for kind in _COMPARISONS[type(operator)]:
                yield ast.Compare(left, [kind()], comparators)
        case ast.Compare(left, operators, comparators):
            for place, operator in enumerate(operators):
                for kind in _COMPARISONS[type(operator)]:
                    changed = [*operators[:place], kind(), *operators[place + 1 :]]
                    yield ast.Compare(left, changed, comparators)
        case ast.BinOp(left, operator, right) if type(operator) in _OPERATORS:
            yield ast.BinOp(left, _OPERATORS[type(operator)](), right)
        case ast.AugAssign(target, operator, value):
            if type(operator) in _OPERATORS:
                yield ast.AugAssign(target, _OPERATORS[type(operator)](), value)
            yield ast.Pass()
        case ast.BoolOp(operator, values):
            yield ast.BoolOp(ast.Or() if isinstance(operator, ast.And) else ast.And(), values)
        case ast.UnaryOp(ast.Not() | ast.USub(), operand):
            yield operand
        case ast.Constant(bool() as truth):
            yield ast.Constant(not truth)
        case ast.Constant(int() as number):
            yield ast.Constant(number + 1)
            yield ast.Constant(number - 1)
        case ast.Call(ast.Name(name), arguments, keywords) if name in _OTHER_CALL:
            yield ast.Call(ast.Name(_OTHER_CALL[name], ast.Load()), arguments, keywords)
        case ast.Return(ast.expr() as value) if not _is_none(value):
            yield ast.Return(ast.Constant(None))
        case ast.Expr(ast.Call()) | ast.Raise() | ast.Break() | ast.Continue():
            yield ast.Pass()
        case ast.Assign(targets) | ast.Delete(targets):
            if any(not isinstance(target, ast.Name) for target in targets) and all(
                not _names(target) for target in targets
            ):
                yield ast.Pass()
        case _:
            pass


def _is_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def _names(target: ast.expr) -> bool:
    """Whether it makes a local name: without it nothing would run at all."""
    return any(
        isinstance(part.ctx, ast.Store) for part in ast.walk(target) if isinstance(part, ast.Name)
    )
