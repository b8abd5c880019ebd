"""Bytes between two nodes before a client's own: its origin, and proofs that both know the secret. No sockets.

The owner starts with a nonce of 32 random bytes:

    +--------+---------+----------+
    | HRFW   | version | nonce    |
    | 4      | 1       | 32       |
    +--------+---------+----------+

The other node answers with its client:

    +--------+---------+--------+------- - - - --+----------+----------+
    | HRFW   | version | length | client         | nonce    | seal     |
    | 4      | 1       | 2      | length bytes   | 32       | 32       |
    +--------+---------+--------+------- - - - --+----------+----------+

A client:

    +----------+-------+-------+-----------------------------------+
    | protocol | flags | port  | address, local, node, certificate |
    | 1        | 1     | 2     | each a length (2 bytes) and UTF-8 |
    +----------+-------+-------+-----------------------------------+

The owner answers with its verdict:

    +--------+----------+
    | status | seal     |
    | 1      | 32       |
    +--------+----------+

A seal is HMAC-SHA-256 over a word for its direction, the binding of the connection, both nonces and the message. So
bytes recorded on one connection are worthless on another, and neither side can be impersonated by its address alone.
The binding is the hash of the owner's certificate with TLS, and empty otherwise. Numbers are unsigned and big-endian.
"""

import hmac
import struct
from dataclasses import dataclass
from typing import Final

from headrace.errors import Refused
from headrace.net.facts import Origin

MAGIC: Final = b"HRFW"
VERSION: Final = 1
NONCE_BYTES: Final = 32
SEAL_BYTES: Final = 32
MAX_TEXT_BYTES: Final = 512
CHALLENGE_BYTES: Final = len(MAGIC) + 1 + NONCE_BYTES
ANSWER_BYTES: Final = 1 + SEAL_BYTES

AMQP: Final = 1
MQTT: Final = 2
HTTP: Final = 3
NUMBERS: Final = {"amqp": AMQP, "mqtt": MQTT}
"""Numbers of the relayed protocols, by listener."""
_PROTOCOLS: Final = (AMQP, MQTT, HTTP)

WELCOME: Final = 0
NOT_THE_OWNER: Final = 1
_STATUSES: Final = (WELCOME, NOT_THE_OWNER)

_IS_TLS: Final = 1
_IS_LOOPBACK: Final = 2
_HEAD: Final = struct.Struct(">4sBH")
_FIXED: Final = struct.Struct(">BBH")
_LENGTH: Final = struct.Struct(">H")
_TEXTS: Final = 4
_MAX_CLIENT_BYTES: Final = _FIXED.size + _TEXTS * (_LENGTH.size + MAX_TEXT_BYTES)
MAX_INTRODUCTION_BYTES: Final = _HEAD.size + _MAX_CLIENT_BYTES + NONCE_BYTES + SEAL_BYTES
_TO_OWNER: Final = b"headrace forward: introduction\0"
_TO_FOLLOWER: Final = b"headrace forward: answer\0"


@dataclass(frozen=True)
class Introduction:
    """A forwarded client, with the proof of the forwarding node."""

    protocol: int
    origin: Origin
    nonce: bytes
    sealed: bytes
    """The sealed bytes."""
    seal: bytes


def encode_challenge(nonce: bytes) -> bytes:
    return MAGIC + bytes((VERSION,)) + nonce


def decode_challenge(data: bytes) -> bytes:
    """The owner's nonce. Raises Refused for other bytes or an unknown version."""
    _check_start(data)
    if len(data) != CHALLENGE_BYTES:
        raise Refused(f"a challenge has {CHALLENGE_BYTES} bytes, not {len(data)}")
    return data[len(MAGIC) + 1 :]


def encode_introduction(
    protocol: int, origin: Origin, nonce: bytes, challenge: bytes, secret: bytes, binding: bytes = b""
) -> bytes:
    """A client, sealed for the connection of this challenge. Raises Refused for a text that is too long."""
    flags = origin.is_tls * _IS_TLS | origin.is_loopback * _IS_LOOPBACK
    parts = [_FIXED.pack(protocol, flags, origin.port)]
    for text in (origin.address, origin.local, origin.node, origin.certificate_name):
        data = text.encode()
        if len(data) > MAX_TEXT_BYTES:
            raise Refused(f"{text[:64]!r}... has more than {MAX_TEXT_BYTES} bytes")
        parts.append(_LENGTH.pack(len(data)) + data)
    fields = b"".join(parts)
    signed = _HEAD.pack(MAGIC, VERSION, len(fields)) + fields + nonce
    return signed + _seal(secret, _TO_OWNER, binding, challenge, signed)


def introduction_bytes(data: bytes) -> int:
    """Length of the introduction that starts like this; 0 if more bytes are needed. Raises Refused."""
    _check_start(data)
    if len(data) < _HEAD.size:
        return 0
    _, _, length = _HEAD.unpack_from(data)
    if length > _MAX_CLIENT_BYTES:
        raise Refused(f"a client is told of in {_MAX_CLIENT_BYTES} bytes at most, not {length}")
    return _HEAD.size + int(length) + NONCE_BYTES + SEAL_BYTES


def decode_introduction(data: bytes) -> Introduction:
    """The client of an introduction; `is_sealed` checks the seal. Raises Refused for a broken one."""
    if introduction_bytes(data) != len(data):
        raise Refused(f"an introduction of {len(data)} bytes is not whole, or more than that")
    end = len(data) - NONCE_BYTES - SEAL_BYTES
    protocol, origin = _decode_client(data[_HEAD.size : end])
    return Introduction(protocol, origin, data[end : end + NONCE_BYTES], data[:-SEAL_BYTES], data[-SEAL_BYTES:])


def is_sealed(introduction: Introduction, challenge: bytes, secret: bytes, binding: bytes = b"") -> bool:
    """True if a node with the secret made it for this challenge."""
    return hmac.compare_digest(introduction.seal, _seal(secret, _TO_OWNER, binding, challenge, introduction.sealed))


def encode_answer(
    status: int, introduction: Introduction, challenge: bytes, secret: bytes, binding: bytes = b""
) -> bytes:
    signed = bytes((status,))
    return signed + _seal(secret, _TO_FOLLOWER, binding, challenge, introduction.nonce + signed)


def decode_answer(data: bytes, nonce: bytes, challenge: bytes, secret: bytes, binding: bytes = b"") -> int:
    """The owner's verdict. Raises Refused if the sender does not know the secret."""
    if len(data) != ANSWER_BYTES or data[0] not in _STATUSES:
        raise Refused("this is no answer")
    if not hmac.compare_digest(data[1:], _seal(secret, _TO_FOLLOWER, binding, challenge, nonce + data[:1])):
        raise Refused("the answer is not from a node of this cluster")
    return data[0]


def _decode_client(data: bytes) -> tuple[int, Origin]:
    if len(data) < _FIXED.size:
        raise Refused("an introduction ends before it says who comes")
    protocol, flags, port = _FIXED.unpack_from(data)
    if protocol not in _PROTOCOLS or flags & ~(_IS_TLS | _IS_LOOPBACK):
        raise Refused(f"an introduction with protocol {protocol} and flags {flags} means nothing")
    at = _FIXED.size
    texts: list[str] = []
    for _ in range(_TEXTS):
        text, at = _decode_text(data, at)
        texts.append(text)
    if at != len(data):
        raise Refused(f"an introduction goes on for {len(data) - at} bytes after its end")
    address, local, node, certificate_name = texts
    is_tls, is_loopback = bool(flags & _IS_TLS), bool(flags & _IS_LOOPBACK)
    return protocol, Origin(address, port, local, node, is_tls, is_loopback, certificate_name)


def _decode_text(data: bytes, at: int) -> tuple[str, int]:
    if at + _LENGTH.size > len(data):
        raise Refused("an introduction ends before a text does")
    (length,) = _LENGTH.unpack_from(data, at)
    at += _LENGTH.size
    if length > MAX_TEXT_BYTES or at + length > len(data):
        raise Refused(f"a text of {length} bytes is not there, or too long")
    try:
        return data[at : at + length].decode(), at + length
    except UnicodeDecodeError as error:
        raise Refused("a text is not UTF-8") from error


def _check_start(data: bytes) -> None:
    """Raises Refused unless the bytes start as a preamble does."""
    if data[: len(MAGIC)] != MAGIC[: len(data)]:
        raise Refused("this is no node of a cluster")
    if len(data) > len(MAGIC) and data[len(MAGIC)] != VERSION:
        raise Refused(f"version {data[len(MAGIC)]} of forwarding is not spoken here, but {VERSION}")


def _seal(secret: bytes, word: bytes, binding: bytes, challenge: bytes, signed: bytes) -> bytes:
    parts = (word, len(binding).to_bytes(2), binding, challenge, signed)
    return hmac.digest(secret, b"".join(parts), "sha256")
