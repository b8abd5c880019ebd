"""Every error Headrace raises: one root, and a kind only where a caller acts differently. No tables of wire codes."""


class HeadraceError(Exception):
    """The root of all errors Headrace raises on purpose."""


class Refused(HeadraceError):
    """This request is not allowed or makes no sense; tell the client and keep the connection."""


class NotFound(Refused):
    """The named thing does not exist."""


class Truncated(Refused):
    """Requested messages have left the log by retention, consumption or deletion."""


class PreconditionFailed(Refused):
    """The thing exists, but differs from the request or is in the wrong state."""


class AccessRefused(Refused):
    """The user lacks the right, or the server reserves the name or the operation."""


class ResourceLocked(Refused):
    """Another connection holds it exclusively."""


class TooLarge(Refused):
    """The message exceeds a size limit."""


class BadExpression(Refused):
    """A filter expression cannot be parsed; `column` (from 1, the end of the text included) says where."""

    def __init__(self, text: str, column: int, reason: str) -> None:
        super().__init__(f"{reason} (column {column})\n{_pointed_at(text, column)}")
        self.text = text
        self.column = column
        self.reason = reason

    def __reduce__(self) -> tuple[type["BadExpression"], tuple[str, int, str]]:
        return BadExpression, (self.text, self.column, self.reason)


def _pointed_at(text: str, column: int) -> str:
    """The text around the column on one line, with a caret below it."""
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
    """The operation fails now and may work later: a full disk, a locked directory, a closed engine."""


def missing_extra(what: str, extra: str, error: ImportError) -> Unavailable:
    """The error of a feature whose package is not installed, with the command that installs it."""
    package = error.name or str(error)
    return Unavailable(f"{what} needs {package}, which is not installed: pip install 'headrace[{extra}]'")


class Corrupt(HeadraceError):
    """Stored bytes differ from the written ones. The file stays as it is; nothing is guessed.

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
    """Another process has taken over the store: this one must stop, and its unwritten state is void."""
