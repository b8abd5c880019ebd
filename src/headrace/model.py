"""The nouns that every room shares: a message and its source. No behaviour, no I/O."""

from typing import Final, final

from mypy_extensions import mypyc_attr

# Encodings of a message's properties. The broker keeps the publisher's bytes, so a consumer of the same protocol gets
# the very same ones. Stored on disk; never renumber.
NATIVE: Final = 0
AMQP091: Final = 1
MQTT5: Final = 2
AMQP10: Final = 3


@final
@mypyc_attr(acyclic=True)
class Source:
    """Origin of messages: topic, exchange, publisher, and the encoding of their properties.

    One value serves all messages that a publisher sends to one topic; storage keeps it once per block. Compared by
    identity: make one and share it.
    """

    __slots__ = ("client_id", "encoding", "exchange", "place", "protocol", "stored", "topic")

    def __init__(
        self, topic: str, exchange: str = "", client_id: str = "", protocol: str = "", encoding: int = NATIVE
    ) -> None:
        # The fields read per message come first: with thousands of sources they come from memory, line by line.
        self.stored = b""
        """Stored form, cached with the first commit; empty before. Many queues mean many sources per commit."""
        self.place = 0
        """Its index in the source table of the last block."""
        self.encoding = encoding
        self.topic = topic
        self.exchange = exchange
        self.client_id = client_id
        self.protocol = protocol

    def __repr__(self) -> str:
        return f"Source({self.topic!r}, {self.exchange!r}, {self.client_id!r}, {self.protocol!r}, {self.encoding})"


@final
@mypyc_attr(acyclic=True)
class Message:
    """One message: a payload with its properties, as published. Immutable.

    Times are microseconds since 1970 UTC; 0 means none.
    """

    __slots__ = ("expires_us", "not_before_us", "payload", "priority", "properties", "source", "timestamp_us")

    def __init__(
        self,
        source: Source,
        payload: bytes,
        timestamp_us: int,
        properties: bytes = b"",
        priority: int = 0,
        expires_us: int = 0,
        not_before_us: int = 0,
    ) -> None:
        self.source = source
        self.payload = payload
        self.timestamp_us = timestamp_us
        self.properties = properties
        self.priority = priority
        self.expires_us = expires_us
        self.not_before_us = not_before_us

    def __repr__(self) -> str:
        return f"Message({self.source.topic!r}, {len(self.payload)} bytes, {self.timestamp_us})"
