"""Every error Headrace raises: one root, and a kind only where a caller acts differently. No tables of wire codes."""


class HeadraceError(Exception):
    """The root of all errors Headrace raises on purpose."""


class Refused(HeadraceError):
    """This request is not allowed or makes no sense; tell the client and keep the connection."""


class NotFound(Refused):
    """What the request names does not exist."""


class Truncated(Refused):
    """Messages that were asked for have left the log: retention, consumers or a deletion took them."""


class PreconditionFailed(Refused):
    """It exists, but not as the request says, or not in the state the request asks for."""


class AccessRefused(Refused):
    """The server keeps this name or this operation to itself, or the user lacks the right."""


class ResourceLocked(Refused):
    """Another connection has it for itself alone."""


class TooLarge(Refused):
    """The message has more bytes than may be sent."""


class BadExpression(Refused):
    """A filter expression cannot be read; `column` (from 1, the end of the text included) says where."""

    def __init__(self, text: str, column: int, reason: str) -> None:
        super().__init__(f"{reason} (column {column})\n{_pointed_at(text, column)}")
        self.text = text
        self.column = column
        self.reason = reason

    def __reduce__(self) -> tuple[type["BadExpression"], tuple[str, int, str]]:
        return BadExpression, (self.text, self.column, self.reason)


def _pointed_at(text: str, column: int) -> str:
    """The part of the text around the column, on one line, and a caret under it."""
    start = max(0, column - 1 - 50)
    shown = "".join(letter if letter.isprintable() else " " for letter in text[start : start + 76])
    return f"  {shown}\n  {' ' * (column - 1 - start)}^"


class ProtocolError(HeadraceError):
    """The peer broke its protocol: answer with `code`, the protocol's own, and close."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Unavailable(HeadraceError):
    """It cannot be done now and may work later: a full disk, a locked directory, a closed engine."""


class Corrupt(HeadraceError):
    """Stored bytes are not what was written. The file is kept as it is; nothing is guessed.

    `file` and `position` say where, for the operator and for `headrace doctor`.
    """

    def __init__(self, file: str, position: int, what: str) -> None:
        super().__init__(f"{file} is damaged at byte {position}: {what}")
        self.file = file
        self.position = position
        self.what = what


class Fatal(HeadraceError):
    """A promise can no longer be kept (a sync to disk failed); the process must stop and say so."""


class Fenced(Fatal):
    """Another process has taken the store over: this one must stop, and whatever it still holds does not count."""
