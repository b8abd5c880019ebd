"""Who came with a token: read aside by Tokens, known from then on, ended when the token is over. Users: access.py."""

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Final, final

from mypy_extensions import mypyc_attr

from headrace.clock import Clock
from headrace.core.account import Account
from headrace.core.scopes import Grants
from headrace.core.users import User

_BEGINNING: Final = b"eyJ"  # what the opening of a JSON object, '{"', becomes in base64
_MAX_KNOWN: Final = 4096
_LOOK_US: Final = 500_000


@final
class Bearer:
    """What a token says, once its signature and its times were found to be right."""

    __slots__ = ("expires_us", "grants", "user")

    def __init__(self, user: str, expires_us: int, grants: Grants | None) -> None:
        self.user = user
        self.expires_us = expires_us
        self.grants = grants
        """None where the permissions that are stored for the user count."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Tokens(ABC):
    """Tells good tokens from others. Called in any thread."""

    @abstractmethod
    def read(self, token: bytes) -> Bearer:
        """What the token says. Raises Refused, saying why, for one that must not be trusted."""


def is_token(password: bytes) -> bool:
    """Whether a password is meant to be a JSON web token, by its looks."""
    return password.startswith(_BEGINNING) and password.count(b".") == 2


@final
class Bearers:
    """The accounts of tokens: those that were right lately, and those that have connections."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[bytes, Account] = {}
        """By digest, the oldest first."""
        self._busy: set[Account] = set()
        """Those with connections."""
        self._next_look_us = 0

    def find(self, digest: bytes) -> Account | None:
        """The account of a token that was right before and still is."""
        account = self._known.get(digest)
        if account is not None and account.expires_us <= self._clock.now_us():
            del self._known[digest]
            return None
        return account

    def admit(self, digest: bytes, bearer: Bearer, stored: Account | None) -> Account | None:
        """The account of a token that was found right; None when its user would have to be stored and is not."""
        if stored is None and bearer.grants is None:
            return None
        account = Account(
            _user(bearer.user, stored.user if stored is not None else None, bearer.grants),
            stored.usage if stored is not None else None,
            bearer.grants,
            bearer.expires_us,
        )
        account.busy = self._busy
        while len(self._known) >= _MAX_KNOWN:
            del self._known[next(iter(self._known))]
        self._known[digest] = account
        return account

    def tick(self) -> None:
        """End the connections whose token is over."""
        if not self._busy or self._clock.monotonic_us() < self._next_look_us:
            return
        self._next_look_us = self._clock.monotonic_us() + _LOOK_US
        now_us = self._clock.now_us()
        for account in list(self._busy):
            if account.expires_us <= now_us:
                account.end(f"the token of user '{account.name}' has expired")

    def change(self, name: str, user: User | None) -> None:
        """A stored user was changed, or removed: so is who came with a token in its name."""
        for account in {*self._known.values(), *self._busy}:
            if account.name != name:
                continue
            if user is None:
                account.end(f"user '{name}' is deleted")
            else:
                account.change(_user(name, user, account.grants))
        if user is None:
            self._known = {digest: account for digest, account in self._known.items() if account.name != name}

    def forget(self) -> None:
        """Have every token read again; connections that are open go on."""
        self._known.clear()


def _user(name: str, stored: User | None, grants: Grants | None) -> User:
    """The user as the token has it: tags are the token's where permissions are, limits are those that are stored."""
    user = stored or User(name)
    return user if grants is None else replace(user, tags=grants.tags)
