"""Messages that all differ: everything about one follows from its identifier, so a reader can check all of it."""

import random
from functools import lru_cache
from typing import Final

_SMALL: Final = (0, 0, 1, 17, 100, 300, 1_000, 1_000, 4_000)
_LARGE: Final = (20_000, 65_000, 131_072, 200_000)


class Load:
    """The share of large messages; a heavy load fills journal files within a second."""

    large = 0.02


def uid_of(publisher: str, number: int) -> str:
    """The identifier of a publisher's message, which also decides its size."""
    size = random.choice(_LARGE if random.random() < Load.large else _SMALL)
    return f"{publisher}-{number}-{size}"


def publisher_of(uid: str) -> str:
    return uid.split("-")[0]


def number_of(uid: str) -> int:
    return int(uid.split("-")[1])


@lru_cache(512)
def body_of(uid: str) -> bytes:
    size = int(uid.split("-")[2])
    return random.Random(uid).randbytes(size)


def headers_of(uid: str) -> dict[str, object]:
    """The headers of AMQP messages."""
    number = number_of(uid)
    return {
        "uid": uid,
        "number": -number,
        "large": number << 40,
        "flag": number % 2 == 0,
        "nothing": None,
        "list": [number, uid],
        "table": {"publisher": publisher_of(uid)},
    }


def priority_of(uid: str) -> int:
    return number_of(uid) % 4


def uids_in_order(uids: list[str]) -> str:
    """The first message that comes before an earlier one of the same publisher; empty if there is none."""
    last: dict[str, int] = {}
    for uid in uids:
        publisher, number = publisher_of(uid), number_of(uid)
        if last.get(publisher, -1) >= number:
            return uid
        last[publisher] = number
    return ""
