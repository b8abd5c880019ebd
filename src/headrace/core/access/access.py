"""Users and permissions in storage: add, change, remove, list, log in. permissions.py computes rights.

A change counts at once, for open connections too. `done` runs when it is durable, or with the error after which it is
reverted. Passwords never appear in messages or logs.
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
from headrace.errors import AccessRefused, HeadraceError, NotFound, Refused
from headrace.storage.api import HOSTS, PERMISSIONS, TOPIC_PERMISSIONS, USERS, Commit, Done, Engine

_log: Final = logging.getLogger("headrace.access")
_MAX_PASSWORD_BYTES: Final = 1024


@final
class Access:
    """All users and permissions of the broker."""

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
        """Create guest with all rights in the default host of a fresh directory. A deleted guest does not come back."""
        everything = Permission(GUEST, DEFAULT_HOST, ".*", ".*", ".*")
        commit = Commit()
        commit.put(HOSTS, DEFAULT_HOST.encode(), to_bytes({"name": DEFAULT_HOST}))
        _add(commit, [_user_change(guest()), putting(everything)])
        self._engine.commit(commit, _raise)
        self._engine.sync()

    # -- logins --------------------------------------------------------------------------------------------------------

    def login(self, login: Login, admit: Admit) -> None:
        """Call `admit` with the account of the user, or with None for a refused login.

        A login that was right before is answered at once, any other after a check in the background. If tokens are
        configured, the password may be one.
        """
        if self._tokens is not None and login.password is not None and is_token(login.password):
            self._logins.check_token(login, self._tokens, self._bearers, self._accounts.get, admit)
        else:
            self._logins.check(login, self._accounts.get(login.user), admit)

    def use_tokens(self, tokens: Tokens | None) -> None:
        """Accept these tokens only; None for no tokens. Open connections stay."""
        self._tokens = tokens
        self._bearers.forget()

    def tick(self) -> None:
        """Close connections whose token has expired."""
        self._bearers.tick()

    def rights(self, account: Account, host: str) -> Rights | None:
        """Rights of the user in the virtual host; None if it may not enter."""
        if account.grants is not None:
            return _granted(account, account.grants, host)
        return self._permissions.rights(account.name, host)

    def enter(self, account: Account, host: str) -> Rights:
        """Rights of the user in the virtual host. Raises AccessRefused if it may not enter, or if there is none."""
        rights = None if self._hosts.find(host) is None else self.rights(account, host)
        if rights is None:
            raise AccessRefused(f"access to vhost '{host}' refused for user '{account.name}'")
        return rights

    # -- users ---------------------------------------------------------------------------------------------------------

    def users(self) -> list[User]:
        """All users, by name."""
        return [self._accounts[name].user for name in sorted(self._accounts)]

    def account(self, name: str) -> Account:
        """The account of a user. Raises NotFound."""
        account = self._accounts.get(name)
        if account is None:
            raise NotFound(f"no user '{name}'")
        return account

    def put_user(self, name: str, password: str | None, tags: Iterable[str], done: Done) -> None:
        """Create or change a user. A password of None keeps the present one, or allows no password login.

        Raises Refused for an invalid name, password or tag.
        """
        put = self._putting(name, tags, done)
        if password is None:
            put(None)
        else:
            self._hash(name, password, put)

    def _putting(self, name: str, tags: Iterable[str], done: Done) -> Callable[[str | None], None]:
        """Return the function that stores the user with a hash; None keeps the present one. Raises Refused."""
        check_name("user", name)
        words = check_tags(tags)

        def put(password_hash: str | None) -> None:
            account = self._accounts.get(name)
            user = User(name) if account is None else account.user
            kept = user.password_hash if password_hash is None else password_hash
            self._change([_user_change(replace(user, tags=words, password_hash=kept))], done)

        return put

    def put_user_hash(self, name: str, password_hash: str, tags: Iterable[str], done: Done) -> None:
        """Create or change a user by a hash of Headrace or RabbitMQ; others allow no password. Raises Refused."""
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
        """Replace the limits of a user. Raises NotFound."""
        self._change([_user_change(replace(self.account(name).user, limits=limits))], done)

    def delete_user(self, name: str, done: Done) -> None:
        """Delete a user with its permissions and close its connections. Raises NotFound."""
        self.account(name)
        changes: list[Change] = [(USERS, name.encode(), None), *self._permissions.without_user(name)]
        self._change(changes, done)

    # -- permissions ---------------------------------------------------------------------------------------------------

    def permissions(self) -> list[Permission]:
        """All permissions, by host and user."""
        return self._permissions.all()

    def put_permission(self, permission: Permission, done: Done) -> None:
        """Store a user's permission for a virtual host.

        Raises NotFound for the user and the host, Refused for invalid patterns.
        """
        self._put(permission, done)

    def delete_permission(self, user: str, host: str, done: Done) -> None:
        """Delete a user's permission for a virtual host. Raises NotFound."""
        self._change(self._permissions.without(user, host), done)

    def topic_permissions(self) -> list[TopicPermission]:
        """All topic permissions, by host, user and exchange."""
        return self._permissions.topics()

    def put_topic_permission(self, permission: TopicPermission, done: Done) -> None:
        """Limit a user to some topics of an exchange. Raises NotFound for the user and the host, Refused as above."""
        self._put(permission, done)

    def delete_topic_permissions(self, user: str, host: str, done: Done, exchange: str | None = None) -> None:
        """Delete topic permissions of a user, in one exchange or in all. Raises NotFound if there are none."""
        self._change(self._permissions.without_topics(user, host, exchange), done)

    def _put(self, permission: Permission | TopicPermission, done: Done) -> None:
        self.account(permission.user)
        if self._hosts.find(permission.host) is None:
            raise NotFound(f"no vhost '{permission.host}'")
        permission.check()
        self._change([putting(permission)], done)

    # -- storing -------------------------------------------------------------------------------------------------------

    def _change(self, changes: list[Change], done: Done) -> None:
        commit = Commit()
        _add(commit, changes)
        restricted: list[Broker] = []

        def stored(error: HeadraceError | None) -> None:
            if error is None and restricted:  # lost subscriptions must be durable too
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
        """Apply new rights to sessions and consumers; returns the brokers whose sessions lost something."""
        restricted: list[Broker] = []
        places = [place_of(key) for table, key, _ in changes if table != USERS]
        for host, user in dict.fromkeys(places):
            broker = self._hosts.find(host)
            if broker is not None and broker.sessions.restrict(user, self._permissions.rights(user, host)):
                restricted.append(broker)
            self._permissions.tell(user, host)
        return restricted

    def _take(self, table: str, key: bytes, value: bytes | None) -> None:
        """Apply a stored entry, or one about to be stored."""
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
        """Delete the permissions of a deleted virtual host, in the same commit."""
        changes = self._permissions.without_host(host)
        _add(commit, changes)
        for table, key, value in changes:
            self._take(table, key, value)


def _granted(account: Account, grants: Grants, host: str) -> Rights | None:
    """The rights of an account that a token grants."""
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
