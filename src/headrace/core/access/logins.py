"""Logins by password and by token, and the accounts of users who are connected. Users are stored by access.py."""

import hashlib
import hmac
import logging
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeVar, final

from mypy_extensions import mypyc_attr

from headrace.clock import Clock
from headrace.core.access.permissions import Grants, Rights
from headrace.core.access.users import GUEST, GUEST_HASH, User, is_right
from headrace.errors import Refused, TooLarge, Unavailable

_BURST_US: Final = 1_000_000


@final
class Usage:
    """What one user has open and has sent, however it logged in."""

    __slots__ = ("channels", "connections", "free_at_us")

    def __init__(self) -> None:
        self.connections = 0
        self.channels = 0
        self.free_at_us = 0


@final
class Account:
    """One user, shared by all its connections. What is changed about the user counts at once.

    Who came with a token has an account for that token: it ends with it, and may have rights of its own.
    """

    __slots__ = (
        "busy",
        "expires_us",
        "grants",
        "is_metered",
        "on_removed",
        "open",
        "proof",
        "rights",
        "usage",
        "user",
    )

    def __init__(
        self, user: User, usage: Usage | None = None, grants: Grants | None = None, expires_us: int = 0
    ) -> None:
        self.user = user
        self.is_metered = False
        """Whether publishes are to be counted and measured at all."""
        self.usage = usage or Usage()
        self.open = 0
        """How many connections have this very account."""
        self.busy: set[Account] | None = None
        """Has this account in it while there are connections with it, where somebody wants to know."""
        self.grants = grants
        """What the token allows; None where the permissions that are stored count."""
        self.rights: dict[str, Rights] = {}
        """What the grants come to, by virtual host."""
        self.expires_us = expires_us
        """When its connections must end; 0 for never."""
        self.proof = b""
        """The digest of the password that was found to be right; b"" before the first login."""
        self.on_removed: dict[object, Callable[[str], None]] = {}
        """By connection, what is told why it must end: there is no such user any more, or its time is over."""
        self.change(user)

    def change(self, user: User) -> None:
        """The user is stored anew."""
        self.user = user
        self.is_metered = user.limits.max_message_rate is not None or user.limits.max_message_bytes is not None

    def end(self, why: str) -> None:
        """End all its connections."""
        for tell in list(self.on_removed.values()):
            tell(why)

    @property
    def name(self) -> str:
        return self.user.name

    @property
    def connections(self) -> int:
        """How many the user has, over all its accounts."""
        return self.usage.connections

    def connect(self) -> bool:
        """Count one more connection; False when the user has as many as it may have."""
        most = self.user.limits.max_connections
        if most is not None and self.usage.connections >= most:
            return False
        self.usage.connections += 1
        self.open += 1
        if self.busy is not None:
            self.busy.add(self)
        return True

    def disconnect(self) -> None:
        self.usage.connections -= 1
        self.open -= 1
        if self.busy is not None and not self.open:
            self.busy.discard(self)

    def hand_over(self, other: "Account", channels: int) -> None:
        """Have one connection with so many channels count for another account of the same user from now on."""
        self.disconnect()
        self.usage.channels -= channels
        other.usage.connections += 1
        other.usage.channels += channels
        other.open += 1
        if other.busy is not None:
            other.busy.add(other)

    def open_channel(self) -> bool:
        """Count one more channel; False when the user has as many as it may have."""
        most = self.user.limits.max_channels
        if most is not None and self.usage.channels >= most:
            return False
        self.usage.channels += 1
        return True

    def close_channel(self) -> None:
        self.usage.channels -= 1

    def check_size(self, size: int) -> None:
        """Raises TooLarge for a message that the user may not send."""
        most = self.user.limits.max_message_bytes
        if most is not None and size > most:
            raise TooLarge(f"message size {size} is larger than the {most} bytes that user '{self.name}' may send")

    def check_rate(self, messages: int, now_us: int) -> None:
        """Count what a client publishes that cannot be read from more slowly.

        Raises Unavailable when the user has published as much as it may for now.
        """
        wait_us = self.spend(0, now_us)
        if wait_us:
            raise Unavailable(f"user '{self.name}' publishes too fast; try again in {wait_us / 1e6:.1f} s")
        self.spend(messages, now_us)

    def spend(self, messages: int, now_us: int) -> int:
        """Count what was published; returns for how many microseconds the sender should not be heard.

        What was saved in one second may be spent at once.
        """
        rate = self.user.limits.max_message_rate
        if rate is None:
            return 0
        start_us = max(self.usage.free_at_us, now_us - _BURST_US)
        self.usage.free_at_us = start_us + messages * 1_000_000 // max(rate, 1)
        return max(0, self.usage.free_at_us - now_us)


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


_log: Final = logging.getLogger("headrace.access")

_FIRST_WAIT_US: Final = 200_000
_LONGEST_WAIT_US: Final = 3_200_000  # twice that is less than a handshake may take
_FORGOTTEN_US: Final = 60_000_000
_MAX_REMEMBERED: Final = 4096
_MAX_CHECKS: Final = 1024
_MAX_SUSPECT_CHECKS: Final = 8
_SHOWN: Final = 64

Result = TypeVar("Result")
Admit = Callable[[Account | None], None]
"""Told the account of a login that was right, None of one that was not."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Background(ABC):
    """Where work goes that would hold up the event loop."""

    @abstractmethod
    def run(self, work: Callable[[], Result], done: Callable[[Result], None]) -> None:
        """Have `work` done in another thread, then `done` called with its result in this one."""

    @abstractmethod
    def later(self, delay_us: int, call: Callable[[], None]) -> None:
        """Have something called in this thread after a while."""


@final
class Login:
    """A claim to be a user. Without a password it rests on the certificate of the connection."""

    __slots__ = ("address", "is_loopback", "password", "user")

    def __init__(self, user: str, password: bytes | None, address: str, is_loopback: bool) -> None:
        self.user = user
        self.password = password
        self.address = address
        """Where it comes from, without the port."""
        self.is_loopback = is_loopback


@final
class _Verdict:
    """What became of a check: why the login is wrong, "" when it is not, and what its token says, if it was one."""

    __slots__ = ("bearer", "why")

    def __init__(self, why: str, bearer: Bearer | None = None) -> None:
        self.why = why
        self.bearer = bearer


@final
class _Failures:
    """How often logins of one user, or from one address, were wrong lately, and until when the next has to wait."""

    __slots__ = ("count", "until_us")

    def __init__(self) -> None:
        self.count = 0
        self.until_us = 0


@final
class Logins:
    """Decides about logins, given the account that each is about."""

    def __init__(self, background: Background, clock: Clock) -> None:
        self._background = background
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._failures: dict[str, _Failures] = {}
        self._waiting: dict[bytes, list[Callable[[_Verdict], None]]] = {}
        """Logins that ask the same, by digest: one check answers all of them."""
        self._checks: dict[str, int] = {}
        """How many checks wait for logins from an address."""

    def check(self, login: Login, account: Account | None, admit: Admit) -> None:
        """Have `admit` told whether the login is right: now when that is known, else when it was found out.

        An unknown user takes as long as a wrong password. Nobody is told why a login is refused but the log.
        """
        if login.password is None:
            self._decide(login, account, "", admit)
            return
        password_hash = account.user.password_hash if account is not None else ""
        digest = self._digest(login.user, login.password, password_hash)
        if account is not None and account.proof and hmac.compare_digest(account.proof, digest):
            self._decide(login, account, "", admit)
            return
        password, known = login.password, password_hash or GUEST_HASH

        def work() -> _Verdict:
            is_password_right = is_right(password, known) and bool(password_hash)
            return _Verdict("" if is_password_right else "the password is wrong")

        def checked(verdict: _Verdict) -> None:
            if not verdict.why and account is not None:
                account.proof = digest
            self._decide(login, account, verdict.why, admit)

        self._ask(login, digest, work, checked, admit)

    def check_token(
        self, login: Login, tokens: Tokens, bearers: Bearers, find: Callable[[str], Account | None], admit: Admit
    ) -> None:
        """The same for a login whose password is a token: that says who it is, whatever name is given with it.

        `find` gives the account of a user that is stored.
        """
        token = login.password or b""
        login = Login("", token, login.address, login.is_loopback)
        digest = self._digest("", token, "")
        account = bearers.find(digest)
        if account is not None:
            self._decide(login, account, "", admit)
            return

        def work() -> _Verdict:
            try:
                return _Verdict("", tokens.read(token))
            except Refused as error:
                return _Verdict(f"the token {error}")

        def checked(verdict: _Verdict) -> None:
            bearer, found = verdict.bearer, None
            if bearer is not None:
                login.user = bearer.user
                found = bearers.admit(digest, bearer, find(bearer.user))
            self._decide(login, found, verdict.why, admit)

        self._ask(login, digest, work, checked, admit)

    def _is_one_too_many(self, login: Login) -> bool:
        """Whoever guesses must not take the place of those who come for the first time."""
        is_suspect = _by_address(login) in self._failures
        most = _MAX_SUSPECT_CHECKS if is_suspect else _MAX_CHECKS
        return len(self._waiting) >= _MAX_CHECKS or self._checks.get(login.address, 0) >= most

    def _ask(
        self,
        login: Login,
        digest: bytes,
        work: Callable[[], _Verdict],
        checked: Callable[[_Verdict], None],
        admit: Admit,
    ) -> None:
        """Have a check made aside, one for all who ask the same, unless there are too many already."""
        if digest not in self._waiting and self._is_one_too_many(login):
            _log.warning(
                "too many logins at once: one of %s from %s is refused",
                _shown(login),
                login.address,
                extra={"user": login.user[:_SHOWN]},
            )
            admit(None)
            return
        same = self._waiting.setdefault(digest, [])
        same.append(checked)
        if len(same) > 1:
            return
        self._checks[login.address] = self._checks.get(login.address, 0) + 1

        def done(verdict: _Verdict) -> None:
            self._checks[login.address] -= 1
            if not self._checks[login.address]:
                del self._checks[login.address]
            for tell in self._waiting.pop(digest):
                tell(verdict)

        wait_us = self._wait_us(login)
        if wait_us:
            self._background.later(wait_us, lambda: self._background.run(work, done))
        else:
            self._background.run(work, done)

    def _decide(self, login: Login, account: Account | None, why: str, admit: Admit) -> None:
        if account is None and (login.user or not why):
            why = "there is no such user"
        elif account is not None and account.name == GUEST and not login.is_loopback and not why:
            why = f"{GUEST} may log in from this machine only; add a user for others"
        if not why:
            for place in _places(login):
                self._failures.pop(place, None)
            admit(account)
            return
        about = {"user": login.user[:_SHOWN]}
        _log.warning("login of %s from %s refused: %s", _shown(login), login.address, why, extra=about)
        self._background.later(self._failed(login), lambda: admit(None))

    # -- slowing down ------------------------------------------------------------------------------------------------

    def _wait_us(self, login: Login) -> int:
        """How long a login has to wait before it is looked at, for what went wrong before."""
        now_us = self._clock.monotonic_us()
        found = [self._failures.get(place) for place in _places(login)]
        return max([0, *[failures.until_us - now_us for failures in found if failures is not None]])

    def _failed(self, login: Login) -> int:
        """Count a failure; returns how long its answer takes, twice as long each time."""
        now_us = self._clock.monotonic_us()
        longest_us = 0
        for place in _places(login):
            failures = self._failures.pop(place, None)
            if failures is None or now_us > failures.until_us + _FORGOTTEN_US:
                failures = _Failures()
            failures.count += 1
            wait_us = min(_FIRST_WAIT_US << min(failures.count - 1, 10), _LONGEST_WAIT_US)
            failures.until_us = now_us + wait_us
            longest_us = max(longest_us, wait_us)
            while len(self._failures) >= _MAX_REMEMBERED:
                del self._failures[next(iter(self._failures))]
            self._failures[place] = failures
        return longest_us

    def _digest(self, user: str, password: bytes, password_hash: str) -> bytes:
        """What stands for a password while the process lives; another hash or another process makes another."""
        parts = (user.encode(errors="replace"), password_hash.encode(), password)
        text = b"".join([len(part).to_bytes(4, "big") + part for part in parts])
        return hashlib.blake2b(text, key=self._key, digest_size=32).digest()


def _places(login: Login) -> list[str]:
    """Where a failure of this login is remembered. A token names nobody before it was read."""
    address = _by_address(login)
    return ["user " + login.user, address] if login.user else [address]


def _by_address(login: Login) -> str:
    return "address " + login.address


def _shown(login: Login) -> str:
    return f"user {login.user[:_SHOWN]!r}" if login.user else "somebody"
