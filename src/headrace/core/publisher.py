"""One client's way to topics: what holds for a message however it came, over MQTT, HTTP or CoAP. No wire.

Routing is publishing.py's. Here is what comes before it: is the topic one, whose is it, and may the user do that.
"""

from typing import Final, final

from headrace.core.access.logins import Account
from headrace.core.access.permissions import PLAIN_TOPICS, Rights
from headrace.core.batch import Confirm
from headrace.core.broker import Broker
from headrace.core.pubsub.session import AT_LEAST_ONCE, Session
from headrace.core.routing.address import is_address, parse_address
from headrace.core.routing.topics import check_topic, quoted
from headrace.errors import AccessRefused
from headrace.model import Message, Source

_MAX_WAYS: Final = 256


@final
class _Way:
    """A topic that was published to: its source, and the name that must be writable."""

    __slots__ = ("name", "source")

    def __init__(self, source: Source, name: str) -> None:
        self.source = source
        self.name = name


@final
class Publisher:
    """Publishes for one client of one user. What repeats itself is looked up: 0.3 us a message above the broker's."""

    __slots__ = ("_account", "_broker", "_client_id", "_encoding", "_protocol", "_rights", "_ways")

    def __init__(
        self, broker: Broker, account: Account, rights: Rights, client_id: str, protocol: str, encoding: int
    ) -> None:
        self._broker = broker
        self._account = account
        self._rights = rights
        self._client_id = client_id
        self._protocol = protocol
        self._encoding = encoding
        self._ways: dict[str, _Way] = {}

    def publish(
        self,
        topic: str,
        payload: bytes,
        now_us: int,
        properties: bytes = b"",
        expiry_seconds: int | None = None,
        assurance: int = AT_LEAST_ONCE,
        retain: bool = False,
        confirm: Confirm | None = None,
        session: Session | None = None,
    ) -> int:
        """Send a message to all queues and subscribers that its topic concerns; returns how many they are.

        Raises Refused for a topic that is none, AccessRefused for one that is the server's or that the user may not
        write to, TooLarge. A settlement is not published: the protocol sees to those before.
        """
        way = self._ways.get(topic)
        if way is None or self._rights.topics or way.name not in self._rights.writable:
            way = self._check(topic)
        if self._account.is_metered:
            self._account.check_size(len(payload))
        expires_us = 0 if expiry_seconds is None else max(1, now_us + expiry_seconds * 1_000_000)
        message = Message(way.source, payload, now_us, properties, 0, expires_us)
        return self._broker.publish_topic(message, confirm, assurance, retain, session)

    def check(self, topic: str) -> None:
        """Raises what `publish` raises for the topic: for a message that is published later."""
        self._check(topic)

    def _check(self, topic: str) -> _Way:
        way = self._ways.get(topic) or self._way(topic)
        self._rights.check_topic_publish(topic, self._client_id)
        return way

    def check_rate(self, monotonic_us: int) -> None:
        """Count one message of a client that cannot be read from more slowly. Raises Unavailable for one too many."""
        self._broker.check_memory()
        if self._account.is_metered:
            self._account.check_rate(1, monotonic_us)

    def _way(self, topic: str) -> _Way:
        check_topic(topic)
        name = PLAIN_TOPICS
        if is_address(topic):
            name = parse_address(topic).queue
        elif topic.startswith("$"):  # MQTT 5 [4.7.2]
            raise AccessRefused(
                f"topic {quoted(topic)} is the server's: of those that begin with '$', $queue/<name> is for publishing"
            )
        source = Source(topic, "", self._client_id, self._protocol, self._encoding)
        way = _Way(source, name)
        if len(self._ways) >= _MAX_WAYS:
            self._ways.clear()
        self._ways[topic] = way
        return way
