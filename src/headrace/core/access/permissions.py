"""Permissions as stored, the rights that follow from them, and the scopes of tokens. No storage, no login.

The rules are RabbitMQ's: a pattern is searched for anywhere in a name, an empty one fits only an empty name, the
default exchange counts as `amq.default`; queues and exchanges share the patterns. Every protocol asks here.

    <audience>.read:<vhost>/<name>[/<routing key>]        also write and configure; `*` stands for anything
    <audience>.tag:<tag>

Parts are percent-encoded, so the default virtual host is `%2F`. A scope that is written otherwise allows nothing.
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
"""Stands for an exchange in topic permissions: its topics are queue addresses without their `$queue/`."""
PLAIN_TOPICS: Final = "amq.topic"
"""The exchange whose permissions count for plain topics, whose levels are the words of its keys."""

_DEFAULT_EXCHANGE: Final = "amq.default"
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
    """One permission: what may be done, and regular expressions for virtual host, name and key."""

    __slots__ = ("exchange", "host", "key", "name", "what")

    def __init__(self, what: str, host: str, name: str, key: str) -> None:
        self.what = what
        self.host = _expression(host)
        self.name = _expression(name)
        self.exchange = unquote(name) if key != "*" else ""
        """Whose keys it is about; "" where all keys are allowed."""
        self.key = _expression(key)


@final
class Grants:
    """The permissions and tags that one token carries."""

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
        if key == "*" or "*" not in name:  # keys belong to one exchange, which has to be named
            self._scopes.append(_Scope(what, host, name, key))

    def permission(self, host: str) -> Permission | None:
        """What the token allows in a virtual host; None when its bearer may not even enter."""
        found = [scope for scope in self._scopes if _fits(scope.host, host)]
        if not found:
            return None
        patterns = [_either([scope.name for scope in found if scope.what == what]) for what in (CONFIGURE, WRITE, READ)]
        return Permission(self._user, host, *patterns)

    def topics(self, host: str) -> dict[str, TopicPermission]:
        """To which keys the token bounds its bearer, by exchange."""
        found = [scope for scope in self._scopes if _fits(scope.host, host)]
        exchanges = {scope.exchange for scope in found if scope.exchange}
        return {
            name: TopicPermission(self._user, host, name, _keys(found, WRITE, name), _keys(found, READ, name))
            for name in exchanges
        }


def _keys(scopes: list[_Scope], what: str, exchange: str) -> str:
    return _either([scope.key for scope in scopes if scope.what == what and _fits(scope.name, exchange)])


def _either(patterns: list[str]) -> str:
    """A regular expression for whatever one of them fits entirely; "" for nothing."""
    return rf"^(?:{'|'.join(patterns)})\Z" if patterns else ""


def _fits(pattern: str, name: str) -> bool:
    return re.fullmatch(pattern, name) is not None


def _expression(pattern: str) -> str:
    # A class instead of a backslash before a brace: `{username}` in a scope is a name like any other.
    parts = [re.escape(unquote(part)).replace(r"\{", "[{]") for part in pattern.split("*")]
    return _ANY.join(parts)


_SEPARATOR: Final = "\0"

_Kind = TypeVar("_Kind", Permission, TopicPermission)
Change = tuple[str, bytes, bytes | None]
"""A table, a key in it, and its value from now on."""


@final
class Permissions:
    """All permissions in memory. What a change would be in storage is returned; `take` has it here."""

    def __init__(self) -> None:
        self._permissions: dict[tuple[str, str], Permission] = {}
        """By user and host."""
        self._topics: dict[tuple[str, str], dict[str, TopicPermission]] = {}
        """By user and host, then by exchange."""
        self._rights: dict[tuple[str, str], Rights] = {}

    def all(self) -> list[Permission]:
        """By host and user."""
        return sorted(self._permissions.values(), key=lambda permission: (permission.host, permission.user))

    def topics(self) -> list[TopicPermission]:
        """By host, user and exchange."""
        found = [permission for topics in self._topics.values() for permission in topics.values()]
        return sorted(found, key=lambda permission: (permission.host, permission.user, permission.exchange))

    def rights(self, user: str, host: str) -> Rights | None:
        """What the user may do in the virtual host; None when it may not even enter."""
        if (user, host) not in self._permissions:
            return None
        rights = self._rights.get((user, host))
        if rights is None:
            rights = self._rights[user, host] = Rights(user, host)
            self._grant(user, host)
        return rights

    def tell(self, user: str, host: str) -> None:
        """Have everybody look who does something by the rights of this user."""
        rights = self._rights.get((user, host))
        if rights is not None:
            rights.tell()

    # -- changes -----------------------------------------------------------------------------------------------------

    def without(self, user: str, host: str) -> list[Change]:
        """Let a user into a virtual host no more. Raises NotFound when it could not enter anyway."""
        if (user, host) not in self._permissions:
            raise NotFound(f"user '{user}' has no permissions in vhost '{host}'")
        return [(PERMISSIONS, _key(host, user), None)]

    def without_topics(self, user: str, host: str, exchange: str | None) -> list[Change]:
        """Bound a user no more, in one exchange or in all. Raises NotFound when there was no bound."""
        topics = self._topics.get((user, host), {})
        names = [name for name in topics if exchange is None or name == exchange]
        if not names:
            raise NotFound(f"user '{user}' has no topic permissions there in vhost '{host}'")
        return [(TOPIC_PERMISSIONS, _key(host, user, name), None) for name in names]

    def without_user(self, name: str) -> list[Change]:
        """A user goes: all its permissions do."""
        return self._without([pair for pair in {**self._permissions, **self._topics} if pair[0] == name])

    def without_host(self, name: str) -> list[Change]:
        """A virtual host goes: all permissions there do."""
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
        """Have what storage has, or is about to have."""
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
    """The host and the user of a key of either table."""
    host, user, *_ = key.decode().split(_SEPARATOR)
    return host, user


def to_bytes(values: object) -> bytes:
    """A value of the tables, as JSON."""
    return json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode()


def _key(*names: str) -> bytes:
    return _SEPARATOR.join(names).encode()


def _read(kind: type[_Kind], value: bytes) -> _Kind:
    """What was stored; members that are not known are ignored."""
    known = {name: text for name, text in json.loads(value).items() if name in kind.__dataclass_fields__}
    found: _Kind = kind(**known)
    return found
