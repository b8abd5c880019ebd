"""Text to tokens to a tree, by one precedence-climbing function. It accepts SQL-92 predicates only.

Our own parser and not sqlglot, by measurement: sqlglot 30.30 takes 78 ms and 14 MiB to import (this whole package: 3.5
ms and 0.6 MiB), overflows the stack at 50 nested parentheses, and keeps no position of the subqueries, casts and CASEs
that we refuse, so that an error could not point at them.
"""

import re
from decimal import Decimal
from typing import Final, NoReturn, final

from headrace.errors import BadExpression
from headrace.selector import tree
from headrace.selector.fields import (
    ALIASES,
    APPLICATION,
    DIGITS_AFTER_POINT,
    DIGITS_BEFORE_POINT,
    FIELDS,
    IN_HEADERS,
    IN_SECTIONS,
    JMS_NAMES,
    NOW,
    SECTIONS,
    TEXT,
    is_unknown_jms_name,
    literal_number,
)
from headrace.selector.like import misplaced_escape

NAME: Final = "name"
QUOTED: Final = "quoted name"
STRING: Final = "string"
NUMERAL: Final = "number"
END: Final = "end"

KEYWORDS: Final = frozenset(["AND", "BETWEEN", "ESCAPE", "FALSE", "IN", "IS", "LIKE", "NOT", "NULL", "OR", "TRUE"])

MAX_CHARACTERS: Final = 65536

# Possessive quantifiers never backtrack: one pass over any text.
_token: Final = re.compile(
    r"""
    [ \t\r\n\f]*+ (?:
      (?P<name>    [^\W\d][\w$]*+ | \$[\w$]*+ )
    | (?P<number>  0[xX][0-9a-fA-F]++ | (?:[0-9]++(?:\.[0-9]*+)? | \.[0-9]++) (?:[eE][+-]?[0-9]++)? )
    | (?P<string>  '(?:[^']++|'')*+' )
    | (?P<quoted>  "(?:[^"]++|"")*+" )
    | (?P<comment> -- | /\* )
    | (?P<symbol>  <> | != | <= | >= | [-=<>+*/%(),.\[\]] )
    | (?P<end>     \Z )
    )
    """,
    re.VERBOSE,
)

_half_character: Final = re.compile(r"[\ud800-\udfff]")


@final
class Token:
    """`kind` is a constant above, a keyword in upper case, or the symbol itself; `at` counts from 0."""

    __slots__ = ("at", "kind", "text")

    def __init__(self, kind: str, text: str, at: int) -> None:
        self.kind = kind
        self.text = text
        self.at = at


def tokens_of(text: str) -> list[Token]:
    """All tokens of the text, then one of kind END.

    Raises BadExpression at the first place that starts no token.
    """
    if len(text) > MAX_CHARACTERS:
        _refuse(text, MAX_CHARACTERS, f"the expression is longer than {MAX_CHARACTERS} characters")
    tokens: list[Token] = []
    at = 0
    while not tokens or tokens[-1].kind != END:
        match = _token.match(text, at)
        if match is None or match.lastgroup is None:
            _refuse_character(text, at)
        token = _token_of(text, match.lastgroup, match[match.lastgroup], match.start(match.lastgroup))
        after = text[match.end() : match.end() + 1]
        if token.kind == NUMERAL and (after.isalnum() or (after in ("_", "$", ".") and after)):
            _refuse(text, match.end(), f"{after!r} cannot follow the number {token.text[:40]}")
        tokens.append(token)
        at = match.end()
    # An error at the end points behind the last token and not behind trailing blanks.
    if len(tokens) > 1:
        tokens[-1].at = len(text.rstrip(" \t\r\n\f"))
    return tokens


def _token_of(text: str, group: str, found: str, at: int) -> Token:
    if group == "name":
        keyword = found.upper() if found.isascii() else ""  # upper() turns a dotless i into a plain I
        return Token(keyword if keyword in KEYWORDS else NAME, found, at)
    if group == "comment":
        _refuse(text, at, "comments are not allowed; write a space between two minus signs")
    if group == "string" or group == "quoted":
        quote = found[0]
        content = found[1:-1].replace(quote * 2, quote)
        half = _half_character.search(found)
        if half is not None:
            _refuse(text, at + half.start(), "half a surrogate pair is not a character")
        return Token(STRING if group == "string" else QUOTED, content, at)
    if group == "number":
        return Token(NUMERAL, found, at)
    return Token(END if group == "end" else found, found, at)


def _refuse_character(text: str, at: int) -> NoReturn:
    while text[at] in " \t\r\n\f":
        at += 1
    letter = text[at]
    if letter == "'":
        _refuse(text, at, "the string that starts here has no closing '")
    if letter == '"':
        _refuse(text, at, 'the name that starts here has no closing "')
    shown = letter if letter.isprintable() else f"U+{ord(letter):04X}"
    _refuse(text, at, f"{shown} means nothing in a filter expression")


def _refuse(text: str, at: int, reason: str) -> NoReturn:
    raise BadExpression(text, at + 1, reason)


# Nested calls of `_expression`, two frames each; a test limits the deepest text to 500 frames.
MAX_NESTING: Final = 200

_OR, _AND, _NOT, _COMPARISON, _SUM, _PRODUCT, _SIGN = range(1, 8)
_POWER: Final = {
    "OR": _OR,
    "AND": _AND,
    **dict.fromkeys(["=", "<>", "!=", "<", "<=", ">", ">=", "NOT", "BETWEEN", "IN", "LIKE", "IS"], _COMPARISON),
    "+": _SUM,
    "-": _SUM,
    "*": _PRODUCT,
    "/": _PRODUCT,
    "%": _PRODUCT,
}


_PERSISTENT: Final = 2
_STARTS: Final = frozenset(["(", "NOT", "+", "-", STRING, NUMERAL, "NULL", "TRUE", "FALSE", NAME, QUOTED])
_NO_VALUE: Final = "a condition is no value: join conditions with AND or OR instead of comparing them"


def parse_tree(text: str, plain_names: bool = False) -> tree.Condition:
    """The condition that the text spells; with `plain_names` a name without a section is always a header.

    Raises BadExpression, and nothing else, for any other text.
    """
    return _Parser(text, plain_names).condition()


@final
class _Parser:
    def __init__(self, text: str, plain_names: bool) -> None:
        self._text = text
        self._plain_names = plain_names
        self._tokens = tokens_of(text)
        self._next = 0
        self._nesting = 0
        self._token = self._tokens[0]

    def condition(self) -> tree.Condition:
        if self._token.kind == END:
            self._refuse(0, "the expression is empty; leave the filter out to match every message")
        whole = self._condition(self._expression(0), self._tokens[0].at)
        if self._token.kind != END:
            self._refuse(self._token.at, f"AND, OR or the end is expected; here is {self._shown()}")
        return whole

    # The climb: a prefix, then every operator that binds tighter than `power`.

    def _expression(self, power: int) -> tree.Node:
        at = self._token.at
        self._nesting += 1
        self._bound(self._nesting, self._token)
        left = self._prefix(power)
        while (binding := _POWER.get(self._token.kind, 0)) > power:
            if binding == _COMPARISON:
                left = self._predicate(self._value(left, at))
            elif binding <= _AND:
                left = self._joined(left, at, binding)
            else:
                left = self._arithmetic(left, at, binding)
        self._nesting -= 1
        return left

    def _prefix(self, power: int) -> tree.Node:
        token = self._token
        at = token.at
        if token.kind not in _STARTS:
            self._refuse(at, f"a value or a condition is expected; here is {self._shown()}")
        self._advance()
        match token.kind:
            case "(":
                # In the place of a value, parentheses hold a value: an error shows here, not after a descent.
                inside = self._expression(_COMPARISON if power >= _COMPARISON else 0)
                if power >= _COMPARISON and self._token.kind in _POWER:
                    self._refuse(self._token.at, _NO_VALUE)
                self._expect(")", f"the ( at column {at + 1} is not closed")
                return inside
            case "NOT":
                if power >= _COMPARISON:
                    self._refuse(at, _NO_VALUE)
                at = self._token.at
                return tree.Not(self._condition(self._expression(_NOT), at))
            case "+" | "-":
                at = self._token.at
                return self._signed(token, self._number(self._expression(_SIGN), at, token.kind))
            case "string":
                return tree.Text(token.text)
            case "number":
                return tree.Number(self._literal(token))
            case "NULL":
                return tree.Null()
            case "TRUE" | "FALSE":
                return tree.Truth(token.kind == "TRUE")
        return self._named(token)

    def _joined(self, left: tree.Node, at: int, power: int) -> tree.Condition:
        word = "OR" if power == _OR else "AND"
        terms = [self._condition(left, at)]
        while self._token.kind == word:
            self._advance()
            at = self._token.at
            terms.append(self._condition(self._expression(power), at))
        # (a AND b) AND c is one list of three: fewer calls per message.
        joint = tree.AnyOf if power == _OR else tree.AllOf
        flat = [part for term in terms for part in (term.terms if isinstance(term, joint) else (term,))]
        return joint(tuple(flat))

    def _predicate(self, left: tree.Value) -> tree.Condition:
        token = self._advance()
        negated = token.kind == "NOT"
        if negated:
            token = self._advance()
        found: tree.Condition
        match token.kind:
            case "BETWEEN":
                low = self._ordered(token, left, self._operand())
                self._expect("AND", "BETWEEN needs a low and a high value, joined by AND")
                found = tree.Between(left, low, self._ordered(token, left, self._operand()))
            case "IN":
                found = tree.In(left, self._items())
            case "LIKE":
                found = self._like(left)
            case "IS" if not negated:
                negated = self._token.kind == "NOT"
                if negated:
                    self._advance()
                self._expect("NULL", "IS can only be followed by NULL or NOT NULL")
                found = tree.IsNull(left)
            case _ if negated:
                self._refuse(token.at, "NOT behind a value needs BETWEEN, IN or LIKE")
            case operator:
                right = self._operand()
                if operator not in ("=", "<>", "!="):
                    right = self._ordered(token, left, right)
                found = tree.Compare("<>" if operator == "!=" else operator, left, right)
        return tree.Not(found) if negated else found

    def _arithmetic(self, left: tree.Node, at: int, power: int) -> tree.Value:
        token = self._advance()
        first = self._number(left, at, token.kind)
        at = self._token.at
        second = self._number(self._expression(power), at, token.kind)
        depth = 1 + max(tree.depth_of(first), tree.depth_of(second))
        self._bound(depth, token)
        return tree.Arithmetic(token.kind, first, second, depth)

    # Pieces of predicates.

    def _operand(self) -> tree.Value:
        at = self._token.at
        return self._value(self._expression(_COMPARISON), at)

    def _items(self) -> tuple[tree.Value, ...]:
        self._expect("(", "IN needs a list in parentheses")
        items = [self._operand()]
        while self._token.kind == ",":
            self._advance()
            items.append(self._operand())
        self._expect(")", "the list of IN goes on with , or ends with )")
        return tuple(items)

    def _like(self, left: tree.Value) -> tree.Like:
        pattern = self._expect(STRING, "LIKE needs a pattern in single quotes")
        escape = None
        if self._token.kind == "ESCAPE":
            self._advance()
            token = self._expect(STRING, "ESCAPE needs one character in single quotes")
            escape = token.text
            if len(escape) != 1:
                self._refuse(token.at, "ESCAPE needs exactly one character")
        if misplaced_escape(pattern.text, escape):
            self._refuse(pattern.at, f"in this pattern {escape} may only stand before %, _ or {escape}")
        return tree.Like(left, pattern.text, escape)

    def _named(self, token: Token) -> tree.Node:
        name = token.text
        if self._token.kind == "." and token.kind == NAME and name in SECTIONS:
            return self._in_section(SECTIONS[name])
        if name == "headers" and not self._plain_names:
            return tree.Header(self._header_name())
        if not name:
            self._refuse(token.at, "a name cannot be empty")
        if self._token.kind == "(":
            if name.upper() != "UTC":
                self._refuse(token.at, "functions other than UTC() are not allowed")
            self._advance()
            self._expect(")", "UTC() takes nothing")
            return tree.Field(NOW)
        if self._token.kind in (".", "["):
            self._refuse(
                self._token.at,
                "a name has no parts; write headers['a.b'] for a header with a dot in its name",
            )
        if self._plain_names:
            return tree.Header(name)
        if is_unknown_jms_name(name):
            self._refuse(token.at, f"JMS has no such name for filters; its names are {', '.join(JMS_NAMES)}")
        name = ALIASES.get(name, name)
        return tree.Field(name) if name in FIELDS else tree.Header(name)

    def _in_section(self, section: str) -> tree.Node:
        """A name behind the name of a section and a dot; `header.durable` is a condition."""
        self._advance()
        token = self._token
        if token.kind not in (NAME, QUOTED) or not token.text:
            self._refuse(token.at, f"{section} needs a name behind the point")
        self._advance()
        if section == APPLICATION:
            return tree.Header(token.text)
        if (section, token.text) == ("header", "durable"):
            return tree.Compare("=", tree.Field("delivery_mode"), tree.Number(_PERSISTENT))
        known = IN_SECTIONS[section]
        if token.text not in known:
            self._refuse(token.at, f"filters read no such name of {section}; they read {', '.join(known)}")
        name = known[token.text]
        return tree.Header(name[len(IN_HEADERS) :]) if name.startswith(IN_HEADERS) else tree.Field(name)

    def _header_name(self) -> str:
        opening = self._advance()
        allowed = {".": (NAME, QUOTED), "[": (STRING,)}.get(opening.kind, ())
        if self._token.kind not in allowed:
            self._refuse(opening.at, "headers needs a name: headers.region or headers['x-region']")
        name = self._advance().text
        if opening.kind == "[":
            self._expect("]", "the name of the header ends with ]")
        return name

    def _signed(self, token: Token, operand: tree.Value) -> tree.Value:
        if isinstance(operand, tree.Number):
            return tree.Number(-operand.value) if token.kind == "-" else operand
        depth = 1 + tree.depth_of(operand)
        self._bound(depth, token)
        return tree.Signed(token.kind, operand, depth)

    def _literal(self, token: Token) -> int | Decimal:
        number = literal_number(token.text)
        if number is None:
            size = f"{DIGITS_BEFORE_POINT} digits before the point and {DIGITS_AFTER_POINT} behind it"
            self._refuse(token.at, f"the number does not fit; it may have {size}")
        return number

    # Checks of operands by their place.

    def _value(self, node: tree.Node, at: int) -> tree.Value:
        if isinstance(node, tree.Condition):
            self._refuse(at, _NO_VALUE)
        return node

    def _condition(self, node: tree.Node, at: int) -> tree.Condition:
        if isinstance(node, tree.Condition):
            return node
        if not isinstance(node, tree.Header | tree.Truth | tree.Null):
            self._refuse(at, f"a condition is expected, and this is {tree.kind_of(node)}")
        return tree.Holds(node)

    def _number(self, node: tree.Node, at: int, operator: str) -> tree.Value:
        value = self._value(node, at)
        if tree.kind_of(value) in (TEXT, tree.TRUTH):
            self._refuse(at, f"{operator} needs numbers, and this is {tree.kind_of(value)}")
        return value

    def _ordered(self, operator: Token, left: tree.Value, right: tree.Value) -> tree.Value:
        if tree.TRUTH in (tree.kind_of(left), tree.kind_of(right)):
            self._refuse(operator.at, "TRUE and FALSE have no order; compare them with = or <>")
        return right

    # Tokens.

    def _advance(self) -> Token:
        token = self._token
        if token.kind != END:
            self._next += 1
            self._token = self._tokens[self._next]
        return token

    def _expect(self, kind: str, otherwise: str) -> Token:
        if self._token.kind != kind:
            self._refuse(self._token.at, f"{otherwise}; here is {self._shown()}")
        return self._advance()

    def _bound(self, depth: int, token: Token) -> None:
        if depth > MAX_NESTING:
            self._refuse(token.at, f"the expression is nested deeper than {MAX_NESTING} levels")

    def _shown(self) -> str:
        token = self._token
        if token.kind == END:
            return "the end"
        if token.kind in (STRING, QUOTED, NAME, NUMERAL):
            return f"the {token.kind} {token.text[:40]!r}"
        return token.text

    def _refuse(self, at: int, reason: str) -> NoReturn:
        raise BadExpression(self._text, at + 1, reason)
