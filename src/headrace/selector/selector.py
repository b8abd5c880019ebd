"""A selector: text parsed once into a test for rows. Grammar is in parser.py, meaning in evaluate.py."""

from collections.abc import Callable, Iterator
from typing import Final, final

from headrace.selector import tree
from headrace.selector.evaluate import Row, predicate_of
from headrace.selector.fields import FIELDS, NOW
from headrace.selector.parser import KEYWORDS, parse_tree


@final
class Selector:
    """A parsed filter expression.

    `matches(row)` is True only when the expression is TRUE for the row; unknown is no match. `fields` and `headers` are
    the names that it reads, so a caller decodes nothing else. Pickles as its text.
    """

    __slots__ = ("fields", "headers", "matches", "reads_time", "text", "tree")

    # The compiled test itself and not a method around it saves a call per message.
    matches: Callable[[Row], bool]

    def __init__(self, text: str, condition: tree.Condition) -> None:
        self.text = text
        self.tree = condition
        self.matches = predicate_of(condition, wanted=True)
        names = list(inputs_of(condition))
        self.fields = frozenset(FIELDS[node.name].column for node in names if isinstance(node, tree.Field))
        self.reads_time = _NOW in self.fields
        self.headers = frozenset(node.name for node in names if isinstance(node, tree.Header))

    def __reduce__(self) -> tuple[Callable[[str], "Selector"], tuple[str]]:
        return parse, (self.text,)

    def __repr__(self) -> str:
        return f"Selector({self.text!r})"


_NOW: Final = FIELDS[NOW].column


def parse_plain(text: str) -> Selector:
    """Parse an expression of RabbitMQ's SQL filters: a name without a section is an application property.

    Raises BadExpression.
    """
    return selector_of(parse_tree(text, plain_names=True))


def selector_of(condition: tree.Condition) -> Selector:
    """The selector of a condition that was made, or written in another dialect."""
    return Selector(_condition(condition), condition)


def parse(text: str) -> Selector:
    """Parse a filter expression.

    Raises BadExpression, which is Refused, with the column and a caret under it; nothing else for any text.
    """
    return Selector(text, parse_tree(text))


def inputs_of(node: tree.Node) -> Iterator[tree.Field | tree.Header]:
    """Yield the fields and headers that a condition or a value reads."""
    waiting: list[tree.Node] = [node]
    while waiting:
        match waiting.pop():
            case tree.Field() | tree.Header() as named:
                yield named
            case tree.Compare(_, left, right) | tree.Arithmetic(_, left, right):
                waiting += left, right
            case tree.Between(operand, low, high):
                waiting += operand, low, high
            case tree.In(operand, items):
                waiting += operand, *items
            case (
                tree.Not(operand)
                | tree.Signed(_, operand)
                | tree.Holds(operand)
                | tree.IsNull(operand)
                | tree.Like(operand)
            ):
                waiting.append(operand)
            case tree.AllOf(terms) | tree.AnyOf(terms):
                waiting += terms


_SUM: Final = 1
_PRODUCT: Final = 2
_POWER: Final = {"+": _SUM, "-": _SUM, "*": _PRODUCT, "/": _PRODUCT, "%": _PRODUCT}


def canonical_text(selector: Selector) -> str:
    """The selector's text with one spelling of names, spaces and parentheses: equal texts are equal filters."""
    return _condition(selector.tree)


def _condition(condition: tree.Condition) -> str:
    match condition:
        case tree.AnyOf(terms):
            return " OR ".join([_condition(term) for term in terms])
        case tree.AllOf(terms):
            return " AND ".join([f"({_condition(x)})" if isinstance(x, tree.AnyOf) else _condition(x) for x in terms])
        case tree.Not(tree.Between() | tree.In() | tree.Like() | tree.IsNull() as predicate):
            return _predicate(predicate, "NOT ")
        case tree.Not(tree.AllOf() | tree.AnyOf() as joined):
            return f"NOT ({_condition(joined)})"
        case tree.Not(operand):
            return f"NOT {_condition(operand)}"
        case tree.Compare(operator, left, right):
            return f"{_value(left)} {operator} {_value(right)}"
        case tree.Holds(operand):
            return _value(operand)
        case tree.Between() | tree.In() | tree.Like() | tree.IsNull():
            return _predicate(condition, "")


def _predicate(predicate: tree.Between | tree.In | tree.Like | tree.IsNull, negation: str) -> str:
    operand = _value(predicate.operand)
    match predicate:
        case tree.Between(_, low, high):
            return f"{operand} {negation}BETWEEN {_value(low)} AND {_value(high)}"
        case tree.In(_, items):
            return f"{operand} {negation}IN ({', '.join([_value(item) for item in items])})"
        case tree.Like(_, pattern, escape):
            return f"{operand} {negation}LIKE {_quoted(pattern)}" + (f" ESCAPE {_quoted(escape)}" if escape else "")
        case tree.IsNull():
            return f"{operand} IS {negation}NULL"


def _value(value: tree.Value, power: int = 0) -> str:
    match value:
        case tree.Field(name):
            return name
        case tree.Header(name):
            return _header(name)
        case tree.Text(text):
            return _quoted(text)
        case tree.Number(number):
            return f"{number:f}" if not isinstance(number, int) else str(number)
        case tree.Truth(truth):
            return "TRUE" if truth else "FALSE"
        case tree.Null():
            return "NULL"
        case tree.Signed(sign, operand):
            # The space keeps two signs from becoming a comment.
            return f"{sign} {_value(operand, _PRODUCT + 1)}"
        case tree.Arithmetic(operator, left, right):
            own = _POWER[operator]
            text = f"{_value(left, own)} {operator} {_value(right, own + 1)}"
            return f"({text})" if own < power else text


def _header(name: str) -> str:
    plain = name.isascii() and name.isidentifier() and name.upper() not in KEYWORDS
    if plain and name not in FIELDS and name != "headers" and not name.startswith("JMS"):
        return name
    return f"headers[{_quoted(name)}]"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
