"""Many filters over many messages at once: which message matches which filter. The selector tests single messages.

The selector's own code converts each distinct value of a field or header once. The values of a column are sorted, every
row has the rank of its value, and a comparison with a constant is a range of ranks. For other comparisons the selector
tests each distinct combination of the inputs.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Final, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import Refused
from headrace.selector import HeaderValue, MappingRow, Selector
from headrace.selector.evaluate import Comparable, constant_of, getter, predicate_of
from headrace.selector.fields import EXACT, FIELDS, TEXT
from headrace.selector.like import shape_of
from headrace.selector.selector import inputs_of
from headrace.selector.tree import (
    AllOf,
    AnyOf,
    Between,
    Compare,
    Condition,
    Field,
    Header,
    In,
    Like,
    Not,
    Number,
    Text,
    Value,
    common_kind,
)
from headrace.storage.frame import FRAME, HEADERS

Mask = npt.NDArray[np.bool_]
Input = tuple[str, str]
"""`field` or `header`, and its name."""
Formula = Callable[["Table"], Mask | None]
"""Returns the rows for which a condition is TRUE; None stands for no row."""

_FIELD: Final = "field"
_HEADER: Final = "header"
_NOT_ALIKE: Final = ("delivery_mode",)
"""Columns with another meaning than the fields of filters: AMQP 1.0 has a default for this one."""
_OPPOSITE: Final = {"=": "<>", "<>": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}


@final
class PredicateSet:
    """Filters that are tested together; a condition that several of them share is evaluated once."""

    def __init__(self, selectors: Sequence[Selector]) -> None:
        self._known: dict[tuple[object, ...], int] = {}
        self._formulas: list[Formula] = []
        for selector in selectors:
            check_columns(selector)
        self._filters = [self._compile(selector.tree, True) for selector in selectors]

    def matches(self, batch: pa.RecordBatch) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        """Return rows and the numbers of the filters that they match, by filter and row."""
        table = Table(batch, len(self._formulas))
        rows: list[npt.NDArray[np.int64]] = []
        numbers: list[npt.NDArray[np.int32]] = []
        for number, formula in enumerate(self._filters):
            mask = formula(table)
            if mask is None:
                continue
            found = np.flatnonzero(mask)
            if len(found):
                rows.append(found)
                numbers.append(np.full(len(found), number, np.int32))
        if not rows:
            return np.empty(0, np.int64), np.empty(0, np.int32)
        return np.concatenate(rows), np.concatenate(numbers)

    def _compile(self, condition: Condition, wanted: bool) -> Formula:
        match condition:
            case Not(operand):
                return self._compile(operand, not wanted)
            case AllOf(terms) | AnyOf(terms):
                formulas = [self._compile(term, wanted) for term in terms]
                return _all(formulas) if isinstance(condition, AllOf) is wanted else _any(formulas)
            case Between(operand, low, high):
                above = self._compile(Compare(">=", operand, low), wanted)
                below = self._compile(Compare("<=", operand, high), wanted)
                return _all([above, below]) if wanted else _any([above, below])
        key, formula = _atom(condition, wanted)
        if key not in self._known:
            self._known[key] = len(self._formulas)
            self._formulas.append(formula)
        number = self._known[key]
        return lambda table: table.answer(number, formula)


def check_columns(selector: Selector) -> None:
    """Check that a log's table has all inputs of a filter. Raises Refused."""
    for name in sorted(selector.fields):
        if name not in FRAME.names or name in _NOT_ALIKE:
            raise Refused(f"the filter {selector.text!r} reads {name}, which a log's table does not have")


@final
class Table:
    """One record batch, with the codes and ranks of its columns, each computed once."""

    def __init__(self, batch: pa.RecordBatch, formulas: int) -> None:
        self.rows = batch.num_rows
        self._batch = batch
        self._answers: list[Mask | None] = [None] * formulas
        self._answered = bytearray(formulas)
        self._codes: dict[Input, tuple[npt.NDArray[np.int32], list[HeaderValue]]] = {}
        self._ranks: dict[tuple[Input, str], tuple[npt.NDArray[np.int32], list[Comparable]]] = {}
        self._entries: tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], dict[str, int], pa.Array] | None = None

    def answer(self, number: int, formula: Formula) -> Mask | None:
        if not self._answered[number]:
            self._answered[number] = 1
            self._answers[number] = formula(self)
        return self._answers[number]

    def codes(self, which: Input) -> tuple[npt.NDArray[np.int32], list[HeaderValue]]:
        """Return the number of each row's value, and the distinct values, None included."""
        found = self._codes.get(which)
        if found is None:
            found = self._codes[which] = self._field(which[1]) if which[0] == _FIELD else self._header(which[1])
        return found

    def ranks(self, which: Input, kind: str) -> tuple[npt.NDArray[np.int32], list[Comparable]]:
        """Return the rank of each row's value as this kind (-1 for unknown), and the sorted distinct values."""
        found = self._ranks.get((which, kind))
        if found is None:
            codes, values = self.codes(which)
            read = getter(Field(which[1]) if which[0] == _FIELD else Header(which[1]), kind)
            known = [read(_row((which,), (value,))) for value in values]
            ordered = sorted({value for value in known if value is not None})
            places = {value: place for place, value in enumerate(ordered)}
            rank_of_code = np.array([-1 if value is None else places[value] for value in known], np.int32)
            found = self._ranks[which, kind] = rank_of_code[codes], ordered
        return found

    def _field(self, name: str) -> tuple[npt.NDArray[np.int32], list[HeaderValue]]:
        column = self._batch.column(name)
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.int64())
        coded = column.dictionary_encode()
        values: list[HeaderValue] = coded.dictionary.to_pylist()
        codes = coded.indices.fill_null(len(values)).to_numpy(zero_copy_only=False).astype(np.int32, copy=False)
        return codes, [*values, None]

    def _header(self, name: str) -> tuple[npt.NDArray[np.int32], list[HeaderValue]]:
        if self._entries is None:
            self._entries = self._read_entries()
        parents, names, numbers, texts = self._entries
        codes = np.zeros(self.rows, np.int32)
        if name not in numbers:
            return codes, [None]
        chosen = np.flatnonzero(names == numbers[name])
        coded = texts.take(pa.array(chosen)).dictionary_encode()
        codes[parents[chosen]] = coded.indices.to_numpy(zero_copy_only=False) + 1
        return codes, [None, *coded.dictionary.to_pylist()]

    def _read_entries(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], dict[str, int], pa.Array]:
        """Return all headers: the row of each, the number of its name, all names, and the texts."""
        column = self._batch.column(HEADERS)
        bounds = column.offsets.to_numpy()
        lengths = np.diff(bounds)
        if column.null_count:
            lengths = np.where(column.is_valid().to_numpy(zero_copy_only=False), lengths, 0)
        first, last = int(bounds[0]), int(bounds[-1])
        parents = np.repeat(np.arange(self.rows), lengths)
        coded = column.keys.slice(first, last - first).dictionary_encode()
        numbers = {name: number for number, name in enumerate(coded.dictionary.to_pylist())}
        names = coded.indices.to_numpy(zero_copy_only=False)
        return parents, names, numbers, column.items.slice(first, last - first)


# -- conditions to formulas --------------------------------------------------------------------------------------------


def _all(formulas: list[Formula]) -> Formula:
    def formula(table: Table) -> Mask | None:
        mask: Mask | None = None
        for each in formulas:
            found = each(table)
            if found is None:
                return None
            mask = found if mask is None else mask & found
        return mask

    return formula


def _any(formulas: list[Formula]) -> Formula:
    def formula(table: Table) -> Mask | None:
        mask: Mask | None = None
        for each in formulas:
            found = each(table)
            if found is not None:
                mask = found if mask is None else mask | found
        return mask

    return formula


def _atom(condition: Condition, wanted: bool) -> tuple[tuple[object, ...], Formula]:
    """Return the key and the formula of a single comparison; equal comparisons have equal keys."""
    match condition:
        case Compare(op, (Field() | Header()) as operand, (Text() | Number()) as constant):
            kind = common_kind(operand, constant)
            if kind in (TEXT, EXACT) and _is_plain(operand):
                op, limit = op if wanted else _OPPOSITE[op], constant_of(constant, kind)
                which = _input(operand)
                return ("compare", op, which, kind, limit), lambda table: _ranged(table, which, kind, op, limit)
        case In((Field() | Header()) as operand, items) if _are_constants(operand, items) and _is_plain(operand):
            kind = common_kind(operand, items[0])
            limits = frozenset(constant_of(item, kind) for item in items if isinstance(item, Text | Number))
            which = _input(operand)
            return ("in", wanted, which, kind, limits), lambda table: _in(table, which, kind, limits, wanted)
        case Like((Field() | Header()) as operand, pattern, escape) if _is_prefix(operand, pattern, escape):
            shape = shape_of(pattern, escape)
            assert shape is not None
            which, prefix = _input(operand), shape.text
            return ("prefix", wanted, which, prefix), lambda table: _prefixed(table, which, prefix, wanted)
    return _general(condition, wanted)


def _general(condition: Condition, wanted: bool) -> tuple[tuple[object, ...], Formula]:
    """Return a formula of any condition: the selector's test on each distinct combination of its inputs."""
    inputs = tuple(sorted({_input(node) for node in inputs_of(condition)}))
    test = predicate_of(condition, wanted)

    def formula(table: Table) -> Mask | None:
        if not inputs:
            return np.ones(table.rows, np.bool_) if test(MappingRow()) else None
        codes, values = table.codes(inputs[0])
        if len(inputs) == 1:
            return _spread(np.array([test(_row(inputs, (value,))) for value in values], np.bool_), codes)
        columns = [table.codes(each) for each in inputs]
        combined = codes.astype(np.int64)
        for other, distinct in columns[1:]:
            combined = np.unique(combined, return_inverse=True)[1] * len(distinct) + other
        _, firsts, places = np.unique(combined, return_index=True, return_inverse=True)
        answers = [test(_row(inputs, tuple(distinct[other[row]] for other, distinct in columns))) for row in firsts]
        return _spread(np.array(answers, np.bool_), places)

    return ("general", object()), formula


def _spread(answers: Mask, codes: npt.NDArray[np.int32] | npt.NDArray[np.int64]) -> Mask | None:
    return answers[codes] if answers.any() else None


def _ranged(table: Table, which: Input, kind: str, op: str, limit: Comparable) -> Mask | None:
    ranks, ordered = table.ranks(which, kind)
    low, high = bisect_left(ordered, limit), bisect_right(ordered, limit)
    if op == "=":
        return ranks == low if low < high else None
    if op == "<>":
        return (ranks >= 0) & (ranks != low) if low < high else ranks >= 0
    if op in ("<", "<="):
        end = low if op == "<" else high
        return (ranks >= 0) & (ranks < end) if end else None
    start = low if op == ">=" else high
    return ranks >= start if start < len(ordered) else None


def _in(table: Table, which: Input, kind: str, limits: frozenset[Comparable], wanted: bool) -> Mask | None:
    ranks, ordered = table.ranks(which, kind)
    member = np.zeros(len(ordered) + 1, np.bool_)  # the last entry is for rank -1, unknown
    for limit in limits:
        place = bisect_left(ordered, limit)
        if place < len(ordered) and ordered[place] == limit:
            member[place] = True
    if not wanted:
        member = ~member
        member[-1] = False
    return _spread(member, ranks)


def _prefixed(table: Table, which: Input, prefix: str, wanted: bool) -> Mask | None:
    ranks, ordered = table.ranks(which, TEXT)
    low = bisect_left(ordered, prefix)
    high = bisect_right(ordered, prefix, lo=low, key=lambda text: str(text)[: len(prefix)])
    inside = (ranks >= low) & (ranks < high)
    if wanted:
        return inside if low < high else None
    return (ranks >= 0) & ~inside


def _row(inputs: tuple[Input, ...], values: tuple[HeaderValue, ...]) -> MappingRow:
    """Return a row with these inputs and no others."""
    fields = {name: value for (kind, name), value in zip(inputs, values, strict=True) if kind == _FIELD}
    headers = {name: value for (kind, name), value in zip(inputs, values, strict=True) if kind == _HEADER}
    return MappingRow(fields, headers)


def _input(value: Field | Header) -> Input:
    return (_FIELD, FIELDS[value.name].column) if isinstance(value, Field) else (_HEADER, value.name)


def _is_plain(value: Value) -> bool:
    """Return whether the value is its column's, without conversion."""
    return not isinstance(value, Field) or FIELDS[value.name].convert is None


def _are_constants(operand: Value, items: tuple[Value, ...]) -> bool:
    kinds = {common_kind(operand, item) for item in items}
    return all(isinstance(item, Text | Number) for item in items) and kinds in ({TEXT}, {EXACT})


def _is_prefix(operand: Value, pattern: str, escape: str | None) -> bool:
    if not _is_plain(operand) or (isinstance(operand, Field) and FIELDS[operand.name].kind != TEXT):
        return False
    shape = shape_of(pattern, escape)
    return shape is not None and shape.open_end and not shape.open_start and bool(shape.text)
