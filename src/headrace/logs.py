"""The log: one line per event on stderr, as text for people or as JSON for programs. Other rooms write the events.

A call passes the subject of an event as `extra`, under the names in FIELDS.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final, TextIO, final

FIELDS: Final = ("connection", "node", "protocol", "user", "vhost", "queue", "group", "key")
_ROOT: Final = "headrace."
_COLOURS: Final = {logging.WARNING: "\033[33m", logging.ERROR: "\033[31m", logging.CRITICAL: "\033[1;31m"}
_PLAIN: Final = "\033[0m"


def set_up(level: str, form: str, stream: TextIO | None = None) -> None:
    """Log events of at least this level, as `text` or `json`. May be called again at any time."""
    stream = stream or sys.stderr
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines() if form == "json" else TextLines(stream.isatty()))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


@final
class TextLines(logging.Formatter):
    """A time, a level, the room, a sentence, then the fields."""

    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def format(self, record: logging.LogRecord) -> str:
        words = [_time(record), f"{record.levelname:<8}", _room(record), _line(record.getMessage())]
        words += [f"{name}={_quoted(value)}" for name, value in _fields(record).items()]
        text = " ".join(words)
        if self._is_terminal and record.levelno in _COLOURS:
            text = f"{_COLOURS[record.levelno]}{text}{_PLAIN}"
        if record.exc_info:
            traceback = self.formatException(record.exc_info)
            text += f"\n{traceback}" if self._is_terminal else f" traceback={_quoted(traceback)}"
        return text


@final
class JsonLines(logging.Formatter):
    """One JSON object: time, level, room, message, and the fields."""

    def format(self, record: logging.LogRecord) -> str:
        values: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "room": _room(record),
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            values["traceback"] = self.formatException(record.exc_info)
        return json.dumps(values, ensure_ascii=False, default=str)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _room(record: logging.LogRecord) -> str:
    return record.name.removeprefix(_ROOT)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    found = ((name, getattr(record, name, None)) for name in FIELDS)
    return {name: value for name, value in found if value not in (None, "")}


def _line(text: str) -> str:
    """Escape characters that a client could use to break the line."""
    return text if text.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def _quoted(value: object) -> str:
    text = str(value)
    return text if text and text.isprintable() and not set(' "=') & set(text) else json.dumps(text, ensure_ascii=False)
