"""Who may do what where, as it is stored, and the rights that follow. Storing: access.py. The rules: rights.py."""

import json
from dataclasses import asdict
from typing import Final, TypeVar, final

from headrace.core.rights import Permission, Rights, TopicPermission
from headrace.errors import NotFound
from headrace.storage.api import PERMISSIONS, TOPIC_PERMISSIONS

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


def with_permission(permission: Permission) -> Change:
    """A permission as it is stored."""
    return PERMISSIONS, _key(permission.host, permission.user), to_bytes(asdict(permission))


def with_topic_permission(permission: TopicPermission) -> Change:
    """A topic permission as it is stored."""
    key = _key(permission.host, permission.user, permission.exchange)
    return TOPIC_PERMISSIONS, key, to_bytes(asdict(permission))


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
