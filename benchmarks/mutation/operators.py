"""The changes that a mutant can be: small faults a person could make, found in the syntax tree, applied to the text.

A mutant replaces one span of the source, so its diff is short and the rest of the file keeps its bytes. Left out by
rule, since such a change cannot alter what the program decides: docstrings, annotations and aliases of types, log
calls, the wording of messages (any string with a space, anything in an f-string or a `raise`), `__repr__`, `__str__`,
`__slots__`, `__all__`, `if TYPE_CHECKING`, decorators, imports, asserts and `strict=True`. The sizes of limits
(`MAX_CALLS = 128`, `timeout=5.0`) are left out too: a test could only repeat the number.
"""

from __future__ import annotations

import ast
import copy
import difflib
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Gap:
    """One element of `whole` is to go: its own text where that can be, so that the diff does not show a whole table."""

    whole: ast.expr
    ends: Sequence[tuple[ast.AST, ast.AST]]
    """Each element's first and last node."""
    index: int
    marked: Sequence[bool] = ()
    """Elements with `**` before them."""


Target = ast.AST | Gap
Replacement = ast.AST | str
#: An operator yields (what goes, what comes in its place).
Operator = Callable[["Place"], Iterator[tuple[Target, Replacement]]]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One changed span of one file. `lines` are the first and last line (from 1) of what runs differently."""

    path: str
    operator: str
    lines: tuple[int, int]
    statement: tuple[int, int]
    start: int
    end: int
    before: str
    after: str
    ordinal: int = field(default=0)
    """Counts equal changes of equal text in one file, so that the id does not depend on line numbers."""

    @property
    def id(self) -> str:
        """Eight hexadecimal digits that stay the same while other parts of the file change."""
        key = "\0".join((self.path, self.operator, self.before, self.after, str(self.ordinal)))
        return hashlib.sha256(key.encode()).hexdigest()[:8]

    def apply(self, text: str) -> str:
        """The file's text with the change."""
        return text[: self.start] + self.after + text[self.end :]

    def diff(self, text: str) -> str:
        """The changed lines as `- old + new`, on one line."""
        old, new = text.splitlines(), self.apply(text).splitlines()
        changes = [line for line in difflib.ndiff(old, new) if line[:2] in ("- ", "+ ")]
        gone = " ".join(line[2:].strip() for line in changes if line[0] == "-")
        come = " ".join(line[2:].strip() for line in changes if line[0] == "+")
        return f"- {gone}  + {come}"


@dataclass(frozen=True, slots=True)
class Place:
    """A node, with the nodes around it from the module inwards."""

    node: ast.AST
    around: tuple[ast.AST, ...]

    @property
    def parent(self) -> ast.AST:
        return self.around[-1]

    @property
    def function(self) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
        """The innermost function around the node."""
        functions = [node for node in self.around if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        return functions[-1] if functions else None

    @property
    def statement(self) -> ast.stmt:
        """The innermost statement that holds the node."""
        return [node for node in (*self.around, self.node) if isinstance(node, ast.stmt)][-1]


_COMPARISONS: Final[Mapping[type[ast.cmpop], Sequence[type[ast.cmpop]]]] = {
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
_ARITHMETIC: Final[Mapping[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
#: Swapped, the arguments only raise TypeError, or give the same.
_FIXED_ORDER: Final = {"isinstance", "issubclass", "getattr", "hasattr", "setattr", "min", "max"}
_OPPOSITES: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}
#: What a function may return in place of its answer, by the outermost name of its annotation.
_EMPTY: Final = {"list": "[]", "tuple": "()", "dict": "{}", "set": "set()", "str": "''", "bytes": "b''", "int": "0"}


def _compare(place: Place) -> Iterator[tuple[Target, Replacement]]:
    node = place.node
    if isinstance(node, ast.Compare):
        for index, operator in enumerate(node.ops):
            for other in _COMPARISONS[type(operator)]:
                changed = copy.deepcopy(node)
                changed.ops[index] = other()
                yield node, changed


def _and_or(place: Place) -> Iterator[tuple[Target, Replacement]]:
    node = place.node
    if isinstance(node, ast.BoolOp):
        yield node, ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
        for dropped in node.values:
            left = [value for value in node.values if value is not dropped]
            yield node, left[0] if len(left) == 1 else ast.BoolOp(node.op, left)


def _negate(place: Place) -> Iterator[tuple[Target, Replacement]]:
    node = place.node
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node, node.operand
    conditions = [node.test] if isinstance(node, ast.If | ast.While | ast.IfExp) else []
    conditions += node.ifs if isinstance(node, ast.comprehension) else []
    for condition in conditions:
        if not isinstance(condition, ast.Compare) or len(condition.ops) > 1:  # else _compare does the same
            yield condition, ast.UnaryOp(ast.Not(), condition)


def _constant(place: Place) -> Iterator[tuple[Target, Replacement]]:
    node = place.node
    if not isinstance(node, ast.Constant) or isinstance(place.parent, ast.Expr):
        return
    value = node.value
    if isinstance(value, bool):
        yield node, ast.Constant(not value)
    elif isinstance(value, int | float) and value != 1 and value and _is_limit(place):
        return
    elif isinstance(value, int):
        yield node, ast.Constant(value + 1)
        if value > 0:
            yield node, ast.Constant(value - 1)
    elif isinstance(value, float):
        yield node, ast.Constant(value * 2 if value else 1.0)
    elif isinstance(value, str) and " " not in value.strip():
        yield node, ast.Constant(value + "x")
    elif isinstance(value, bytes):
        yield node, ast.Constant(value + b"x")


def _is_limit(place: Place) -> bool:
    """A number of a module's constants, as in `MAX_CALLS = 128`, or one that stands for an argument left out."""
    if isinstance(place.parent, ast.arguments):
        return True
    top = place.statement
    targets = [top.target] if isinstance(top, ast.AnnAssign) else top.targets if isinstance(top, ast.Assign) else []
    return len(place.around) > 1 and place.around[1] is top and any(ast.unparse(each).isupper() for each in targets)


def _arithmetic(place: Place) -> Iterator[tuple[Target, Replacement]]:
    node = place.node
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        yield node, ast.BinOp(node.left, _ARITHMETIC[type(node.op)](), node.right)
    elif isinstance(node, ast.AugAssign) and type(node.op) in _ARITHMETIC:
        yield node, ast.AugAssign(node.target, _ARITHMETIC[type(node.op)](), node.value)


def _return(place: Place) -> Iterator[tuple[Target, Replacement]]:
    node, function = place.node, place.function
    if not isinstance(node, ast.Return) or node.value is None or function is None or function.returns is None:
        return
    if isinstance(node.value, ast.Constant) and not node.value.value:
        return
    annotation = ast.unparse(function.returns)
    if annotation == "bool":
        yield node.value, ast.UnaryOp(ast.Not(), node.value)
    else:
        empty = _EMPTY.get(annotation.split("[")[0], "None")
        if ast.unparse(node.value) != empty:
            yield node.value, empty


def _delete_statement(place: Place) -> Iterator[tuple[Target, Replacement]]:
    node = place.node
    if isinstance(node, ast.Raise) and node.exc is not None and "AssertionError" in ast.unparse(node.exc):
        return  # an assert in other words
    effect = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await | ast.Yield | ast.YieldFrom)
    if effect or isinstance(node, ast.AugAssign | ast.Raise | ast.Delete | ast.Break | ast.Continue):
        yield node, "pass"
    if isinstance(node, ast.Return) and node.value is None:
        yield node, "pass"
    if isinstance(node, ast.Assign) and place.function is not None:
        stored = all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets)
        if (stored and place.function.name != "__init__") or _assigned_before(node, place.function):
            yield node, "pass"


def _assigned_before(node: ast.Assign, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether the name has a value without this assignment; else its deletion is only a NameError."""
    if len(node.targets) != 1 or not isinstance(node.targets[0], ast.Name):
        return False
    name = node.targets[0].id
    stores = (n for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    parameters = {argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)}
    return name in parameters or any(store.id == name and store.lineno < node.lineno for store in stores)


def _table(place: Place) -> Iterator[tuple[Target, Replacement]]:
    """A row less, a row with the value of the next; an element less."""
    node = place.node
    if isinstance(node, ast.Dict):
        for index in range(len(node.keys)):
            changed = ast.Dict(_without(node.keys, index), _without(node.values, index))
            ends = [(key or value, value) for key, value in zip(node.keys, node.values, strict=True)]
            yield Gap(node, ends, index, marked=[key is None for key in node.keys]), changed
        for (key, value), (next_key, other) in pairwise(zip(node.keys, node.values, strict=True)):
            if key and next_key and ast.dump(value) != ast.dump(other):
                yield value, other
    elif isinstance(node, ast.Set | ast.List) or (isinstance(node, ast.Tuple) and _is_table(place)):
        for index in range(len(node.elts)):
            changed_elements = copy.copy(node)
            changed_elements.elts = _without(node.elts, index)
            empty_set = isinstance(node, ast.Set) and len(node.elts) == 1
            yield Gap(node, [(each, each) for each in node.elts], index), "set()" if empty_set else changed_elements


def _is_table(place: Place) -> bool:
    """A tuple of a module-level table: one inside an expression of a function is mostly a pair to unpack."""
    return place.function is None and isinstance(getattr(place.node, "ctx", None), ast.Load)


def _without(items: list[T], index: int) -> list[T]:
    return items[:index] + items[index + 1 :]


def _arguments(place: Place) -> Iterator[tuple[Target, Replacement]]:
    """Two arguments swapped, a keyword argument left out, min for max, any for all."""
    node = place.node
    if not isinstance(node, ast.Call):
        return
    if isinstance(node.func, ast.Name) and node.func.id in _OPPOSITES:
        yield node.func, _OPPOSITES[node.func.id]
    plain = not any(isinstance(argument, ast.Starred) for argument in node.args)
    if plain and not (isinstance(node.func, ast.Name) and node.func.id in _FIXED_ORDER):
        for index in range(len(node.args) - 1):
            order = list(node.args)
            order[index], order[index + 1] = order[index + 1], order[index]
            if ast.dump(order[index]) != ast.dump(order[index + 1]):
                yield node, ast.Call(node.func, order, node.keywords)
    ends = [(each, each) for each in (*node.args, *node.keywords)]
    for index, keyword in enumerate(node.keywords):
        if keyword.arg not in (None, "strict"):  # strict: an assertion of zip
            changed = ast.Call(node.func, node.args, _without(node.keywords, index))
            yield Gap(node, ends, len(node.args) + index), changed


def _jump(place: Place) -> Iterator[tuple[Target, Replacement]]:
    if isinstance(place.node, ast.Break):
        yield place.node, "continue"
    elif isinstance(place.node, ast.Continue):
        yield place.node, "break"


def _except(place: Place) -> Iterator[tuple[Target, Replacement]]:
    """A handler that never catches."""
    if isinstance(place.node, ast.ExceptHandler) and place.node.type is not None:
        yield place.node.type, "()"


OPERATORS: Final[Mapping[str, Operator]] = {
    "compare": _compare,
    "and-or": _and_or,
    "negate": _negate,
    "constant": _constant,
    "arithmetic": _arithmetic,
    "return": _return,
    "delete": _delete_statement,
    "table": _table,
    "arguments": _arguments,
    "jump": _jump,
    "except": _except,
}

_LOGS: Final = {"debug", "info", "warning", "error", "exception", "critical", "log"}
_SILENT_FUNCTIONS: Final = {"__repr__", "__str__"}
_SILENT_NAMES: Final = {"__slots__", "__all__", "__match_args__"}


def _is_type_name(target: ast.expr) -> bool:
    return isinstance(target, ast.Name) and target.id.strip("_")[:1].isupper() and not target.id.isupper()


def _left_out(node: ast.AST, around: tuple[ast.AST, ...]) -> bool:
    """Nothing in this node or below it is changed."""
    if isinstance(node, ast.keyword) and node.arg == "strict":
        return True
    if isinstance(node, ast.JoinedStr | ast.Assert | ast.Import | ast.ImportFrom):
        return True
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant) or _left_out(node.value, around)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return node.name in _SILENT_FUNCTIONS or any("overload" in ast.unparse(d) for d in node.decorator_list)
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if len(around) == 1 and isinstance(node.value, ast.Subscript | ast.BinOp) and _is_type_name(targets[0]):
            return True
        return any(isinstance(target, ast.Name) and target.id in _SILENT_NAMES for target in targets)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in _LOGS and "log" in ast.unparse(node.func.value).lower()
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id in ("TypeVar", "ParamSpec", "NewType", "cast", "warn")
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _below(node: ast.AST) -> Iterator[ast.AST]:
    """The children in which a change can matter."""
    if isinstance(node, ast.Raise):  # its wording; that it raises is for the statement's own deletion
        return
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_comment", "bases"):
            continue
        yield from (child for child in (value if isinstance(value, list) else [value]) if isinstance(child, ast.AST))


def _places(node: ast.AST, around: tuple[ast.AST, ...]) -> Iterator[Place]:
    if _left_out(node, around):
        return
    if around:
        yield Place(node, around)
    for child in _below(node):
        yield from _places(child, (*around, node))


def mutants(path: str, text: str) -> list[Mutant]:
    """Every mutant of a file, in the order of its text. `path` is only for their names."""
    source = _Source(text)
    found: list[Mutant] = []
    ordinals: Counter[tuple[str, str, str]] = Counter()
    seen: set[tuple[int, int, str]] = set()
    for place in _places(ast.parse(text), ()):
        for name, operator in OPERATORS.items():
            for target, replacement in operator(place):
                start, end, after = source.change(place, target, replacement)
                before = text[start:end]
                if (start, end, after) in seen or _same(before, after):
                    continue
                seen.add((start, end, after))
                what = target.ends[target.index][0] if isinstance(target, Gap) else target
                ordinal = ordinals[name, before, after]
                ordinals[name, before, after] += 1
                found.append(
                    Mutant(path, name, _lines(what), _lines(place.statement), start, end, before, after, ordinal)
                )
    return sorted(found, key=lambda mutant: (mutant.start, mutant.end, mutant.operator, mutant.after))


def _lines(node: ast.AST) -> tuple[int, int]:
    return node.lineno, node.end_lineno


def _same(before: str, after: str) -> bool:
    try:
        return ast.dump(ast.parse(before.strip())) == ast.dump(ast.parse(after.strip()))
    except SyntaxError:  # a statement that stands only inside a function or loop, an element with its comma
        return before == after


class _Source:
    """A file's text by line and column; the tree counts columns in UTF-8 bytes."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._starts = [0]
        for line in text.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def change(self, place: Place, target: Target, replacement: Replacement) -> tuple[int, int, str]:
        """Where the text is replaced, and by what."""
        if isinstance(target, Gap) and (gap := self._gap(target)):
            return (*gap, "")
        node = target.whole if isinstance(target, Gap) else target
        after = replacement if isinstance(replacement, str) else ast.unparse(replacement)
        if (
            isinstance(replacement, _LOOSE)
            and isinstance(node, ast.expr)
            and not _stands_alone(place, node, replacement)
        ):
            after = f"({after})"
        return (*self._span(node), after)

    def _gap(self, gap: Gap) -> tuple[int, int] | None:
        """The element's text with one of the commas beside it; None where more must change (`(a, b)` to `(a,)`)."""
        spans = [(self._span(first)[0], self._span(last)[1]) for first, last in gap.ends]
        spans = [(start - 2 * (gap.marked[i] if gap.marked else False), end) for i, (start, end) in enumerate(spans)]
        if isinstance(gap.whole, ast.Tuple | ast.Set) and len(spans) <= 2:
            return None
        start, end = spans[gap.index]
        if len(spans) == 1:
            return None if self._text[end:].lstrip().startswith(",") else (start, end)
        cut = (spans[gap.index - 1][1], end) if gap.index else (start, spans[1][0])
        between = self._text[cut[0] : start] if gap.index else self._text[end : cut[1]]
        return cut if between.lstrip().startswith(",") else None  # else there are parentheses around an element

    def _span(self, node: ast.AST) -> tuple[int, int]:
        (first, last), text = _lines(node), node
        return self._index(first, text.col_offset), self._index(last, text.end_col_offset)

    def _index(self, line: int, column: int) -> int:
        whole = self._text[self._starts[line - 1] : self._starts[line]]
        return self._starts[line - 1] + len(whole.encode()[:column].decode())


#: Expressions that those around them can pull apart, so that they need parentheses.
_LOOSE: Final = (ast.BoolOp, ast.Compare, ast.BinOp, ast.UnaryOp, ast.IfExp, ast.Lambda, ast.NamedExpr, ast.Await)


def _stands_alone(place: Place, node: ast.expr, replacement: ast.AST) -> bool:
    """Whether the text around this expression cannot bind to a part of what replaces it."""
    parent = place.node if node is not place.node else place.parent
    if isinstance(parent, ast.Call):
        return node is not parent.func
    if isinstance(parent, ast.BoolOp):
        return isinstance(replacement, ast.Compare | ast.BinOp | ast.UnaryOp)
    return isinstance(parent, ast.stmt | ast.keyword | ast.List | ast.Set | ast.Dict)
