"""The content type and the user properties in the stored property list of a PUBLISH of MQTT 5. Nothing else of it.

A list is one property after the other: an identifier (one byte), then its value, whose form the identifier decides.
Texts and binary data have their length (u16, big-endian) before them; a user property is two texts.
"""

from typing import Final

_CONTENT_TYPE: Final = 0x03
_USER_PROPERTY: Final = 0x26
_SIZES: Final = {0x01: 1, 0x02: 4, 0x23: 2}
"""Payload format, message expiry, topic alias: how many bytes each has."""
_BINARIES: Final = (0x08, 0x09)
"""Response topic and correlation data."""


def read_mqtt5(raw: bytes) -> tuple[str, dict[str, object]]:
    """Of a name that is there several times, the last value counts. Raises ValueError and IndexError for no list."""
    content_type = ""
    headers: dict[str, object] = {}
    at = 0
    while at < len(raw):
        identifier = raw[at]
        at += 1
        if identifier == _USER_PROPERTY:
            name, at = _text(raw, at)
            headers[name], at = _text(raw, at)
        elif identifier == _CONTENT_TYPE:
            content_type, at = _text(raw, at)
        elif identifier in _BINARIES:
            at = _end(raw, at)
        elif identifier in _SIZES:
            at += _SIZES[identifier]
        else:
            raise ValueError(f"a message has no property 0x{identifier:02x}")
    return content_type, headers


def _text(raw: bytes, at: int) -> tuple[str, int]:
    end = _end(raw, at)
    return raw[at + 2 : end].decode(), end


def _end(raw: bytes, at: int) -> int:
    """Where what has its length before it ends."""
    end = at + 2 + int.from_bytes(raw[at : at + 2])
    if end > len(raw):
        raise ValueError("the list ends in the middle of a property")
    return end
