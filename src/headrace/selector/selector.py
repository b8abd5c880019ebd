"""A selector: text parsed once into a test for rows. Grammar is in parser.py, meaning in evaluate.py."""

from collections.abc import Callable, Iterator
from typing import final

from headrace.selector.evaluate import Row, predicate_of
from headrace.selector.fields import FIELDS
from headrace.selector.parser import parse_tree
from headrace.selector.tree import (
    AllOf,
    AnyOf,
    Arithmetic,
    Between,
    Compare,
    Condition,
    Field,
    Header,
    Holds,
    In,
    IsNull,
    Like,
    Node,
    Not,
    Signed,
)


@final
class Selector:
    """A parsed filter expression.

    `matches(row)` is True only when the expression is TRUE for the row; unknown is no match. `fields` and
    `headers` are the names it reads, so that a caller decodes nothing else. Pickles as its text.
    """

    __slots__ = ("fields", "headers", "matches", "text", "tree")

    # The compiled test itself and not a method around it: a call less for every message.
    matches: Callable[[Row], bool]

    def __init__(self, text: str, tree: Condition) -> None:
        self.text = text
        self.tree = tree
        self.matches = predicate_of(tree, wanted=True)
        names = list(inputs_of(tree))
        self.fields = frozenset(FIELDS[node.name].column for node in names if isinstance(node, Field))
        self.headers = frozenset(node.name for node in names if isinstance(node, Header))

    def __reduce__(self) -> tuple[Callable[[str], "Selector"], tuple[str]]:
        return parse, (self.text,)

    def __repr__(self) -> str:
        return f"Selector({self.text!r})"


def parse(text: str) -> Selector:
    """Read a filter expression.

    Raises BadExpression, which is Refused, with the column and a caret under it; nothing else for any text.
    """
    return Selector(text, parse_tree(text))


def inputs_of(node: Node) -> Iterator[Field | Header]:
    """The fields and headers that a condition or a value reads."""
    waiting: list[Node] = [node]
    while waiting:
        match waiting.pop():
            case Field() | Header() as named:
                yield named
            case Compare(_, left, right) | Arithmetic(_, left, right):
                waiting += left, right
            case Between(operand, low, high):
                waiting += operand, low, high
            case In(operand, items):
                waiting += operand, *items
            case Not(operand) | Signed(_, operand) | Holds(operand) | IsNull(operand) | Like(operand):
                waiting.append(operand)
            case AllOf(terms) | AnyOf(terms):
                waiting += terms
