"""Passwords to hashes and back to yes or no: argon2id. Slow on purpose: never called on the event loop's thread.

A hash that RabbitMQ made is a salt of four bytes and a digest of both, which is quick to guess. Argon2id's hash of the
digest is kept instead: `$rabbitmq-sha256$<salt in hex>$argon2id$...`.
"""

import base64
import contextlib
import functools
import hashlib
import secrets
from typing import Final

# OWASP's choice for little memory: all of them cost an attacker the same, and this one a broker the least.
_TIME_COST: Final = 5
_MEMORY_KIB: Final = 7168
_PARALLELISM: Final = 1
_SALT_BYTES: Final = 16
_HASH_BYTES: Final = 32

OWN: Final = "$argon2"
"""How a hash of our own begins."""
ADOPTED: Final = "$rabbitmq-"
"""How one begins that was RabbitMQ's."""
_THEIR_SALT_BYTES: Final = 4
_THEIR_DIGESTS: Final = {32: "sha256", 64: "sha512"}
"""By the length of the digest."""

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_LARGE_BYTES: Final = 1 << 20


def hash_password(password: bytes) -> str:
    """The hash to keep, with salt and costs in it. Takes some ten milliseconds."""
    from argon2.low_level import Type, hash_secret  # not before somebody logs in: an idle broker has no need of it

    _return_large_blocks()
    salt = secrets.token_bytes(_SALT_BYTES)
    return hash_secret(password, salt, _TIME_COST, _MEMORY_KIB, _PARALLELISM, _HASH_BYTES, Type.ID).decode()


def their_hash(text: str) -> bytes:
    """The salt and the digest of a hash that RabbitMQ made; nothing when it is none that is known."""
    try:
        salted = base64.b64decode(text, validate=True)
    except ValueError:
        return b""
    return salted if len(salted) - _THEIR_SALT_BYTES in _THEIR_DIGESTS else b""


def adopt_hash(salted: bytes) -> str:
    """The hash to keep for one that RabbitMQ made. Takes some ten milliseconds."""
    salt, digest = salted[:_THEIR_SALT_BYTES], salted[_THEIR_SALT_BYTES:]
    return f"{ADOPTED}{_THEIR_DIGESTS[len(digest)]}${salt.hex()}{hash_password(digest)}"


def is_right(password: bytes, password_hash: str) -> bool:
    """Whether the hash is that of the password; a hash that cannot be read is that of none."""
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
    """Have large blocks go back to the system when they are freed, those of argon2 and all others.

    glibc takes the first free of 7 MiB as a sign that such blocks come and go, and keeps what is freed from then on.
    Behind one client that does not read (tests/integration/amqp091/test_connection.py) that was 37 MB; so it is 2 MB.
    """
    import ctypes

    with contextlib.suppress(OSError, AttributeError):  # another C library has no such habit
        allocator = ctypes.CDLL(None)
        allocator.mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        allocator.mallopt(_M_TRIM_THRESHOLD, 2 * _LARGE_BYTES)
