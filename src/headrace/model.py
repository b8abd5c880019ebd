"""The nouns every room shares: what a message is and where it came from. No behaviour, no I/O."""

from typing import Final, final

from mypy_extensions import mypyc_attr

# How a message's properties are encoded: as its publisher's protocol sent them, so that a consumer of the same
# protocol gets the very same bytes. Stored on disk; never renumber.
NATIVE: Final = 0
AMQP091: Final = 1
MQTT5: Final = 2
AMQP10: Final = 3


@final
@mypyc_attr(acyclic=True)
class Source:
    """Where messages come from: what they were published to, by whom, and how their properties are encoded.

    One value serves all messages that a publisher sends to one topic; storage keeps it once per block.
    Compared by identity: make one and share it.
    """

    __slots__ = ("client_id", "encoding", "exchange", "place", "protocol", "stored", "topic")

    def __init__(
        self, topic: str, exchange: str = "", client_id: str = "", protocol: str = "", encoding: int = NATIVE
    ) -> None:
        # What every message looks at comes first: with thousands of sources it is read from memory, line by line.
        self.stored = b""
        """How it is stored; empty until it first is. Messages to many queues have a source each, in every commit."""
        self.place = 0
        """Where it stood in the source table of the block that it was last stored in."""
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
    """One message: a payload with its properties, as published. Never changed once it is made.

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
