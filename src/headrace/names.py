"""The rules for topics and topic filters, and names in error messages. No addresses, no matching."""

from typing import Final

from headrace.errors import Refused

MAX_TOPIC_BYTES: Final = 65_535  # MQTT 5 [1.5.4]: strings have a length prefix of 16 bits
_SHOWN: Final = 80  # characters of a name that an error message repeats


def quoted(name: str) -> str:
    """Return the name for an error message: quoted, control characters escaped, long ones cut."""
    if len(name) <= _SHOWN:
        return repr(name)
    return f"{name[:_SHOWN]!r}... ({len(name)} characters)"


def check_topic(name: str) -> None:
    """Check a topic for publishing.

    Raises Refused when it is empty, too long, not UTF-8, or has a wildcard or U+0000 in it.
    """
    if _is_plain(name) and "+" not in name and "#" not in name:
        return
    _check_text("topic", name)
    for at, character in enumerate(name):
        if character in "+#":
            level = name.count("/", 0, at) + 1
            raise Refused(
                f"topic {quoted(name)} has the wildcard {character!r} in level {level}, character {at + 1}: "
                "wildcards are for subscriptions, a message goes to one topic"
            )


def check_filter(pattern: str) -> None:
    """Check a pattern for subscribing.

    Raises Refused when it is empty, too long, not UTF-8, has U+0000 in it or a misplaced wildcard.
    """
    if not _is_plain(pattern):
        _check_text("topic filter", pattern)
    if "+" not in pattern and "#" not in pattern:
        return
    levels = pattern.split("/")
    for number, level in enumerate(levels, 1):
        # MQTT 5 [4.7.1.2], [4.7.1.3]
        if "#" in level and level != "#":
            raise Refused(f"topic filter {quoted(pattern)} has '#' beside other characters in level {number}")
        if level == "#" and number < len(levels):
            raise Refused(
                f"topic filter {quoted(pattern)} has '#' in level {number} of {len(levels)}: "
                "it stands for all further levels and must be the last"
            )
        if "+" in level and level != "+":
            raise Refused(f"topic filter {quoted(pattern)} has '+' beside other characters in level {number}")


def _is_plain(name: str) -> bool:
    """True if the name is valid apart from wildcards, without the cost of encoding it."""
    return name.isascii() and 0 < len(name) <= MAX_TOPIC_BYTES and "\0" not in name


def _check_text(what: str, name: str) -> None:
    if not name:
        raise Refused(f"the {what} is empty: it needs at least one character")
    if "\0" in name:
        raise Refused(f"{what} {quoted(name)} has U+0000 at character {name.index(chr(0)) + 1}")
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise Refused(f"{what} {quoted(name)} is not UTF-8 at character {error.start + 1}") from None
    if size > MAX_TOPIC_BYTES:
        raise Refused(f"{what} {quoted(name)} has {size} bytes, {MAX_TOPIC_BYTES} is the most")
