"""Publishing many messages as one: encoded rows to queues, exchanges and topics, in one commit. No wire, no files.

Rows are routed by what they have in common: a block whose messages all go to the same queues is stored as it is. Only
where single messages decide (a filter, an exchange of headers, a subscriber) are they looked at one by one.
"""

from collections.abc import Sequence
from typing import Final, final

from headrace.core.address import is_address
from headrace.core.confirms import Confirm
from headrace.core.entry import accept, accept_encoded
from headrace.core.ledger import Ledger
from headrace.core.line import Line
from headrace.core.properties import Codecs
from headrace.core.pubsub import PubSub
from headrace.core.queue import Queue
from headrace.core.queues import Queues
from headrace.core.replacement import Replacement
from headrace.core.routes import Route
from headrace.core.subscription import AT_LEAST_ONCE
from headrace.core.topics import check_topic
from headrace.core.topology import Topology, topic_of
from headrace.core.turn import Turn
from headrace.errors import HeadraceError, Refused
from headrace.model import Message, Source
from headrace.storage.api import Encoded

TO_QUEUE: Final = "queue"
TO_EXCHANGE: Final = "exchange"
TO_TOPIC: Final = "topic"


@final
class Bulk:
    """One write in bulk: rows are added piece by piece, then all of them are stored or none."""

    def __init__(
        self,
        topology: Topology,
        queues: Queues,
        pubsub: PubSub,
        codecs: Codecs,
        line: Line,
        ledger: Ledger,
        now_us: int,
    ) -> None:
        self._topology = topology
        self._queues = queues
        self._pubsub = pubsub
        self._codecs = codecs
        self._line = line
        self._ledger = ledger
        self._now_us = now_us
        self._turn = Turn()
        self._replacement: Replacement | None = None
        self.rows = 0
        self.unrouted = 0
        """How many messages no queue and no subscriber is there for."""

    def add(self, kind: str, name: str, rows: Encoded) -> None:
        """Add messages for a queue, an exchange or topics. Raises what publishing raises; then it must be given up."""
        self.rows += rows.count
        if kind == TO_QUEUE:
            self._give(self._queues.find(name), rows)
            return
        if kind == TO_EXCHANGE:
            self._topology.exchanges.check_publish(name)
            if self._topology.exchanges.looks_at_headers(name):
                self._add_by_headers(name, rows)
                return
        routes = [self._route(kind, name, source) for source in rows.sources()]
        index = rows.source_index()
        if index is None:
            self._send(routes[0], rows)
            return
        if all([route.queues == routes[0].queues and not _has_audience(route) for route in routes]):
            self._send(routes[0], rows)
            return
        for number, route in enumerate(routes):
            self._send(route, rows.take([row for row, source in enumerate(index) if source == number]))

    def replace(self, name: str, before: int) -> None:
        """Have what is added to a stream take the place of all that it has below the offset `before`, in one commit.

        What is published from there on meanwhile stays, behind it. Raises NotFound, and Refused for other queues.
        """
        self._replacement = Replacement(self._queues.find(name), before)
        self._turn.before_commit = self._replacement.add_to

    def commit(self, transaction: str, sequence: int, confirm: Confirm) -> None:
        """Store everything with the transaction's id, after what was called before; `confirm` is told how it ended."""
        self._ledger.note(self._turn, transaction, sequence, self.rows, self._now_us)

        def done(error: HeadraceError | None) -> None:
            self._ledger.settle(transaction)
            if self._replacement is not None:
                if error is None:
                    self._replacement.happened(self._line.open())
                self._replacement.hold(self._line.open(), False)
            confirm(error)

        self._turn.done = done
        if self._replacement is not None:
            self._replacement.hold(self._line.open())
        self._line.append(self._turn)

    def undo(self) -> None:
        """Nothing of it happens."""
        self._turn.unstage()
        self._turn = Turn()

    # -- routing -----------------------------------------------------------------------------------------------------

    def _route(self, kind: str, name: str, source: Source) -> Route:
        route = Route()
        if kind == TO_EXCHANGE:
            route.queues = self._topology.of_exchange(name, source.topic, None, ())
            if self._topology.reaches_subscribers(name, source.topic, None, ()):
                readers = self._pubsub.route(topic_of(source))
                route.live, route.keepers, route.shares = readers.live, readers.keepers, readers.shares
        elif is_address(source.topic):
            route.queues = self._topology.of_topic(source.topic) or [self._queues.landing(source.topic)]
        elif kind == TO_TOPIC:
            check_topic(source.topic)
            return self._pubsub.route(source.topic)
        else:
            raise Refused(f"messages are written to a queue, an exchange or a topic, not to a {kind}")
        return route

    def _add_by_headers(self, exchange: str, rows: Encoded) -> None:
        chosen: dict[Queue, list[int]] = {}
        for row, message in enumerate(rows.messages(0, rows.count)):
            headers = self._codecs.decode(message).headers
            key = message.source.topic
            queues = self._topology.of_exchange(exchange, key, headers, ())
            if self._topology.reaches_subscribers(exchange, key, headers, ()):
                route = self._pubsub.route(topic_of(message.source))
                self._pubsub.send(self._turn, route, message, AT_LEAST_ONCE, False, None)
                self.unrouted += not (queues or _has_audience(route))
            else:
                self.unrouted += not queues
            for queue in queues:
                chosen.setdefault(queue, []).append(row)
        for queue, numbers in chosen.items():
            self._give(queue, _only(rows, numbers))

    def _send(self, route: Route, rows: Encoded) -> None:
        for queue in route.queues:
            self._give(queue, rows)
        if _has_audience(route):
            for message in rows.messages(0, rows.count):
                self._pubsub.send(self._turn, route, message, AT_LEAST_ONCE, False, None)
        elif not route.queues:
            self.unrouted += rows.count

    def _give(self, queue: Queue, rows: Encoded) -> None:
        if queue.selector is not None:
            messages = rows.messages(0, rows.count)
            numbers = [row for row, message in enumerate(messages) if queue.admits(message)]
            if not numbers:
                return
            rows = _only(rows, numbers)
        if queue.durable:
            accept_encoded(queue, self._turn, rows, self._now_us)
            return
        accepted: Sequence[Message] = rows.messages(0, rows.count)
        for message in accepted:
            accept(queue, self._turn, message, self._now_us)


def _only(rows: Encoded, numbers: list[int]) -> Encoded:
    return rows if len(numbers) == rows.count else rows.take(numbers)


def _has_audience(route: Route) -> bool:
    return bool(route.live or route.keepers or route.shares)
