"""How consumers come to a queue and leave it, and what they take or look at besides. Settling is in broker.py.

What they are dealt is in group.py, what a work group gives to those who ask in taking.py.
"""

from collections.abc import Callable
from typing import final

from headrace.clock import Clock
from headrace.core.address import effective_group
from headrace.core.browser import Browser, Show
from headrace.core.definition import EPHEMERAL
from headrace.core.delivery import Consumer, Delivery
from headrace.core.group import Group
from headrace.core.line import Line
from headrace.core.modes import mode_to_join
from headrace.core.position import RESUME, offset_at, parse_position
from headrace.core.queue import DEFAULT_GROUP
from headrace.core.queues import Queues
from headrace.core.readers import group_named
from headrace.core.stream import StreamGroup
from headrace.core.taking import reclaim, take_one
from headrace.core.work import WorkGroup
from headrace.errors import Refused
from headrace.selector import Selector
from headrace.storage.group_state import STREAM, WORK


@final
class Consuming:
    """The way of consumers into the groups of one virtual host, and out again."""

    def __init__(self, queues: Queues, line: Line, clock: Clock) -> None:
        self._queues = queues
        self._line = line
        self._clock = clock

    def join(
        self,
        name: str,
        consumer: Consumer,
        group: str,
        key_filter: str,
        mode: int,
        position: object,
        auto_commit: bool,
        exclusive: bool,
    ) -> Group:
        """See Broker.consume."""
        queue = self._queues.usable(name, consumer.owner)
        place = parse_position(position)
        mode = mode or mode_to_join(queue, group)
        group = effective_group(group or (consumer.name if mode == STREAM else DEFAULT_GROUP), key_filter)
        turn = self._line.open()
        members = group_named(queue, turn, group, mode, key_filter, auto_commit)
        if queue.definition.kind == EPHEMERAL:
            consumer.auto_ack = True
        if isinstance(members, StreamGroup):
            members.agree(auto_commit)
            members.select(consumer.selector)
            consumer.selector = None  # the readers of a stream have one position, and so one selector
        is_first = not len(members.consumers)
        members.consumers.join(consumer, exclusive)
        consumer.group = members
        queue.had_consumers = True
        queue.touch(self._clock.now_us())
        if isinstance(members, StreamGroup) and place[0] != RESUME and is_first:
            members.seek(turn, offset_at(queue, place))
        self._line.pump_soon(queue)
        return members

    def leave(self, consumer: Consumer, keep: bool) -> None:
        """See Broker.cancel."""
        group = consumer.group
        if group is None:
            return
        queue = group.queue
        if keep and consumer.holding:
            group.consumers.leave(consumer)
            queue.touch(self._clock.now_us())
        else:
            queue.leave(self._line.open(), consumer, self._clock.now_us())
        if queue.definition.auto_delete and queue.had_consumers and not queue.consumers:
            self._queues.drop(queue)
        else:
            self._line.pump_soon(queue)

    def take(self, name: str, consumer: Consumer, group: str) -> Delivery | None:
        """See Broker.get."""
        queue = self._queues.usable(name, consumer.owner)
        if queue.definition.is_stream:
            raise Refused(f"queue '{name}' is a stream: consume it, single messages cannot be taken from it")
        turn = self._line.open()
        members = group_named(queue, turn, group or DEFAULT_GROUP, WORK)
        queue.touch(self._clock.now_us())
        assert isinstance(members, WorkGroup)
        if consumer.group not in (None, members):
            raise Refused(f"consumer {consumer.name!r} takes from another group: one consumer serves one group")
        delivery = take_one(members, turn, consumer, self._clock.now_us())
        if consumer.holding:
            consumer.group = members
        return delivery

    def reclaim(self, name: str, group: str, consumer: Consumer) -> list[Delivery]:
        """See Broker.reclaim."""
        queue = self._queues.topology.queues.get(name)
        members = queue.groups.get(group) if queue is not None and not queue.is_gone else None
        return reclaim(members, consumer, self._clock.now_us()) if isinstance(members, WorkGroup) else []

    def browse(
        self, name: str, show: Show, selector: Selector | None, ended: Callable[[], None], owner: object
    ) -> Browser:
        """See Broker.browse."""
        queue = self._queues.usable(name, owner)
        browser = Browser(queue, show, selector, ended)
        queue.browsers += (browser,)
        queue.touch(self._clock.now_us())
        return browser

    def end_browser(self, browser: Browser) -> None:
        """See Broker.end_browser."""
        queue = browser.queue
        queue.browsers = tuple([other for other in queue.browsers if other is not browser])
