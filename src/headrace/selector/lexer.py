"""Text to tokens, each with its place. Knows no grammar."""

import re
from typing import Final, NoReturn, final

from headrace.errors import BadExpression

NAME: Final = "name"
QUOTED: Final = "quoted name"
STRING: Final = "string"
NUMERAL: Final = "number"
END: Final = "end"

KEYWORDS: Final = frozenset(["AND", "BETWEEN", "ESCAPE", "FALSE", "IN", "IS", "LIKE", "NOT", "NULL", "OR", "TRUE"])

MAX_CHARACTERS: Final = 65536

# Possessive, so that no text makes it go back: one pass, whatever is sent.
_token: Final = re.compile(
    r"""
    [ \t\r\n\f]*+ (?:
      (?P<name>    [^\W\d][\w$]*+ | \$[\w$]*+ )
    | (?P<number>  0[xX][0-9a-fA-F]++ | (?:[0-9]++(?:\.[0-9]*+)? | \.[0-9]++) (?:[eE][+-]?[0-9]++)? )
    | (?P<string>  '(?:[^']++|'')*+' )
    | (?P<quoted>  "(?:[^"]++|"")*+" )
    | (?P<comment> -- | /\* )
    | (?P<symbol>  <> | != | <= | >= | [-=<>+*/(),.\[\]] )
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
    """Every token of the text and one of kind END.

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
    # An error at the end points just behind the last token, not behind the blanks that follow it.
    if len(tokens) > 1:
        tokens[-1].at = len(text.rstrip(" \t\r\n\f"))
    return tokens


def _token_of(text: str, group: str, found: str, at: int) -> Token:
    if group == "name":
        keyword = found.upper() if found.isascii() else ""  # a dotless i would become a plain I
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
