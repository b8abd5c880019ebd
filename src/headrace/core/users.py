"""A user as stored: name, hash of the password, tags, limits. Who is connected is in account.py."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from headrace.errors import Refused

GUEST: Final = "guest"
ADMINISTRATOR: Final = "administrator"
IMPERSONATOR: Final = "impersonator"
MAX_NAME_BYTES: Final = 255

# The password is the name, which everybody knows: a hash made anew in each directory would hide nothing.
GUEST_HASH: Final = "$argon2id$v=19$m=7168,t=5,p=1$SGVhZHJhY2UncyBndWVzdA$JPKx44j1hizhHx0JRamxmzZnyDjRJqywb4QtmCKCsSc"


@dataclass(frozen=True)
class Limits:
    """How much one user may do at a time, over all connections; None where there is no limit."""

    max_connections: int | None = None
    max_channels: int | None = None
    max_message_rate: int | None = None
    """Messages published per second; a user that sends more is read from more slowly."""
    max_message_bytes: int | None = None

    @staticmethod
    def names() -> set[str]:
        """What the limits are called."""
        return {name.replace("_", "-") for name in Limits.__dataclass_fields__}

    @staticmethod
    def from_json(values: object) -> "Limits":
        """The limits by RabbitMQ's names (`max-connections`); a negative number is none. Raises Refused."""
        if not isinstance(values, Mapping):
            raise Refused(f"limits are a table of names and numbers, not {values!r}")
        known: dict[str, int | None] = {}
        for name, value in values.items():
            attribute = str(name).replace("-", "_")
            if name not in Limits.names():
                raise Refused(f"there is no limit {name!r}; there are {', '.join(sorted(Limits.names()))}")
            if isinstance(value, bool) or not isinstance(value, int):
                raise Refused(f"the limit {name!r} is a whole number, not {value!r}")
            known[attribute] = None if value < 0 else value
        return Limits(**known)

    def to_json(self) -> dict[str, int]:
        limits = {name: getattr(self, name) for name in Limits.__dataclass_fields__}
        return {name.replace("_", "-"): value for name, value in limits.items() if value is not None}


@dataclass(frozen=True)
class User:
    """One user. Without a hash no password is right, and only a certificate lets the user in."""

    name: str
    password_hash: str = ""
    tags: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)

    def __repr__(self) -> str:
        return f"User({self.name!r})"

    @property
    def is_impersonator(self) -> bool:
        """Whether messages of this user may bear the name of another."""
        return IMPERSONATOR in self.tags

    def to_json(self) -> dict[str, object]:
        """The user as JSON can hold it, hash included: for storage and for nobody else."""
        return {
            "name": self.name,
            "password_hash": self.password_hash,
            "tags": list(self.tags),
            "limits": self.limits.to_json(),
        }

    @staticmethod
    def from_json(values: Mapping[str, object]) -> "User":
        """The user that `to_json` wrote; limits that are not known are ignored. Raises Refused if it is none."""
        name, password_hash, tags = values.get("name"), values.get("password_hash", ""), values.get("tags", [])
        if not isinstance(name, str) or not isinstance(password_hash, str) or not isinstance(tags, list):
            raise Refused(f"{name!r} is not a user: a name, a password hash and tags are needed")
        limits = values.get("limits")
        given = limits if isinstance(limits, dict) else {}
        known = {limit: number for limit, number in given.items() if limit in Limits.names()}
        return User(name, password_hash, check_tags(tags), Limits.from_json(known))


def guest() -> User:
    """The user of a fresh directory, who may come from this machine only."""
    return User(GUEST, GUEST_HASH, (ADMINISTRATOR,))


def check_tags(tags: Iterable[object]) -> tuple[str, ...]:
    """Raises Refused unless all are words."""
    words: list[str] = []
    for tag in tags:
        if not isinstance(tag, str) or not tag or len(tag) > MAX_NAME_BYTES or any(sign in tag for sign in ",\0"):
            raise Refused(f"{tag!r} is not a tag: a tag is a word without commas, such as {ADMINISTRATOR!r}")
        words.append(tag)
    return tuple(dict.fromkeys(words))


def check_name(kind: str, name: str) -> None:
    """Raises Refused unless the name has 1 to 255 bytes of UTF-8 and no U+0000."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        size = 0
    if not 1 <= size <= MAX_NAME_BYTES or "\0" in name:
        raise Refused(f"the {kind} name {name[:64]!r} must have 1 to {MAX_NAME_BYTES} bytes of UTF-8 and no U+0000")
