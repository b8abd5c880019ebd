"""Names to paths and back: any name becomes a path that every file system takes. No file access.

Lower-case letters, digits, `-`, `_` and inner `.` stand for themselves, every other byte is `%xx`; so names that differ
only in case stay apart where the file system does not tell case. What gets too long for one path component is cut
into several, each but the last ending in `+`.
"""

from pathlib import PurePath
from typing import Final

_PLAIN: Final = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-_.")
_COMPONENT: Final = 200
_MORE: Final = "+"


def encode_name(name: str) -> str:
    """A relative path for this name; different names give different paths, none inside another."""
    raw = name.encode()
    text = "".join(chr(byte) if byte in _PLAIN else f"%{byte:02x}" for byte in raw)
    if text.startswith("."):
        text = "%2e" + text[1:]
    if len(text) > _COMPONENT:
        text = text.replace(".", "%2e")  # so that no later piece can be "." or ".."
    pieces = [text[at : at + _COMPONENT] for at in range(0, len(text), _COMPONENT)]
    return "/".join([piece + _MORE for piece in pieces[:-1]] + pieces[-1:])


def decode_name(path: str) -> str:
    """The name that `encode_name` made this path of. Raises ValueError when it made no such path."""
    pieces = PurePath(path).parts
    text = "".join(piece.removesuffix(_MORE) for piece in pieces)
    raw = bytearray()
    at = 0
    while at < len(text):
        if text[at] == "%":
            raw.append(int(text[at + 1 : at + 3], 16))
            at += 3
        else:
            raw += text[at].encode()
            at += 1
    name = raw.decode()
    if encode_name(name) != path:
        raise ValueError(f"{path!r} is not the path of a name")
    return name


def is_partial(component: str) -> bool:
    """Whether this path component goes on in the folder below it."""
    return component.endswith(_MORE)
