"""The queues of one virtual host and the ways to them: exchanges, topic patterns, addresses. No messages."""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, final

from headrace.core.batch import Batch
from headrace.core.queue.queue import Queue
from headrace.core.routing.address import MAX_CACHED_KEY, is_address, is_addressable, parse_address, queue_pattern
from headrace.core.routing.exchange import Binding, Dropped, Exchange
from headrace.core.routing.exchanges import Exchanges
from headrace.core.routing.topics import TopicTree, key_of_topic
from headrace.errors import NotFound
from headrace.model import MQTT5, Source
from headrace.storage.api import BINDINGS, EXCHANGES, Items

DEFAULT_HOST: Final = "/"
TOPIC_EXCHANGE: Final = "amq.topic"
"""The exchange whose routing keys are plain topics."""
_SEPARATOR: Final = "\0"
_MAX_ROUTES: Final = 65_536
_log: Final = logging.getLogger("headrace.core")


def scoped(host: str, name: str) -> str:
    """Storage name of a thing in a virtual host; names of the default host are plain."""
    return name if host == DEFAULT_HOST else f"{host}{_SEPARATOR}{name}"


def unscoped(host: str, stored: str) -> str | None:
    """Name of a stored thing of this virtual host; None if it belongs to another."""
    if host == DEFAULT_HOST:
        return stored if _SEPARATOR not in stored else None
    prefix = host + _SEPARATOR
    return stored[len(prefix) :] if stored.startswith(prefix) else None


@final
class Topology:
    """The queues of one virtual host by name, and the ways that lead to them."""

    def __init__(self, host: str, alternate_of: Callable[[Exchange], str | None] | None = None) -> None:
        """`alternate_of` gives the exchange for what another cannot route, by its policy, too."""
        self.host = host
        self.exchanges = Exchanges(host, alternate_of)
        self.queues: dict[str, Queue] = {}
        self.direct: dict[str, Queue] = {}
        """Queues by key of the default exchange: all but those with names like addresses."""
        self._addressed: TopicTree[Queue] = TopicTree()
        self._captures: TopicTree[Queue] = TopicTree()
        self._reserves: TopicTree[Queue] = TopicTree()
        """Queues for addresses that match no other queue."""
        self._routes: dict[str, list[Queue]] = {}
        """Cached routes of addresses."""
        self.on_change: Callable[[], None] = _nothing
        """Called when routes of plain topics may have changed."""

    def load(self, items: Items) -> None:
        """Load exchanges and bindings from storage."""
        for key, value in items(EXCHANGES):
            if unscoped(self.host, key.decode()) is not None:
                self.exchanges.declare(Exchange.from_json(json.loads(value)))
        for key, value in items(BINDINGS):
            if unscoped(self.host, key.decode()) is not None:
                binding = Binding.from_json(json.loads(value))
                try:
                    self.exchanges.bind(binding)
                except NotFound as error:
                    _log.warning("%r leads nowhere and is left out: %s", binding, error)

    def queue(self, name: str) -> Queue:
        """Raises NotFound."""
        queue = self.queues.get(name)
        if queue is None:
            raise NotFound(f"no queue '{name}' in vhost '{self.host}'")
        return queue

    def add(self, queue: Queue) -> None:
        self.queues[queue.name] = queue
        if not is_address(queue.name):
            self.direct[queue.name] = queue
        for tree, pattern in self._patterns(queue):
            tree.add(pattern, queue)
        self._changed()

    def alter(self, queue: Queue, change: Callable[[], None]) -> None:
        """Change a queue's definition and update its patterns."""
        for tree, pattern in self._patterns(queue):
            tree.remove(pattern, queue)
        change()
        self.add(queue)

    def remove(self, batch: Batch, queue: Queue) -> None:
        """Remove a queue and the bindings to it."""
        self._forget(batch, self.exchanges.remove_queue(queue.name))
        del self.queues[queue.name]
        self.direct.pop(queue.name, None)
        for tree, pattern in self._patterns(queue):
            tree.remove(pattern, queue)
        self._changed()

    def of_exchange(
        self, exchange: str, key: str, headers: Mapping[str, object] | None, extra_keys: Sequence[str]
    ) -> list[Queue]:
        """The queues that an exchange routes to. Raises NotFound when there is no such exchange."""
        queues = self.queues
        if not exchange and not extra_keys:
            found = queues.get(key)
            return [found] if found is not None else []
        return [
            queue
            for name in self.exchanges.route(exchange, key, headers, extra_keys)
            if (queue := queues.get(name)) is not None
        ]

    def reaches_subscribers(
        self, exchange: str, key: str, headers: Mapping[str, object] | None, extra_keys: Sequence[str]
    ) -> bool:
        """True if a message passes `amq.topic`, and so reaches subscribers of plain topics."""
        return exchange == TOPIC_EXCHANGE or self.exchanges.passes(exchange, key, headers, extra_keys, TOPIC_EXCHANGE)

    def may_reach_subscribers(self, exchange: str) -> bool:
        """True if some messages of this exchange may pass `amq.topic`."""
        return exchange == TOPIC_EXCHANGE or self.exchanges.leads_to(exchange, TOPIC_EXCHANGE)

    def of_topic(self, topic: str) -> list[Queue]:
        """The queues whose patterns match an address, or that capture a plain topic.

        A plain topic is also a key of the exchange `amq.topic`: its levels are words.
        """
        if is_address(topic):
            found = self._routes.get(topic)
            if found is None:
                found = self._addressed.match(topic) or self._reserves.match(topic)
                if len(self._routes) >= _MAX_ROUTES:
                    self._routes.clear()
                if len(topic) <= MAX_CACHED_KEY:
                    self._routes[topic] = found
            return found
        queues = dict.fromkeys(self._captures.match(topic))
        queues.update(dict.fromkeys(self.of_exchange(TOPIC_EXCHANGE, key_of_topic(topic), None, ())))
        return list(queues)

    def _changed(self) -> None:
        self._routes.clear()
        self.on_change()

    def name_for(self, topic: str) -> str:
        """The queue to create for an address without a match. Raises Refused when it is no address."""
        return parse_address(topic).queue

    def declare_exchange(self, batch: Batch, exchange: Exchange, passive: bool = False) -> None:
        if self.exchanges.declare(exchange, passive) and exchange.durable:
            batch.define(EXCHANGES, self._key(exchange.name), _json(exchange.to_json()))

    def delete_exchange(self, batch: Batch, name: str, if_unused: bool = False) -> None:
        self._forget(batch, self.exchanges.delete(name, if_unused))
        self._changed()

    def bind(self, batch: Batch, binding: Binding) -> None:
        durable = True
        if not binding.to_exchange:
            durable = self.queue(binding.destination).durable
        if self.exchanges.bind(binding) and durable and self._is_durable(binding):
            batch.define(BINDINGS, self._binding_key(binding), _json(binding.to_json()))
        self._changed()

    def govern_exchanges(self) -> None:
        """Apply changed policies to all exchanges."""
        self.exchanges.govern()
        self._changed()

    def unbind(self, batch: Batch, binding: Binding) -> None:
        self._forget(batch, self.exchanges.unbind(binding))
        self._changed()

    def _is_durable(self, binding: Binding) -> bool:
        ends = [binding.source, binding.destination] if binding.to_exchange else [binding.source]
        return all(self.exchanges.get(name).durable for name in ends)

    def _forget(self, batch: Batch, dropped: Dropped) -> None:
        for exchange in dropped.exchanges:
            if exchange.durable:
                batch.define(EXCHANGES, self._key(exchange.name), None)
        for binding in dropped.bindings:
            queue = None if binding.to_exchange else self.queues.get(binding.destination)
            if queue is None or queue.durable:
                batch.define(BINDINGS, self._binding_key(binding), None)

    def _key(self, name: str) -> bytes:
        return scoped(self.host, name).encode()

    def _binding_key(self, binding: Binding) -> bytes:
        return self._key(json.dumps(binding.to_json(), sort_keys=True, separators=(",", ":")))

    def _patterns(self, queue: Queue) -> list[tuple[TopicTree[Queue], str]]:
        """All patterns of a queue, each with its tree."""
        definition = queue.definition
        found: dict[tuple[TopicTree[Queue], str], None] = {}
        if is_addressable(queue.name):
            found[self._addressed, queue_pattern(queue.name)] = None
        for pattern in definition.topics:
            found[self._reserves if definition.reserved else self._addressed, pattern] = None
            if definition.capture:
                found[self._captures, pattern] = None
        return list(found)


def topic_of(source: Source) -> str:
    """The message's topic for subscribers: the routing key of an exchange becomes levels."""
    return key_of_topic(source.topic) if source.exchange else source.topic


def key_of(source: Source) -> tuple[str, str]:
    """Exchange and routing key for AMQP consumers: a plain topic becomes a key of `amq.topic`."""
    if source.exchange or source.encoding != MQTT5 or is_address(source.topic):
        return source.exchange, source.topic
    return TOPIC_EXCHANGE, key_of_topic(source.topic)


def _nothing() -> None:
    return


def _json(values: Mapping[str, object]) -> bytes:
    return json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode()
