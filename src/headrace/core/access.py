"""Users and what they may do, kept in storage: add, change, remove, list, log in. The rules of it are in rights.py.

A change counts at once, for connections that are open too; `done` hears when it would survive a crash, or that it is
taken back because it could not be stored. Nothing is ever told about a password.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from typing import Final, TypeVar, final

from headrace.clock import Clock
from headrace.core.account import Account
from headrace.core.bearers import Bearers, Tokens, is_token
from headrace.core.hosts import Hosts
from headrace.core.logins import Admit, Background, Login, Logins
from headrace.core.passwords import hash_password
from headrace.core.rights import Permission, Rights, TopicPermission
from headrace.core.scopes import Grants
from headrace.core.topology import DEFAULT_HOST
from headrace.core.users import GUEST, Limits, User, check_name, check_tags, guest
from headrace.errors import HeadraceError, NotFound, Refused
from headrace.storage.api import HOSTS, PERMISSIONS, TOPIC_PERMISSIONS, USERS, Commit, Done, Engine

_SEPARATOR: Final = "\0"
_MAX_PASSWORD_BYTES: Final = 1024

_Kind = TypeVar("_Kind", Permission, TopicPermission)
_Change = tuple[str, bytes, bytes | None]
"""A table, a key in it, and its value from now on."""


@final
class Access:
    """Everybody who may come in."""

    def __init__(self, engine: Engine, clock: Clock, background: Background, hosts: Hosts) -> None:
        self._engine = engine
        self._background = background
        self._hosts = hosts
        self._logins = Logins(background, clock)
        self._tokens: Tokens | None = None
        self._bearers = Bearers(clock)
        self._accounts: dict[str, Account] = {}
        self._permissions: dict[tuple[str, str], Permission] = {}
        """By user and host."""
        self._topics: dict[tuple[str, str], dict[str, TopicPermission]] = {}
        """By user and host, then by exchange."""
        self._rights: dict[tuple[str, str], Rights] = {}
        hosts.on_delete.append(self._forget_host)
        if engine.get(HOSTS, DEFAULT_HOST.encode()) is None:
            self._begin()
        for table in (USERS, PERMISSIONS, TOPIC_PERMISSIONS):
            for key, value in engine.items(table):
                self._take(table, key, value)

    def _begin(self) -> None:
        """A fresh directory: guest may do everything in the default host. Once removed, guest does not come back."""
        everything = Permission(GUEST, DEFAULT_HOST, ".*", ".*", ".*")
        commit = Commit()
        commit.put(HOSTS, DEFAULT_HOST.encode(), _json({"name": DEFAULT_HOST}))
        commit.put(USERS, GUEST.encode(), _json(guest().to_json()))
        commit.put(PERMISSIONS, _key(DEFAULT_HOST, GUEST), _json(asdict(everything)))
        self._engine.commit(commit, _raise)
        self._engine.sync()

    # -- coming in ---------------------------------------------------------------------------------------------------

    def login(self, login: Login, admit: Admit) -> None:
        """Have `admit` told the account of the user, or None when the login is refused.

        It is told at once when the same login was right before; else after the password was checked aside. Where
        tokens are taken, a password may be one.
        """
        if self._tokens is not None and login.password is not None and is_token(login.password):
            self._logins.check_token(login, self._tokens, self._bearers, self._accounts.get, admit)
        else:
            self._logins.check(login, self._accounts.get(login.user), admit)

    def use_tokens(self, tokens: Tokens | None) -> None:
        """Take these tokens and no others from now on; None for none at all. Connections that are open go on."""
        self._tokens = tokens
        self._bearers.forget()

    def tick(self) -> None:
        """End connections whose time is over."""
        self._bearers.tick()

    def rights(self, account: Account, host: str) -> Rights | None:
        """What the user may do in the virtual host; None when it may not even enter."""
        if account.grants is not None:
            return _granted(account, account.grants, host)
        return self._stored_rights(account.name, host)

    def _stored_rights(self, user: str, host: str) -> Rights | None:
        if (user, host) not in self._permissions:
            return None
        rights = self._rights.get((user, host))
        if rights is None:
            rights = self._rights[user, host] = Rights(user, host)
            self._grant(user, host)
        return rights

    def _grant(self, user: str, host: str) -> None:
        rights = self._rights.get((user, host))
        if rights is not None:
            rights.grant(self._permissions.get((user, host)), self._topics.get((user, host), {}))

    # -- users -------------------------------------------------------------------------------------------------------

    def users(self) -> list[User]:
        """All users, by name."""
        return [self._accounts[name].user for name in sorted(self._accounts)]

    def account(self, name: str) -> Account:
        """The user and what it has open. Raises NotFound."""
        account = self._accounts.get(name)
        if account is None:
            raise NotFound(f"no user '{name}'")
        return account

    def put_user(self, name: str, password: str | None, tags: Iterable[str], done: Done) -> None:
        """Have a user with this password and these tags; None keeps the password it has, or lets none be right.

        Raises Refused for a name, a password or tags that cannot be.
        """
        check_name("user", name)
        words = check_tags(tags)

        def put(password_hash: str | None) -> None:
            account = self._accounts.get(name)
            user = User(name) if account is None else account.user
            kept = user.password_hash if password_hash is None else password_hash
            self._change([_user_change(replace(user, tags=words, password_hash=kept))], done)

        if password is None:
            put(None)
        else:
            self._hash(name, password, put)

    def put_user_hash(self, name: str, password_hash: str, tags: Iterable[str], done: Done) -> None:
        """The same by a hash that another broker made: argon2's, or no password is right. Raises Refused."""
        check_name("user", name)
        words = check_tags(tags)
        account = self._accounts.get(name)
        user = User(name) if account is None else account.user
        kept = password_hash if password_hash.startswith("$argon2") else ""
        self._change([_user_change(replace(user, tags=words, password_hash=kept))], done)

    def set_password(self, name: str, password: str, done: Done) -> None:
        """Have another password for a user. Raises NotFound, Refused for a password that cannot be."""
        self.put_user(name, password, self.account(name).user.tags, done)

    def _hash(self, name: str, password: str, put: Callable[[str | None], None]) -> None:
        secret = password.encode(errors="surrogatepass")
        if not 1 <= len(secret) <= _MAX_PASSWORD_BYTES:
            raise Refused(f"the password of user '{name}' must have 1 to {_MAX_PASSWORD_BYTES} bytes")
        self._background.run(lambda: hash_password(secret), put)

    def set_limits(self, name: str, limits: Limits, done: Done) -> None:
        """Have these limits and no others for a user. Raises NotFound."""
        self._change([_user_change(replace(self.account(name).user, limits=limits))], done)

    def delete_user(self, name: str, done: Done) -> None:
        """Remove a user with all its permissions; its connections are ended. Raises NotFound."""
        self.account(name)
        changes: list[_Change] = [(USERS, name.encode(), None)]
        changes += [(PERMISSIONS, _key(host, user), None) for user, host in self._permissions if user == name]
        for (user, host), topics in self._topics.items():
            if user == name:
                changes += [(TOPIC_PERMISSIONS, _key(host, user, exchange), None) for exchange in topics]
        self._change(changes, done)

    # -- permissions -------------------------------------------------------------------------------------------------

    def permissions(self) -> list[Permission]:
        """All permissions, by host and user."""
        return sorted(self._permissions.values(), key=lambda permission: (permission.host, permission.user))

    def put_permission(self, permission: Permission, done: Done) -> None:
        """Let a user into a virtual host, to do this much there.

        Raises NotFound for the user and the host, Refused for patterns that make no sense.
        """
        self._check_ends(permission.user, permission.host)
        permission.check()
        key = _key(permission.host, permission.user)
        self._change([(PERMISSIONS, key, _json(asdict(permission)))], done)

    def delete_permission(self, user: str, host: str, done: Done) -> None:
        """Let a user into a virtual host no more. Raises NotFound when it could not enter anyway."""
        if (user, host) not in self._permissions:
            raise NotFound(f"user '{user}' has no permissions in vhost '{host}'")
        self._change([(PERMISSIONS, _key(host, user), None)], done)

    def topic_permissions(self) -> list[TopicPermission]:
        """All topic permissions, by host, user and exchange."""
        found = [permission for topics in self._topics.values() for permission in topics.values()]
        return sorted(found, key=lambda permission: (permission.host, permission.user, permission.exchange))

    def put_topic_permission(self, permission: TopicPermission, done: Done) -> None:
        """Bound a user to some topics of an exchange. Raises NotFound for the user and the host, Refused as above."""
        self._check_ends(permission.user, permission.host)
        permission.check()
        key = _key(permission.host, permission.user, permission.exchange)
        self._change([(TOPIC_PERMISSIONS, key, _json(asdict(permission)))], done)

    def delete_topic_permissions(self, user: str, host: str, done: Done, exchange: str | None = None) -> None:
        """Bound a user no more, in one exchange or in all. Raises NotFound when there was no bound."""
        topics = self._topics.get((user, host), {})
        names = [name for name in topics if exchange is None or name == exchange]
        if not names:
            raise NotFound(f"user '{user}' has no topic permissions there in vhost '{host}'")
        self._change([(TOPIC_PERMISSIONS, _key(host, user, name), None) for name in names], done)

    def _check_ends(self, user: str, host: str) -> None:
        self.account(user)
        if self._hosts.find(host) is None:
            raise NotFound(f"no vhost '{host}'")

    # -- storing -----------------------------------------------------------------------------------------------------

    def _change(self, changes: list[_Change], done: Done) -> None:
        commit = Commit()
        for table, key, value in changes:
            if value is None:
                commit.delete(table, key)
            else:
                commit.put(table, key, value)

        def stored(error: HeadraceError | None) -> None:
            if error is not None:
                for table, key, _ in changes:
                    self._take(table, key, self._engine.get(table, key))
            done(error)

        self._engine.commit(commit, stored)
        for table, key, value in changes:
            self._take(table, key, value)
        self._restrict(changes)

    def _restrict(self, changes: list[_Change]) -> None:
        """Sessions and consumers read no more than their users still may, connected or not."""
        keys = [key.decode().split(_SEPARATOR) for table, key, _ in changes if table != USERS]
        for host, user in dict.fromkeys([(host, user) for host, user, *_ in keys]):
            broker = self._hosts.find(host)
            if broker is not None:
                broker.sessions.restrict(user, self._stored_rights(user, host))
            rights = self._rights.get((user, host))
            for look in list(rights.watchers.values()) if rights is not None else ():
                look()

    def _take(self, table: str, key: bytes, value: bytes | None) -> None:
        """Have in memory what storage has, or is about to have."""
        if table == USERS:
            self._take_user(key.decode(), None if value is None else User.from_json(json.loads(value)))
            return
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

    def _take_user(self, name: str, user: User | None) -> None:
        account = self._accounts.get(name)
        if user is None:
            account = self._accounts.pop(name, None)
            if account is not None:
                account.end(f"user '{name}' is deleted")
        elif account is None:
            self._accounts[name] = Account(user)
        else:
            account.change(user)
        self._bearers.change(name, user)

    def _forget_host(self, host: str, commit: Commit) -> None:
        """A virtual host goes: so do the permissions there, in the same commit."""
        found = [(PERMISSIONS, _key(host, user)) for user, where in self._permissions if where == host]
        for (user, where), topics in self._topics.items():
            if where == host:
                found += [(TOPIC_PERMISSIONS, _key(host, user, exchange)) for exchange in topics]
        for table, key in found:
            commit.delete(table, key)
            self._take(table, key, None)


def _granted(account: Account, grants: Grants, host: str) -> Rights | None:
    """The rights of one who carries them along."""
    rights = account.rights.get(host)
    if rights is None:
        permission = grants.permission(host)
        if permission is None:
            return None
        rights = account.rights[host] = Rights(account.name, host)
        rights.grant(permission, grants.topics(host))
    return rights


def _user_change(user: User) -> _Change:
    return USERS, user.name.encode(), _json(user.to_json())


def _key(*names: str) -> bytes:
    return _SEPARATOR.join(names).encode()


def _read(kind: type[_Kind], value: bytes) -> _Kind:
    """What was stored; members that are not known are ignored."""
    known = {name: text for name, text in json.loads(value).items() if name in kind.__dataclass_fields__}
    found: _Kind = kind(**known)
    return found


def _json(values: object) -> bytes:
    return json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode()


def _raise(error: HeadraceError | None) -> None:
    if error is not None:
        raise error
