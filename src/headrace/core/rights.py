"""What a user may do in a virtual host: configure, write, read, by patterns over names and topics. No storage.

The rules are RabbitMQ's: a pattern is searched for anywhere in a name, an empty one fits only an empty name, the
default exchange counts as `amq.default`; queues and exchanges share the patterns. Every protocol asks here.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, final

from headrace.core.address import QUEUE_PREFIX, is_address, is_read_address, parse_address
from headrace.core.definition import QueueDefinition
from headrace.core.exchange import Binding, Exchange
from headrace.core.queues import generated_name
from headrace.errors import AccessRefused, Refused

CONFIGURE: Final = "configure"
WRITE: Final = "write"
READ: Final = "read"

QUEUE: Final = "queue"
EXCHANGE: Final = "exchange"
ADDRESSES: Final = "$queue"
"""Stands for an exchange in topic permissions: its topics are queue addresses without their `$queue/`."""
PLAIN_TOPICS: Final = "amq.topic"
"""The exchange whose permissions count for plain topics, whose levels are the words of its keys."""

_DEFAULT_EXCHANGE: Final = "amq.default"
_AS_KEY: Final = str.maketrans("/.+", "./*")
_PLACES: Final = re.compile(r"\{(?:username|vhost|client_id)\}")
_MAX_REMEMBERED: Final = 4096


@dataclass(frozen=True)
class Permission:
    """Patterns over the names of queues and exchanges."""

    user: str
    host: str
    configure: str = ""
    write: str = ""
    read: str = ""

    def check(self) -> None:
        """Raises Refused for patterns that make no sense."""
        for pattern in (self.configure, self.write, self.read):
            _compiled(pattern)


@dataclass(frozen=True)
class TopicPermission:
    """Patterns over the routing keys of one exchange; `{username}`, `{vhost}` and `{client_id}` are filled in."""

    user: str
    host: str
    exchange: str
    write: str = ""
    read: str = ""

    def check(self) -> None:
        """Raises Refused for patterns that make no sense."""
        for pattern in (self.write, self.read):
            _compiled(_filled(pattern, self, ""))


@final
class Rights:
    """The rights of one user in one virtual host. All connections share them: what is changed counts at once."""

    __slots__ = ("_allowed", "_patterns", "_topic_patterns", "host", "topics", "user", "watchers", "writable")

    def __init__(self, user: str, host: str) -> None:
        self.user = user
        self.host = host
        self.writable: set[str] = set()
        """Names that were found to be writable: looked up for every publish, so kept where that costs least."""
        self._allowed: dict[str, set[str]] = {CONFIGURE: set(), WRITE: self.writable, READ: set()}
        self._patterns: dict[str, re.Pattern[str]] = {}
        self.topics: dict[str, TopicPermission] = {}
        """By exchange; only where there is one do topics matter."""
        self._topic_patterns: dict[tuple[str, str, str], re.Pattern[str]] = {}
        self.watchers: dict[object, Callable[[], None]] = {}
        """By connection, what is called when they are other rights."""

    def grant(self, permission: Permission | None, topics: Mapping[str, TopicPermission]) -> None:
        """Have these rights from now on; None for no rights at all."""
        given = permission or Permission(self.user, self.host)
        self._patterns = {
            CONFIGURE: _compiled(given.configure),
            WRITE: _compiled(given.write),
            READ: _compiled(given.read),
        }
        self.topics = dict(topics)
        self._topic_patterns.clear()
        for names in self._allowed.values():
            names.clear()

    def tell(self) -> None:
        """Have everybody look who does something by these rights: they may be others now."""
        for look in list(self.watchers.values()):
            look()

    # -- names and topics --------------------------------------------------------------------------------------------

    def may(self, what: str, name: str) -> bool:
        """Whether the user may configure, write or read what has this name."""
        name = name or _DEFAULT_EXCHANGE
        return self._patterns[what].search(name) is not None

    def check(self, what: str, kind: str, name: str) -> None:
        """Raises AccessRefused unless the user may configure, write or read the queue or exchange of this name."""
        allowed = self._allowed[what]
        if name in allowed:
            return
        if not self.may(what, name):
            raise AccessRefused(
                f"{what} access to {kind} '{name or _DEFAULT_EXCHANGE}' in vhost '{self.host}' refused "
                f"for user '{self.user}'"
            )
        if len(allowed) >= _MAX_REMEMBERED:
            allowed.clear()
        allowed.add(name)

    def check_topic(self, what: str, exchange: str, key: str, client_id: str = "") -> None:
        """Raises AccessRefused when there are permissions for topics of this exchange and they do not have this one."""
        permission = self.topics.get(exchange)
        if permission is None:
            return
        if self._topic_pattern(what, permission, client_id).search(key) is None:
            raise AccessRefused(
                f"{what} access to topic '{key}' in exchange '{exchange}' in vhost '{self.host}' refused "
                f"for user '{self.user}'"
            )

    def _topic_pattern(self, what: str, permission: TopicPermission, client_id: str) -> re.Pattern[str]:
        text = permission.write if what == WRITE else permission.read
        place = (what, permission.exchange, client_id if "{client_id}" in text else "")
        found = self._topic_patterns.get(place)
        if found is None:
            if len(self._topic_patterns) >= _MAX_REMEMBERED:
                self._topic_patterns.clear()
            found = self._topic_patterns[place] = _compiled(_filled(text, permission, client_id))
        return found

    # -- what an operation needs -------------------------------------------------------------------------------------

    def check_declare_queue(self, definition: QueueDefinition) -> None:
        """Dead letters are read from it and written where they go; its source is read. Names that the server gives
        are checked too."""
        name = definition.name or generated_name()
        self.check(CONFIGURE, QUEUE, name)
        if definition.dead_letter_exchange is not None:
            self.check(READ, QUEUE, name)
            self.check(WRITE, EXCHANGE, definition.dead_letter_exchange)
        if definition.source:
            self.check(READ, QUEUE, definition.source)

    def check_declare_exchange(self, exchange: Exchange) -> None:
        """What it cannot route is read from it and written to its alternate."""
        self.check(CONFIGURE, EXCHANGE, exchange.name)
        if exchange.alternate is not None:
            self.check(READ, EXCHANGE, exchange.name)
            self.check(WRITE, EXCHANGE, exchange.alternate)

    def check_bind(self, binding: Binding) -> None:
        """To bind and to unbind: the destination is written to, the source is read from."""
        self.check(WRITE, EXCHANGE if binding.to_exchange else QUEUE, binding.destination)
        self.check(READ, EXCHANGE, binding.source)
        self.check_topic(READ, binding.source, binding.key)

    def check_publish(self, exchange: str, key: str, client_id: str = "") -> None:
        """To publish to an exchange; an address on the default exchange needs what `check_topic_publish` asks too."""
        self.check(WRITE, EXCHANGE, exchange)
        self.check_topic(WRITE, exchange, key, client_id)
        if not exchange and is_address(key):
            self.check_topic_publish(key, client_id)

    def check_topic_publish(self, topic: str, client_id: str = "") -> None:
        """To publish to a plain topic, to an address, or a settlement. Raises Refused for what names no queue."""
        self._check_level(WRITE, topic, client_id)

    def check_topic_subscribe(self, topic_filter: str, client_id: str = "") -> None:
        """To read what a filter fits, over plain topics or queue addresses."""
        self._check_level(READ, topic_filter, client_id)

    def may_publish(self, topic: str, client_id: str) -> bool:
        """Whether `check_topic_publish` has nothing against it."""
        return self._may(WRITE, topic, client_id)

    def may_subscribe(self, topic_filter: str, client_id: str) -> bool:
        """Whether `check_topic_subscribe` has nothing against it."""
        return self._may(READ, topic_filter, client_id)

    def _may(self, what: str, topic: str, client_id: str) -> bool:
        try:
            self._check_level(what, topic, client_id)
        except Refused:
            return False
        return True

    def _check_level(self, what: str, topic: str, client_id: str) -> None:
        if is_read_address(topic):
            address = parse_address(topic)
            if address.verb:
                what = READ  # settling is the reader's
            self.check(what, QUEUE, address.queue)
            self.check_topic(what, ADDRESSES, topic.removeprefix(QUEUE_PREFIX), client_id)
        else:
            self.check(what, EXCHANGE, PLAIN_TOPICS)
            self.check_topic(what, PLAIN_TOPICS, topic.translate(_AS_KEY), client_id)


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern or "^$")
    except (re.error, OverflowError, RecursionError) as error:
        raise Refused(f"{pattern[:128]!r} is not a regular expression: {error}") from error


def _filled(pattern: str, permission: TopicPermission, client_id: str) -> str:
    values = {"{username}": permission.user, "{vhost}": permission.host, "{client_id}": client_id}
    return _PLACES.sub(lambda place: re.escape(values[place[0]]), pattern)
