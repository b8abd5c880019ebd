"""Users and what they may do, kept in storage: add, change, remove, list, log in. See permissions.py.

A change counts at once, for connections that are open too; `done` hears when it would survive a crash, or that it is
taken back because it could not be stored. Nothing is ever told about a password.
"""

import json
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final, final

from headrace.clock import Clock
from headrace.core.access.logins import Account, Admit, Background, Bearers, Login, Logins, Tokens, is_token
from headrace.core.access.permissions import (
    Change,
    Grants,
    Permission,
    Permissions,
    Rights,
    TopicPermission,
    place_of,
    putting,
    to_bytes,
)
from headrace.core.access.users import (
    ADOPTED,
    GUEST,
    OWN,
    Limits,
    User,
    adopt_hash,
    check_name,
    check_tags,
    guest,
    hash_password,
    their_hash,
)
from headrace.core.broker import Broker
from headrace.core.hosts import Hosts
from headrace.core.routing.topology import DEFAULT_HOST
from headrace.errors import HeadraceError, NotFound, Refused
from headrace.storage.api import HOSTS, PERMISSIONS, TOPIC_PERMISSIONS, USERS, Commit, Done, Engine

_log: Final = logging.getLogger("headrace.access")
_MAX_PASSWORD_BYTES: Final = 1024


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
        self._permissions = Permissions()
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
        commit.put(HOSTS, DEFAULT_HOST.encode(), to_bytes({"name": DEFAULT_HOST}))
        _add(commit, [_user_change(guest()), putting(everything)])
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
        return self._permissions.rights(account.name, host)

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
        put = self._putting(name, tags, done)
        if password is None:
            put(None)
        else:
            self._hash(name, password, put)

    def _putting(self, name: str, tags: Iterable[str], done: Done) -> Callable[[str | None], None]:
        """What has the user with a hash, or with the one it has. Raises Refused."""
        check_name("user", name)
        words = check_tags(tags)

        def put(password_hash: str | None) -> None:
            account = self._accounts.get(name)
            user = User(name) if account is None else account.user
            kept = user.password_hash if password_hash is None else password_hash
            self._change([_user_change(replace(user, tags=words, password_hash=kept))], done)

        return put

    def put_user_hash(self, name: str, password_hash: str, tags: Iterable[str], done: Done) -> None:
        """The same by a hash that Headrace or RabbitMQ made; by another, no password is right. Raises Refused."""
        put = self._putting(name, tags, done)
        salted = their_hash(password_hash)
        if salted:
            self._background.run(lambda: adopt_hash(salted), put)
            return
        is_known = password_hash.startswith((OWN, ADOPTED))
        if password_hash and not is_known:
            _log.warning(
                "the password hash of user %r is of no kind that is known: no password is right until one is set", name
            )
        put(password_hash if is_known else "")

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
        changes: list[Change] = [(USERS, name.encode(), None), *self._permissions.without_user(name)]
        self._change(changes, done)

    # -- permissions -------------------------------------------------------------------------------------------------

    def permissions(self) -> list[Permission]:
        """All permissions, by host and user."""
        return self._permissions.all()

    def put_permission(self, permission: Permission, done: Done) -> None:
        """Let a user into a virtual host, to do this much there.

        Raises NotFound for the user and the host, Refused for patterns that make no sense.
        """
        self._put(permission, done)

    def delete_permission(self, user: str, host: str, done: Done) -> None:
        """Let a user into a virtual host no more. Raises NotFound when it could not enter anyway."""
        self._change(self._permissions.without(user, host), done)

    def topic_permissions(self) -> list[TopicPermission]:
        """All topic permissions, by host, user and exchange."""
        return self._permissions.topics()

    def put_topic_permission(self, permission: TopicPermission, done: Done) -> None:
        """Bound a user to some topics of an exchange. Raises NotFound for the user and the host, Refused as above."""
        self._put(permission, done)

    def delete_topic_permissions(self, user: str, host: str, done: Done, exchange: str | None = None) -> None:
        """Bound a user no more, in one exchange or in all. Raises NotFound when there was no bound."""
        self._change(self._permissions.without_topics(user, host, exchange), done)

    def _put(self, permission: Permission | TopicPermission, done: Done) -> None:
        self.account(permission.user)
        if self._hosts.find(permission.host) is None:
            raise NotFound(f"no vhost '{permission.host}'")
        permission.check()
        self._change([putting(permission)], done)

    # -- storing -----------------------------------------------------------------------------------------------------

    def _change(self, changes: list[Change], done: Done) -> None:
        commit = Commit()
        _add(commit, changes)
        restricted: list[Broker] = []

        def stored(error: HeadraceError | None) -> None:
            if error is None and restricted:  # what sessions lost must not come back either
                restricted.pop().when_safe(stored)
                return
            if error is not None:
                for table, key, _ in changes:
                    self._take(table, key, self._engine.get(table, key))
            done(error)

        self._engine.commit(commit, stored)
        for table, key, value in changes:
            self._take(table, key, value)
        restricted += self._restrict(changes)

    def _restrict(self, changes: list[Change]) -> list[Broker]:
        """Let sessions and consumers read no more than their users still may; returns where sessions lost something."""
        restricted: list[Broker] = []
        places = [place_of(key) for table, key, _ in changes if table != USERS]
        for host, user in dict.fromkeys(places):
            broker = self._hosts.find(host)
            if broker is not None and broker.sessions.restrict(user, self._permissions.rights(user, host)):
                restricted.append(broker)
            self._permissions.tell(user, host)
        return restricted

    def _take(self, table: str, key: bytes, value: bytes | None) -> None:
        """Have in memory what storage has, or is about to have."""
        if table == USERS:
            self._take_user(key.decode(), None if value is None else User.from_json(json.loads(value)))
        else:
            self._permissions.take(table, key, value)

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
        changes = self._permissions.without_host(host)
        _add(commit, changes)
        for table, key, value in changes:
            self._take(table, key, value)


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


def _user_change(user: User) -> Change:
    return USERS, user.name.encode(), to_bytes(user.to_json())


def _add(commit: Commit, changes: list[Change]) -> None:
    for table, key, value in changes:
        if value is None:
            commit.delete(table, key)
        else:
            commit.put(table, key, value)


def _raise(error: HeadraceError | None) -> None:
    if error is not None:
        raise error
