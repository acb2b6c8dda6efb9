"""Rows of the index that an expression selects: `length >= 128 and split == 'train'`.

The expression has the syntax of Python, but nothing of it is run by Python: it is taken apart
and computed on whole columns by Arrow, so it can only look at the index.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Never

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from eagle3data.schema.errors import InputError
from eagle3data.schema.index import INDEX_SCHEMA, TOKEN_COLUMNS

_COLUMNS = [name for name in INDEX_SCHEMA.names if name not in TOKEN_COLUMNS]
_COMPARE: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: pc.equal,
    ast.NotEq: pc.not_equal,
    ast.Lt: pc.less,
    ast.LtE: pc.less_equal,
    ast.Gt: pc.greater,
    ast.GtE: pc.greater_equal,
}
_ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: pc.add_checked,
    ast.Sub: pc.subtract_checked,
    ast.Mult: pc.multiply_checked,
    ast.Div: lambda left, right: pc.divide(pc.cast(left, pa.float64()), right),
}
_GRAMMAR = (
    "== != < <= > >=, 'in' and 'not in' a list or a text, 'is None', and, or, not, + - * /, "
    "numbers and quoted texts"
)


def selected(rows: pa.Table, expression: str, layers: Sequence[int]) -> npt.NDArray[np.bool_]:
    """Which rows an expression selects.

    Columns are named as in the index. A list with a value a layer is subscripted by the layer's
    id (`absmax[30] < 1000`), `source_extra` by its key (`source_extra['topic'] == 'code'`). Like
    Python's None, a value that is not there equals nothing and is neither less nor greater.

    Args:
        rows: `INDEX_SCHEMA`.
        expression: what a selected row fulfils.
        layers: the captured layers, ascending.

    Returns:
        `[rows]` bool.

    Raises:
        InputError: not such an expression, an unknown column, or values that don't compare.
    """
    try:
        tree = ast.parse(expression.strip(), mode="eval")
        found = _Reading(rows, expression, layers).value(tree.body)
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise InputError(f"--where {expression}: {error}.") from None
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InputError(f"--where {expression}: not an expression ({error}).") from None
    if not pa.types.is_boolean(found.type):
        raise InputError(
            f"--where {expression}: it gives {found.type}, expected a condition such as "
            "length >= 128."
        )
    if isinstance(found, pa.Scalar):
        return np.full(rows.num_rows, bool(found.as_py()))
    return np.asarray(found.to_numpy(zero_copy_only=False), dtype=bool)


class _Reading:
    """One expression over one table."""

    def __init__(self, rows: pa.Table, expression: str, layers: Sequence[int]) -> None:
        self._rows, self._expression, self._layers = rows, expression, layers

    def value(self, node: ast.expr) -> Any:
        """What a part of the expression is: an Arrow array, or a scalar."""
        match node:
            case ast.Constant(value=bool() | int() | float() | str() | None as value):
                return pa.scalar(value)  # type: ignore[arg-type]
            case ast.Name(id=name):
                return self._plain(name)
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=key)):
                return self._item(name, key)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return pc.invert(self._condition(operand))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return pc.negate_checked(self.value(operand))
            case ast.BoolOp(op=op, values=parts):
                return self._all(parts) if isinstance(op, ast.And) else self._any(parts)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                return _ARITHMETIC[type(op)](self.value(left), self.value(right))
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                return self._compare(left, ops, comparators)
            case _:
                return self._refuse(node)

    def _plain(self, name: str) -> Any:
        column = self._column(name)
        if pa.types.is_nested(column.type):
            what = "key" if pa.types.is_map(column.type) else "layer"
            key = "'topic'" if what == "key" else str(self._layers[-1])
            raise InputError(
                f"--where {self._expression}: {name} has a value a {what}; write {name}[{key}]."
            )
        return column

    def _column(self, name: str) -> Any:
        if name not in _COLUMNS:
            raise InputError(
                f"--where {self._expression}: the index has no column {name!r}. It has "
                f"{', '.join(_COLUMNS)}. Texts are quoted: split == 'train'."
            )
        column = self._rows[name]
        if pa.types.is_integer(column.type):
            return column.cast(pa.int64())
        return column.cast(pa.float64()) if pa.types.is_floating(column.type) else column

    def _item(self, name: str, key: object) -> Any:
        column = self._column(name)
        if pa.types.is_map(column.type):
            if not isinstance(key, str):
                raise InputError(f"--where {self._expression}: {name}[{key!r}]: keys are texts.")
            return pc.map_lookup(column, key, "last")
        if not pa.types.is_list(column.type):
            raise InputError(
                f"--where {self._expression}: {name} has one value a sample; leave [{key!r}] out."
            )
        if key not in self._layers:
            raise InputError(
                f"--where {self._expression}: {name}[{key!r}]: the layers are "
                f"{', '.join(map(str, self._layers))}."
            )
        found = pc.list_element(column, list(self._layers).index(int(str(key))))
        return found.cast(pa.float64() if pa.types.is_floating(found.type) else pa.int64())

    def _condition(self, node: ast.expr) -> Any:
        found = self.value(node)
        if not pa.types.is_boolean(found.type):
            raise InputError(
                f"--where {self._expression}: '{ast.unparse(node)}' is {found.type}, not a "
                "condition; compare it with something."
            )
        return found

    def _all(self, parts: Sequence[ast.expr]) -> Any:
        first, *rest = map(self._condition, parts)
        for part in rest:
            first = pc.and_(first, part)
        return first

    def _any(self, parts: Sequence[ast.expr]) -> Any:
        first, *rest = map(self._condition, parts)
        for part in rest:
            first = pc.or_(first, part)
        return first

    def _compare(
        self, left: ast.expr, ops: Sequence[ast.cmpop], comparators: Sequence[ast.expr]
    ) -> Any:
        """`a < b <= c` is `a < b and b <= c`, as in Python."""
        result: Any = None
        for op, right in zip(ops, comparators, strict=True):
            found = self._relation(left, op, right)
            result = found if result is None else pc.and_(result, found)
            left = right
        return result

    def _relation(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> Any:
        is_none = isinstance(right, ast.Constant) and right.value is None
        if isinstance(op, ast.Is | ast.Eq) and is_none:
            return pc.is_null(self.value(left))
        if isinstance(op, ast.IsNot | ast.NotEq) and is_none:
            return pc.is_valid(self.value(left))
        if isinstance(op, ast.In):
            return self._contains(left, right)
        if isinstance(op, ast.NotIn):
            return pc.invert(self._contains(left, right))
        if type(op) not in _COMPARE:
            return self._refuse(ast.Compare(left, [op], [right]))
        found = _COMPARE[type(op)](self.value(left), self.value(right))
        return pc.fill_null(found, isinstance(op, ast.NotEq))

    def _contains(self, left: ast.expr, right: ast.expr) -> Any:
        """One of a list, or a part of a text."""
        if isinstance(right, ast.List | ast.Tuple | ast.Set):
            tests = [self._relation(left, ast.Eq(), item) for item in right.elts]
            return _either(tests)
        if not isinstance(left, ast.Constant) or not isinstance(left.value, str):
            raise InputError(
                f"--where {self._expression}: 'in' is for a list, split in ['train', 'eval'], or "
                "for a quoted text in a column, 'code' in source."
            )
        found = pc.match_substring(self.value(right), left.value)
        return pc.fill_null(found, False)

    def _refuse(self, node: ast.AST) -> Never:
        raise InputError(
            f"--where {self._expression}: '{ast.unparse(node)}' is not understood. Known are "
            f"column names, {_GRAMMAR}."
        )


def _either(tests: Sequence[Any]) -> Any:
    found: Any = pa.scalar(value=False)
    for test in tests:
        found = pc.or_(found, test)
    return found
