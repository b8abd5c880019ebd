"""Permissions as stored, the rights that follow from them, and the scopes of tokens. No storage, no login.

The rules are RabbitMQ's: a pattern is searched for anywhere in a name, an empty one fits only an empty name, the
default exchange counts as `amq.default`; queues and exchanges share the patterns. Every protocol asks here.

    <audience>.read:<vhost>/<name>[/<routing key>]        also write and configure; `*` stands for anything
    <audience>.tag:<tag>

Parts are percent-encoded, so the default virtual host is `%2F`. A scope in any other form allows nothing.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Final, TypeVar, final
from urllib.parse import unquote

from headrace.core.queue.definition import QueueDefinition
from headrace.core.queue.queues import generated_name
from headrace.core.routing.address import QUEUE_PREFIX, is_address, is_read_address, parse_address
from headrace.core.routing.exchange import Binding, Exchange
from headrace.core.routing.topics import key_of_filter, key_of_topic
from headrace.errors import AccessRefused, NotFound, Refused
from headrace.storage.api import PERMISSIONS, TOPIC_PERMISSIONS

CONFIGURE: Final = "configure"
WRITE: Final = "write"
READ: Final = "read"

QUEUE: Final = "queue"
EXCHANGE: Final = "exchange"
ADDRESSES: Final = "$queue"
"""Pseudo-exchange of topic permissions for queue addresses; its topics lack the `$queue/`."""
PLAIN_TOPICS: Final = "amq.topic"
"""The exchange whose permissions count for plain topics; their levels are the words of its keys."""

_DEFAULT_EXCHANGE: Final = "amq.default"
_PLACES: Final = re.compile(r"\{(?:username|vhost|client_id)\}")
_MAX_REMEMBERED: Final = 4096


@dataclass(frozen=True)
class Permission:
    """Patterns for names of queues and exchanges."""

    user: str
    host: str
    configure: str = ""
    write: str = ""
    read: str = ""

    def check(self) -> None:
        """Raises Refused for invalid patterns."""
        for pattern in (self.configure, self.write, self.read):
            _compiled(pattern)


@dataclass(frozen=True)
class TopicPermission:
    """Patterns for routing keys of one exchange; `{username}`, `{vhost}` and `{client_id}` are filled in."""

    user: str
    host: str
    exchange: str
    write: str = ""
    read: str = ""

    def check(self) -> None:
        """Raises Refused for invalid patterns."""
        for pattern in (self.write, self.read):
            _compiled(_filled(pattern, self, ""))


@final
class Rights:
    """The rights of one user in one virtual host, shared by its connections: changes count at once."""

    __slots__ = ("_allowed", "_patterns", "_topic_patterns", "free", "host", "topics", "user", "watchers", "writable")

    def __init__(self, user: str, host: str) -> None:
        self.user = user
        self.host = host
        self.writable: set[str] = set()
        """Names known to be writable."""
        self.free = self.writable
        """Those that are writable with any key: the cheapest lookup, as every publish needs it."""
        self._allowed: dict[str, set[str]] = {CONFIGURE: set(), WRITE: self.writable, READ: set()}
        self._patterns: dict[str, re.Pattern[str]] = {}
        self.topics: dict[str, TopicPermission] = {}
        """Topic permissions by exchange; topics of other exchanges are free."""
        self._topic_patterns: dict[tuple[str, str, str], re.Pattern[str]] = {}
        self.watchers: dict[object, Callable[[], None]] = {}
        """Callbacks by connection, called after a change of rights."""

    def grant(self, permission: Permission | None, topics: Mapping[str, TopicPermission]) -> None:
        """Replace the rights; None for no rights."""
        given = permission or Permission(self.user, self.host)
        self._patterns = {
            CONFIGURE: _compiled(given.configure),
            WRITE: _compiled(given.write),
            READ: _compiled(given.read),
        }
        self.topics = dict(topics)
        self.free = set() if topics else self.writable
        self._topic_patterns.clear()
        for names in self._allowed.values():
            names.clear()

    def tell(self) -> None:
        """Tell all watchers that the rights may have changed."""
        for look in list(self.watchers.values()):
            look()

    # -- names and topics ----------------------------------------------------------------------------------------------

    def may(self, what: str, name: str) -> bool:
        """True if the user may configure, write or read the thing of this name."""
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
        """Raises AccessRefused if topic permissions of this exchange exist and none covers the key."""
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

    # -- operations ----------------------------------------------------------------------------------------------------

    def check_declare_queue(self, definition: QueueDefinition) -> None:
        """Check the declaration of a queue, its dead-letter exchange and its source, for a generated name too."""
        name = definition.name or generated_name()
        self.check(CONFIGURE, QUEUE, name)
        if definition.dead_letter_exchange is not None:
            self.check(READ, QUEUE, name)
            self.check(WRITE, EXCHANGE, definition.dead_letter_exchange)
        if definition.source:
            self.check(READ, QUEUE, definition.source)

    def check_declare_exchange(self, exchange: Exchange) -> None:
        """Check the declaration of an exchange; with an alternate it is read, and the alternate written."""
        self.check(CONFIGURE, EXCHANGE, exchange.name)
        if exchange.alternate is not None:
            self.check(READ, EXCHANGE, exchange.name)
            self.check(WRITE, EXCHANGE, exchange.alternate)

    def check_bind(self, binding: Binding) -> None:
        """Check a bind or unbind: the destination is written, the source read."""
        self.check(WRITE, EXCHANGE if binding.to_exchange else QUEUE, binding.destination)
        self.check(READ, EXCHANGE, binding.source)
        self.check_topic(READ, binding.source, binding.key)

    def check_publish(self, exchange: str, key: str, client_id: str = "") -> None:
        """Check a publish to an exchange; an address on the default exchange needs `check_topic_publish` too."""
        self.check(WRITE, EXCHANGE, exchange)
        self.check_topic(WRITE, exchange, key, client_id)
        if not exchange and is_address(key):
            self.check_topic_publish(key, client_id)

    def check_topic_publish(self, topic: str, client_id: str = "") -> None:
        """Check a publish to a plain topic or an address, or a settlement. Raises Refused for a bad address."""
        self._check_level(WRITE, topic, client_id)

    def check_topic_subscribe(self, topic_filter: str, client_id: str = "") -> None:
        """Check a subscription to plain topics or queue addresses."""
        self._check_level(READ, topic_filter, client_id)

    def may_publish(self, topic: str, client_id: str) -> bool:
        """True if `check_topic_publish` passes."""
        return self._may(WRITE, topic, client_id)

    def may_subscribe(self, topic_filter: str, client_id: str) -> bool:
        """True if `check_topic_subscribe` passes."""
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
                what = READ  # a reader settles
            self.check(what, QUEUE, address.queue)
            self.check_topic(what, ADDRESSES, topic.removeprefix(QUEUE_PREFIX), client_id)
        else:
            self.check(what, EXCHANGE, PLAIN_TOPICS)
            key = key_of_filter(topic) if what == READ else key_of_topic(topic)
            self.check_topic(what, PLAIN_TOPICS, key, client_id)


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern or "^$")
    except (re.error, OverflowError, RecursionError) as error:
        raise Refused(f"{pattern[:128]!r} is not a regular expression: {error}") from error


def _filled(pattern: str, permission: TopicPermission, client_id: str) -> str:
    values = {"{username}": permission.user, "{vhost}": permission.host, "{client_id}": client_id}
    return _PLACES.sub(lambda place: re.escape(values[place[0]]), pattern)


MAX_SCOPES: Final = 256
_TAG: Final = "tag"
_ANY: Final = "(?s:.*)"


@final
class _Scope:
    """One permission of a token: an operation, and regular expressions for virtual host, name and key."""

    __slots__ = ("exchange", "host", "key", "name", "what")

    def __init__(self, what: str, host: str, name: str, key: str) -> None:
        self.what = what
        self.host = _expression(host)
        self.name = _expression(name)
        self.exchange = unquote(name) if key != "*" else ""
        """Exchange of the keys; "" if all keys are allowed."""
        self.key = _expression(key)


@final
class Grants:
    """The permissions and tags of one token."""

    __slots__ = ("_scopes", "_user", "tags")

    def __init__(self, user: str, audience: str, words: Iterable[str]) -> None:
        self._user = user
        self._scopes: list[_Scope] = []
        tags: list[str] = []
        for word in words:
            if not word.startswith(audience + "."):
                continue
            what, _, rest = word[len(audience) + 1 :].partition(":")
            if what == _TAG and rest:
                tags.append(rest)
            elif what in (CONFIGURE, WRITE, READ) and len(self._scopes) < MAX_SCOPES:
                self._add(what, rest.split("/"))
        self.tags = tuple(dict.fromkeys(tags))

    def _add(self, what: str, parts: list[str]) -> None:
        if len(parts) not in (2, 3) or not all(parts):
            return
        host, name, key = parts if len(parts) == 3 else [*parts, "*"]
        if key == "*" or "*" not in name:  # keys need the exact name of their exchange
            self._scopes.append(_Scope(what, host, name, key))

    def permission(self, host: str) -> Permission | None:
        """The token's permission in a virtual host; None if its user may not enter."""
        found = [scope for scope in self._scopes if _fits(scope.host, host)]
        if not found:
            return None
        patterns = [_either([scope.name for scope in found if scope.what == what]) for what in (CONFIGURE, WRITE, READ)]
        return Permission(self._user, host, *patterns)

    def topics(self, host: str) -> dict[str, TopicPermission]:
        """The token's topic permissions in a virtual host, by exchange."""
        found = [scope for scope in self._scopes if _fits(scope.host, host)]
        exchanges = {scope.exchange for scope in found if scope.exchange}
        return {
            name: TopicPermission(self._user, host, name, _keys(found, WRITE, name), _keys(found, READ, name))
            for name in exchanges
        }


def _keys(scopes: list[_Scope], what: str, exchange: str) -> str:
    return _either([scope.key for scope in scopes if scope.what == what and _fits(scope.name, exchange)])


def _either(patterns: list[str]) -> str:
    """A regular expression for texts that one of the patterns matches entirely; "" for none."""
    return rf"^(?:{'|'.join(patterns)})\Z" if patterns else ""


def _fits(pattern: str, name: str) -> bool:
    return re.fullmatch(pattern, name) is not None


def _expression(pattern: str) -> str:
    # A character class instead of a backslash before a brace: `{username}` in a scope is a plain name.
    parts = [re.escape(unquote(part)).replace(r"\{", "[{]") for part in pattern.split("*")]
    return _ANY.join(parts)


_SEPARATOR: Final = "\0"

_Kind = TypeVar("_Kind", Permission, TopicPermission)
Change = tuple[str, bytes, bytes | None]
"""A table, a key and its new value; None deletes it."""


@final
class Permissions:
    """All permissions in memory. Methods return changes for storage; `take` applies them here."""

    def __init__(self) -> None:
        self._permissions: dict[tuple[str, str], Permission] = {}
        """By user and host."""
        self._topics: dict[tuple[str, str], dict[str, TopicPermission]] = {}
        """By user and host, then by exchange."""
        self._rights: dict[tuple[str, str], Rights] = {}

    def all(self) -> list[Permission]:
        """All permissions, by host and user."""
        return sorted(self._permissions.values(), key=lambda permission: (permission.host, permission.user))

    def topics(self) -> list[TopicPermission]:
        """All topic permissions, by host, user and exchange."""
        found = [permission for topics in self._topics.values() for permission in topics.values()]
        return sorted(found, key=lambda permission: (permission.host, permission.user, permission.exchange))

    def rights(self, user: str, host: str) -> Rights | None:
        """Rights of the user in the virtual host; None if it may not enter."""
        if (user, host) not in self._permissions:
            return None
        rights = self._rights.get((user, host))
        if rights is None:
            rights = self._rights[user, host] = Rights(user, host)
            self._grant(user, host)
        return rights

    def tell(self, user: str, host: str) -> None:
        """Tell the watchers of this user's rights."""
        rights = self._rights.get((user, host))
        if rights is not None:
            rights.tell()

    # -- changes -------------------------------------------------------------------------------------------------------

    def without(self, user: str, host: str) -> list[Change]:
        """Delete a user's permission for a virtual host. Raises NotFound."""
        if (user, host) not in self._permissions:
            raise NotFound(f"user '{user}' has no permissions in vhost '{host}'")
        return [(PERMISSIONS, _key(host, user), None)]

    def without_topics(self, user: str, host: str, exchange: str | None) -> list[Change]:
        """Delete topic permissions of a user, in one exchange or in all. Raises NotFound if there are none."""
        topics = self._topics.get((user, host), {})
        names = [name for name in topics if exchange is None or name == exchange]
        if not names:
            raise NotFound(f"user '{user}' has no topic permissions there in vhost '{host}'")
        return [(TOPIC_PERMISSIONS, _key(host, user, name), None) for name in names]

    def without_user(self, name: str) -> list[Change]:
        """Delete all permissions of a user."""
        return self._without([pair for pair in {**self._permissions, **self._topics} if pair[0] == name])

    def without_host(self, name: str) -> list[Change]:
        """Delete all permissions in a virtual host."""
        return self._without([pair for pair in {**self._permissions, **self._topics} if pair[1] == name])

    def _without(self, pairs: list[tuple[str, str]]) -> list[Change]:
        changes: list[Change] = []
        for user, host in pairs:
            if (user, host) in self._permissions:
                changes.append((PERMISSIONS, _key(host, user), None))
            for exchange in self._topics.get((user, host), {}):
                changes.append((TOPIC_PERMISSIONS, _key(host, user, exchange), None))
        return changes

    def take(self, table: str, key: bytes, value: bytes | None) -> None:
        """Apply a stored entry, or one about to be stored."""
        host, user, *exchange = key.decode().split(_SEPARATOR)
        if table == PERMISSIONS:
            if value is None:
                self._permissions.pop((user, host), None)
            else:
                self._permissions[user, host] = _read(Permission, value)
        else:
            topics = self._topics.setdefault((user, host), {})
            if value is None:
                topics.pop(exchange[0], None)
            else:
                topics[exchange[0]] = _read(TopicPermission, value)
            if not topics:
                del self._topics[user, host]
        self._grant(user, host)

    def _grant(self, user: str, host: str) -> None:
        rights = self._rights.get((user, host))
        if rights is not None:
            rights.grant(self._permissions.get((user, host)), self._topics.get((user, host), {}))


def putting(permission: Permission | TopicPermission) -> Change:
    """The change that stores a permission."""
    if isinstance(permission, TopicPermission):
        key = _key(permission.host, permission.user, permission.exchange)
        return TOPIC_PERMISSIONS, key, to_bytes(asdict(permission))
    return PERMISSIONS, _key(permission.host, permission.user), to_bytes(asdict(permission))


def place_of(key: bytes) -> tuple[str, str]:
    """Host and user of a key, in either table."""
    host, user, *_ = key.decode().split(_SEPARATOR)
    return host, user


def to_bytes(values: object) -> bytes:
    """A table's value as JSON."""
    return json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode()


def _key(*names: str) -> bytes:
    return _SEPARATOR.join(names).encode()


def _read(kind: type[_Kind], value: bytes) -> _Kind:
    """Read a stored permission, ignoring unknown members."""
    known = {name: text for name, text in json.loads(value).items() if name in kind.__dataclass_fields__}
    found: _Kind = kind(**known)
    return found
