"""A stored user: name, tags, limits, password hash, and the check of passwords. logins.py has the connected users.

A hash of RabbitMQ is a salt of four bytes and a digest of both, which is quick to guess. The broker keeps Argon2id's
hash of that digest instead: `$rabbitmq-sha256$<salt in hex>$argon2id$...`.
"""

import base64
import contextlib
import functools
import hashlib
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.config.kinds import MAX_NUMBER, Number
from headrace.config.table import Key, Table
from headrace.errors import Refused

# OWASP's choice for little memory: all choices cost an attacker the same, and this one a broker the least.
_TIME_COST: Final = 5
_MEMORY_KIB: Final = 7168
_PARALLELISM: Final = 1
_SALT_BYTES: Final = 16
_HASH_BYTES: Final = 32

OWN: Final = "$argon2"
"""Prefix of our own hashes."""
ADOPTED: Final = "$rabbitmq-"
"""Prefix of adopted hashes of RabbitMQ."""
_THEIR_SALT_BYTES: Final = 4
_THEIR_DIGESTS: Final = {32: "sha256", 64: "sha512"}
"""Digests by length."""

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_LARGE_BYTES: Final = 1 << 20


def hash_password(password: bytes) -> str:
    """Hash a password, with salt and costs included. Takes some ten milliseconds."""
    from argon2.low_level import Type, hash_secret  # imported at the first login: an idle broker does not need it

    _return_large_blocks()
    salt = secrets.token_bytes(_SALT_BYTES)
    return hash_secret(password, salt, _TIME_COST, _MEMORY_KIB, _PARALLELISM, _HASH_BYTES, Type.ID).decode()


def their_hash(text: str) -> bytes:
    """Salt and digest of a hash of RabbitMQ; b"" for an unknown kind."""
    try:
        salted = base64.b64decode(text, validate=True)
    except ValueError:
        return b""
    return salted if len(salted) - _THEIR_SALT_BYTES in _THEIR_DIGESTS else b""


def is_known_hash(text: str) -> bool:
    """True if a password can be checked against this hash, ours or RabbitMQ's."""
    return text.startswith((OWN, ADOPTED)) or bool(their_hash(text))


def adopt_hash(salted: bytes) -> str:
    """Hash the digest of a RabbitMQ hash, for storage. Takes some ten milliseconds."""
    salt, digest = salted[:_THEIR_SALT_BYTES], salted[_THEIR_SALT_BYTES:]
    return f"{ADOPTED}{_THEIR_DIGESTS[len(digest)]}${salt.hex()}{hash_password(digest)}"


def is_right(password: bytes, password_hash: str) -> bool:
    """True if the password has this hash; no password has an unreadable one."""
    from argon2.exceptions import Argon2Error, InvalidHashError
    from argon2.low_level import Type, verify_secret

    _return_large_blocks()
    if password_hash.startswith(ADOPTED):
        kind, _, rest = password_hash[len(ADOPTED) :].partition("$")
        salt, dollar, own = rest.partition("$")
        try:
            password = hashlib.new(kind, bytes.fromhex(salt) + password).digest()
        except ValueError:
            return False
        password_hash = dollar + own
    try:
        return verify_secret(password_hash.encode(), password, Type.ID)
    except (Argon2Error, InvalidHashError):
        return False


@functools.cache
def _return_large_blocks() -> None:
    """Make glibc return large blocks to the system when they are freed, those of argon2 and all others.

    glibc takes the first free of 7 MiB as a sign that such blocks come and go, and keeps later ones. Behind one client
    that does not read (tests/integration/amqp091/test_connection.py) that was 37 MB; with this call it is 2 MB.
    """
    import ctypes

    with contextlib.suppress(OSError, AttributeError):  # other C libraries have no such habit
        allocator = ctypes.CDLL(None)
        allocator.mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        allocator.mallopt(_M_TRIM_THRESHOLD, 2 * _LARGE_BYTES)


GUEST: Final = "guest"
ADMINISTRATOR: Final = "administrator"
IMPERSONATOR: Final = "impersonator"
MAX_NAME_BYTES: Final = 255

# The password is the name, as everybody knows: a new hash per directory would hide nothing.
GUEST_HASH: Final = "$argon2id$v=19$m=7168,t=5,p=1$SGVhZHJhY2UncyBndWVzdA$JPKx44j1hizhHx0JRamxmzZnyDjRJqywb4QtmCKCsSc"


@dataclass(frozen=True)
class Limits:
    """Limits of one user over all its connections; None = unlimited."""

    max_connections: int | None = None
    max_channels: int | None = None
    max_message_rate: int | None = None
    """Publishes per second; the broker reads more slowly from a faster user."""
    max_message_bytes: int | None = None

    @staticmethod
    def names() -> set[str]:
        """Names of the limits."""
        return {name.replace("_", "-") for name in Limits.__dataclass_fields__}

    @staticmethod
    def from_json(values: object) -> "Limits":
        """Read limits by RabbitMQ's names (`max-connections`); a negative number means none. Raises Refused."""
        known: dict[str, Any] = _LIMITS.read(values, "limits")
        return Limits(*[None if value is None or value < 0 else value for value in known.values()])

    def to_json(self) -> dict[str, int]:
        limits = {name: getattr(self, name) for name in Limits.__dataclass_fields__}
        return {name.replace("_", "-"): value for name, value in limits.items() if value is not None}


_LIMITS: Final = Table(
    *[Key(name.replace("_", "-"), Number(-MAX_NUMBER), None, "") for name in Limits.__dataclass_fields__]
)


@dataclass(frozen=True)
class User:
    """One user. Without a hash, only a certificate can log in."""

    name: str
    password_hash: str = ""
    tags: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)

    def __repr__(self) -> str:
        return f"User({self.name!r})"

    @property
    def is_impersonator(self) -> bool:
        """True if this user may publish under another user's name."""
        return IMPERSONATOR in self.tags

    def to_json(self) -> dict[str, object]:
        """The user as JSON, hash included: for storage only."""
        return {
            "name": self.name,
            "password_hash": self.password_hash,
            "tags": list(self.tags),
            "limits": self.limits.to_json(),
        }

    @staticmethod
    def from_json(values: Mapping[str, object]) -> "User":
        """Read a user from `to_json`, ignoring unknown limits. Raises Refused for other JSON."""
        name, password_hash, tags = values.get("name"), values.get("password_hash", ""), values.get("tags", [])
        if not isinstance(name, str) or not isinstance(password_hash, str) or not isinstance(tags, list):
            raise Refused(f"{name!r} is not a user: a name, a password hash and tags are needed")
        limits = values.get("limits")
        given = limits if isinstance(limits, dict) else {}
        known = {limit: number for limit, number in given.items() if limit in Limits.names()}
        return User(name, password_hash, check_tags(tags), Limits.from_json(known))


def guest() -> User:
    """The user of a fresh directory, for logins from this machine only."""
    return User(GUEST, GUEST_HASH, (ADMINISTRATOR,))


def check_tags(tags: Iterable[object]) -> tuple[str, ...]:
    """Raises Refused unless all tags are words."""
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
