"""The normative statements of both specifications, and the mark that says which of them a test is about.

Numbers are those of MQTT 3.1.1 (OASIS Standard, 29 October 2014) and MQTT 5.0 (OASIS Standard, 7 March 2019).
"""

from collections.abc import Callable
from typing import TypeVar

import pytest

Test = TypeVar("Test", bound=Callable[..., None])

V311, V5 = 4, 5
COVERED: dict[int, set[str]] = {V311: set(), V5: set()}


def clauses(v311: str = "", v5: str = "") -> Callable[[Test], Test]:
    """Run a test once per version of the protocol whose statements it is about; the statements are in its name."""
    versions = []
    for level, shown, numbers in ((V311, "3.1.1", v311.split()), (V5, "5.0", v5.split())):
        assert all(number in STATEMENTS[level] for number in numbers), numbers
        COVERED[level].update(numbers)
        if numbers:
            versions.append(pytest.param(level, id=" ".join([shown, *(f"MQTT-{number}" for number in numbers)])))
    return pytest.mark.parametrize("version", versions)


def _range(section: str, last: int, first: int = 1) -> list[str]:
    return [f"{section}-{number}" for number in range(first, last + 1)]


STATEMENTS: dict[int, list[str]] = {
    V311: [
        *_range("1.5.3", 3),
        *_range("2.2.2", 2),
        *_range("2.3.1", 7),
        *_range("3.1.0", 2),
        *_range("3.1.2", 24),
        *_range("3.1.3", 11),
        *_range("3.1.4", 5),
        *_range("3.2.0", 1),
        *_range("3.2.2", 6),
        *_range("3.3.1", 12),
        *_range("3.3.2", 3),
        *_range("3.3.4", 1),
        *_range("3.3.5", 2),
        *_range("3.6.1", 1),
        *_range("3.8.1", 1),
        *_range("3.8.3", 4),
        *_range("3.8.4", 6),
        *_range("3.9.3", 2),
        *_range("3.10.1", 1),
        *_range("3.10.3", 2),
        *_range("3.10.4", 6),
        *_range("3.12.4", 1),
        *_range("3.14.1", 1),
        *_range("3.14.4", 3),
        *_range("4.1.0", 2),
        *_range("4.2.0", 1),
        *_range("4.3.1", 1),
        *_range("4.3.2", 2),
        *_range("4.3.3", 2),
        *_range("4.4.0", 1),
        *_range("4.5.0", 2),
        *_range("4.6.0", 6),
        *_range("4.7.1", 3),
        *_range("4.7.2", 1),
        *_range("4.7.3", 4),
        *_range("4.8.0", 2),
        *_range("6.0.0", 4),
        *_range("7.0.0", 2),
        *_range("7.1.1", 1),
        *_range("7.1.2", 1),
    ],
    V5: [
        *_range("1.5.4", 3),
        *_range("1.5.5", 1),
        *_range("1.5.7", 1),
        *_range("2.1.3", 1),
        *_range("2.2.1", 6, 2),
        *_range("2.2.2", 1),
        *_range("3.1.0", 2),
        *_range("3.1.2", 30),
        *_range("3.1.3", 12),
        *_range("3.1.4", 6),
        *_range("3.2.0", 2),
        *_range("3.2.2", 22),
        *_range("3.3.1", 13),
        *_range("3.3.2", 20),
        *_range("3.3.4", 10),
        *_range("3.4.2", 3),
        *_range("3.5.2", 3),
        *_range("3.6.1", 1),
        *_range("3.6.2", 3),
        *_range("3.7.2", 3),
        *_range("3.8.1", 1),
        *_range("3.8.3", 5),
        *_range("3.8.4", 8),
        *_range("3.9.2", 2),
        *_range("3.9.3", 2),
        *_range("3.10.1", 1),
        *_range("3.10.3", 2),
        *_range("3.10.4", 6),
        *_range("3.11.2", 2),
        *_range("3.11.3", 2),
        *_range("3.12.4", 1),
        *_range("3.14.0", 1),
        *_range("3.14.1", 1),
        *_range("3.14.2", 4),
        *_range("3.14.4", 3),
        *_range("3.15.1", 1),
        *_range("3.15.2", 3),
        *_range("4.1.0", 2),
        "4.2-1",
        *_range("4.3.1", 1),
        *_range("4.3.2", 5),
        *_range("4.3.3", 13),
        *_range("4.4.0", 2),
        *_range("4.5.0", 2),
        *_range("4.6.0", 6),
        *_range("4.7.0", 1),
        *_range("4.7.1", 2),
        *_range("4.7.2", 1),
        *_range("4.7.3", 4),
        *_range("4.8.2", 6),
        *_range("4.9.0", 3),
        *_range("4.12.0", 7),
        *_range("4.12.1", 2),
        *_range("4.13.1", 1),
        *_range("4.13.2", 1),
        *_range("6.0.0", 4),
    ],
}
"""All statements, by protocol level. Numbers that are missing here are missing there."""

_CLIENT = "binds clients: a server can only see whether one keeps to it"
_NO_AUTH = "no authentication method is set up here, so that the server never sends AUTH"
_ALL = "this server can do all of it, so that the case of a server that cannot does not arise"

WITHOUT_TEST: dict[int, dict[str, str]] = {
    V311: {
        "2.3.1-2": _CLIENT,
        "2.3.1-3": _CLIENT,
        "3.1.2-23": _CLIENT,
        "3.1.3-7": _CLIENT,
        "3.8.3-2": _ALL,
        "3.14.4-1": _CLIENT,
        "3.14.4-2": _CLIENT,
        "4.5.0-2": _CLIENT,
        "4.6.0-1": _CLIENT,
        "4.6.0-2": _CLIENT,
        "4.6.0-3": _CLIENT,
        "4.6.0-4": _CLIENT,
        "6.0.0-3": _CLIENT,
        "7.0.0-1": "this server opens no connections to other servers",
        "7.0.0-2": "says that extensions must not be needed: none of these tests uses one",
        "7.1.1-1": "says that a server keeps to all statements about servers: the sum of these tests",
        "7.1.2-1": _CLIENT,
    },
    V5: {
        "2.2.1-3": _CLIENT,
        "3.1.2-20": _CLIENT,
        "3.1.2-21": _CLIENT,
        "3.1.2-30": _CLIENT,
        "3.2.2-4": _CLIENT,
        "3.2.2-5": _CLIENT,
        "3.2.2-9": _ALL,
        "3.2.2-10": _ALL,
        "3.2.2-11": _CLIENT,
        "3.2.2-12": _ALL,
        "3.2.2-13": _ALL,
        "3.2.2-14": _CLIENT,
        "3.2.2-15": _CLIENT,
        "3.2.2-17": _CLIENT,
        "3.2.2-18": _CLIENT,
        "3.2.2-21": _CLIENT,
        "3.3.2-9": _CLIENT,
        "3.3.2-10": _CLIENT,
        "3.3.4-5": "is about servers that send a message once per subscription: this one sends a single copy",
        "3.3.4-8": _CLIENT,
        "3.15.2-1": _NO_AUTH,
        "3.15.2-2": _NO_AUTH,
        "3.15.2-3": _NO_AUTH,
        "4.5.0-2": _CLIENT,
        "4.6.0-1": _CLIENT,
        "4.6.0-2": _CLIENT,
        "4.6.0-3": _CLIENT,
        "4.6.0-4": _CLIENT,
        "4.12.0-2": _NO_AUTH,
        "4.12.0-3": _CLIENT,
        "4.12.0-4": _NO_AUTH,
        "4.12.0-5": _NO_AUTH,
        "4.12.1-1": _CLIENT,
        "4.12.1-2": _NO_AUTH,
        "6.0.0-3": _CLIENT,
    },
}
"""Statements that no test here is about, and why."""
