"""A link that browses a queue: its receiver sees messages and takes none. Those that take are in consuming.py."""

from typing import final

from headrace.core.broker import Broker
from headrace.core.browser import Browser, Found
from headrace.core.delivery import Delivery
from headrace.errors import ProtocolError
from headrace.protocols.amqp10.consuming import own_message, route_of
from headrace.protocols.amqp10.filters import Wanted
from headrace.protocols.amqp10.frames import RESOURCE_DELETED
from headrace.protocols.amqp10.head import with_changes
from headrace.protocols.amqp10.outgoing import Origin, OutgoingLink
from headrace.protocols.amqp10.sections import joined, parts, stored
from headrace.protocols.amqp10.states import Outcome


@final
class Browsing(Origin):
    """What one link is shown of a queue, whatever it says of it."""

    def __init__(self, broker: Broker, queue: str, tells_route: bool, wanted: Wanted, owner: object) -> None:
        self._broker = broker
        self.queue = queue
        self._tells_route = tells_route
        self._link: OutgoingLink | None = None
        self._browser: Browser = broker.browse(queue, self._show, wanted.selector, self._ended, owner)

    def open(self, link: OutgoingLink) -> None:
        self._link = link

    def allow(self, count: int) -> None:
        self._broker.allow_browser(self._browser, count)

    def settled(self, delivery: Delivery, outcome: Outcome) -> None:
        return

    def leave(self) -> None:
        self._broker.end_browser(self._browser)

    def end(self, is_closed: bool) -> None:
        self.leave()

    def _show(self, found: list[Found]) -> None:
        link = self._link
        if link is None or link.is_over:
            return
        messages: list[bytes] = []
        for _, message in found:
            properties, payload = own_message(self._broker, message)
            if self._tells_route:
                head, footer = parts(properties)
                properties = stored(properties[0], with_changes(head, None, route_of(message)), footer)
            messages.append(joined(properties, payload))
        link.send(messages, None)

    def _ended(self) -> None:
        if self._link is not None:
            self._link.detach(ProtocolError(RESOURCE_DELETED, f"the queue '{self.queue}' was deleted"))
