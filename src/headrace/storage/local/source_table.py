"""Where messages came from, as it stands in a block: the source table that is drawn in block.py. Nothing else of it."""

import struct
from typing import Final

from headrace.model import Source

_SOURCE: Final = struct.Struct("<BHHHH")


def encode_sources(sources: list[Source]) -> bytes:
    """The source table of a block. Raises struct.error and UnicodeEncodeError for names that it cannot hold."""
    return b"".join([source.stored or _encode_source(source) for source in sources])


def _encode_source(source: Source) -> bytes:
    names = (
        source.topic.encode(),
        source.exchange.encode(),
        source.client_id.encode(),
        source.protocol.encode(),
    )
    source.stored = b"".join([_SOURCE.pack(source.encoding, *map(len, names)), *names])
    return source.stored


def decode_sources(table: bytes, count: int) -> list[Source]:
    """The sources in the table of a block."""
    sources: list[Source] = []
    at = 0
    for _ in range(count):
        encoding, *lengths = _SOURCE.unpack_from(table, at)
        at += _SOURCE.size
        names: list[str] = []
        for length in lengths:
            names.append(table[at : at + length].decode())
            at += length
        sources.append(Source(names[0], names[1], names[2], names[3], encoding))
    return sources
