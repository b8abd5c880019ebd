"""Logins by password and by token, and the accounts of connected users. access.py stores users."""

import hashlib
import hmac
import logging
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar, final

from mypy_extensions import mypyc_attr

from headrace.clock import Clock
from headrace.core.access.permissions import Grants, Rights
from headrace.core.access.users import GUEST, GUEST_HASH, User, is_right
from headrace.errors import Refused, TooLarge, Unavailable

_BURST_US: Final = 1_000_000


@final
class Usage:
    """Open connections and publish rate of one user, over all its logins."""

    __slots__ = ("channels", "connections", "free_at_us")

    def __init__(self) -> None:
        self.connections = 0
        self.channels = 0
        self.free_at_us = 0


@final
class Account:
    """One user, shared by all its connections. Changes of the user count at once.

    Each token has an account of its own, which ends with it and may carry its own rights.
    """

    def __init__(
        self, user: User, usage: Usage | None = None, grants: Grants | None = None, expires_us: int = 0
    ) -> None:
        self.user = user
        self.is_metered = False
        """True if the user has a limit on publishes."""
        self.usage = usage or Usage()
        self.open = 0
        """Open connections of this account."""
        self.busy: set[Account] | None = None
        """Set of accounts with open connections, maintained for expiry; None if nobody needs it."""
        self.grants = grants
        """Rights of the token; None if the stored permissions count."""
        self.rights: dict[str, Rights] = {}
        """Computed rights of the grants, by virtual host."""
        self.expires_us = expires_us
        """End of its connections; 0 = never."""
        self.proof = b""
        """Digest of the verified password; b"" before the first login."""
        self.on_removed: dict[object, Callable[[str], None]] = {}
        """Callbacks by connection, called with the reason when the user is deleted or the token expires."""
        self.change(user)

    def change(self, user: User) -> None:
        """Take a changed user."""
        self.user = user
        self.is_metered = user.limits.max_message_rate is not None or user.limits.max_message_bytes is not None

    def end(self, why: str) -> None:
        """Close all its connections."""
        for tell in list(self.on_removed.values()):
            tell(why)

    @property
    def name(self) -> str:
        return self.user.name

    @property
    def connections(self) -> int:
        """Open connections of the user, over all its accounts."""
        return self.usage.connections

    def connect(self) -> bool:
        """Count one more connection; False at the user's limit."""
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
        """Move one connection and its channels to another account of the same user."""
        self.disconnect()
        self.usage.channels -= channels
        other.usage.connections += 1
        other.usage.channels += channels
        other.open += 1
        if other.busy is not None:
            other.busy.add(other)

    def open_channel(self) -> bool:
        """Count one more channel; False at the user's limit."""
        most = self.user.limits.max_channels
        if most is not None and self.usage.channels >= most:
            return False
        self.usage.channels += 1
        return True

    def close_channel(self) -> None:
        self.usage.channels -= 1

    def check_size(self, size: int) -> None:
        """Raises TooLarge for a message above the user's limit."""
        most = self.user.limits.max_message_bytes
        if most is not None and size > most:
            raise TooLarge(f"message size {size} is larger than the {most} bytes that user '{self.name}' may send")

    def check_rate(self, messages: int, now_us: int) -> None:
        """Count publishes of a client that cannot be slowed down.

        Raises Unavailable while the user is above its rate.
        """
        wait_us = self.spend(0, now_us)
        if wait_us:
            raise Unavailable(f"user '{self.name}' publishes too fast; try again in {wait_us / 1e6:.1f} s")
        self.spend(messages, now_us)

    def spend(self, messages: int, now_us: int) -> int:
        """Count publishes; returns the microseconds to pause reading from the sender.

        A burst may use up to one second's rate.
        """
        rate = self.user.limits.max_message_rate
        if rate is None:
            return 0
        start_us = max(self.usage.free_at_us, now_us - _BURST_US)
        self.usage.free_at_us = start_us + messages * 1_000_000 // max(rate, 1)
        return max(0, self.usage.free_at_us - now_us)


_BEGINNING: Final = b"eyJ"  # '{"', the start of a JSON object, in base64
_MAX_KNOWN: Final = 4096
_LOOK_US: Final = 500_000


@final
class Bearer:
    """Content of a verified token."""

    __slots__ = ("expires_us", "grants", "user")

    def __init__(self, user: str, expires_us: int, grants: Grants | None) -> None:
        self.user = user
        self.expires_us = expires_us
        self.grants = grants
        """None if the stored permissions count."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Tokens(ABC):
    """Verifies tokens. Callable from any thread."""

    @abstractmethod
    def read(self, token: bytes) -> Bearer:
        """Verify a token. Raises Refused with the reason."""


def is_token(password: bytes) -> bool:
    """True if a password looks like a JSON web token."""
    return password.startswith(_BEGINNING) and password.count(b".") == 2


@final
class Bearers:
    """Accounts of tokens: recently verified ones and connected ones."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[bytes, Account] = {}
        """By digest, oldest first."""
        self._busy: set[Account] = set()
        """Accounts with open connections."""
        self._next_look_us = 0

    def find(self, digest: bytes) -> Account | None:
        """The account of a token that is verified and not expired."""
        account = self._known.get(digest)
        if account is not None and account.expires_us <= self._clock.now_us():
            del self._known[digest]
            return None
        return account

    def admit(self, digest: bytes, bearer: Bearer, stored: Account | None) -> Account | None:
        """Make the account of a verified token; None if its user must be stored and is not."""
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
        """Close connections whose token has expired."""
        if not self._busy or self._clock.monotonic_us() < self._next_look_us:
            return
        self._next_look_us = self._clock.monotonic_us() + _LOOK_US
        now_us = self._clock.now_us()
        for account in list(self._busy):
            if account.expires_us <= now_us:
                account.end(f"the token of user '{account.name}' has expired")

    def change(self, name: str, user: User | None) -> None:
        """Apply a change of a stored user, None for a deletion, to the accounts of its tokens."""
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
        """Verify every token anew; open connections stay."""
        self._known.clear()


def _user(name: str, stored: User | None, grants: Grants | None) -> User:
    """The token's user: its tags if it grants rights, and the stored limits."""
    user = stored or User(name)
    return user if grants is None else replace(user, tags=grants.tags)


_log: Final = logging.getLogger("headrace.access")

_FIRST_WAIT_US: Final = 200_000
_LONGEST_WAIT_US: Final = 3_200_000  # twice that is below the limit of a handshake
_FORGOTTEN_US: Final = 60_000_000
_MAX_REMEMBERED: Final = 4096
_MAX_CHECKS: Final = 1024
_MAX_SUSPECT_CHECKS: Final = 8
_SHOWN: Final = 64

Result = TypeVar("Result")
Admit = Callable[[Account | None], None]
"""Called with the account, or with None for a refused login."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Background(ABC):
    """Runs work that would block the event loop."""

    @abstractmethod
    def run(self, work: Callable[[], Result], done: Callable[[Result], None]) -> None:
        """Run `work` in another thread, then `done` with its result in this one."""

    @abstractmethod
    def later(self, delay_us: int, call: Callable[[], None]) -> None:
        """Call a function in this thread after a delay."""


@final
class Login:
    """A user's login. Without a password it relies on the connection's certificate."""

    __slots__ = ("address", "is_loopback", "password", "user")

    def __init__(self, user: str, password: bytes | None, address: str, is_loopback: bool) -> None:
        self.user = user
        self.password = password
        self.address = address
        """Client address, without the port."""
        self.is_loopback = is_loopback


@final
class _Verdict:
    """Result of a check: the reason of a refusal, "" for none, and the content of a token."""

    __slots__ = ("bearer", "why")

    def __init__(self, why: str, bearer: Bearer | None = None) -> None:
        self.why = why
        self.bearer = bearer


@final
class _Failures:
    """Recent failed logins of one user or address, and the time before which the next must wait."""

    __slots__ = ("count", "until_us")

    def __init__(self) -> None:
        self.count = 0
        self.until_us = 0


@final
class Logins:
    """Checks logins and slows down guessing."""

    def __init__(self, background: Background, clock: Clock) -> None:
        self._background = background
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._failures: dict[str, _Failures] = {}
        self._waiting: dict[bytes, list[Callable[[_Verdict], None]]] = {}
        """Waiting logins by digest: one check answers all equal ones."""
        self._checks: dict[str, int] = {}
        """Waiting checks by address."""

    def check(self, login: Login, account: Account | None, admit: Admit) -> None:
        """Check a password and call `admit`: at once if the answer is known, else after a check in the background.

        An unknown user takes as long as a wrong password. Only the log has the reason of a refusal.
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
        """Check a token and call `admit`; the token names the user, whatever name comes with it.

        `find` returns the account of a stored user.
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
        """True if too many checks wait; addresses with failures get fewer, so guessing blocks nobody else."""
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
        """Run a check in the background, one for all equal logins, unless too many wait."""
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
        if wait_us:  # no function in here may use `done`: compiled, it would be in a cycle that keeps the connection
            self._background.later(wait_us, partial(self._background.run, work, done))
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

    # -- delays --------------------------------------------------------------------------------------------------------

    def _wait_us(self, login: Login) -> int:
        """Delay of a check after earlier failures."""
        now_us = self._clock.monotonic_us()
        found = [self._failures.get(place) for place in _places(login)]
        return max([0, *[failures.until_us - now_us for failures in found if failures is not None]])

    def _failed(self, login: Login) -> int:
        """Count a failure; returns the delay of its answer, doubled each time."""
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
        """Keyed digest of a password, valid for this process and this hash only."""
        parts = (user.encode(errors="replace"), password_hash.encode(), password)
        text = b"".join([len(part).to_bytes(4, "big") + part for part in parts])
        return hashlib.blake2b(text, key=self._key, digest_size=32).digest()


def _places(login: Login) -> list[str]:
    """Keys of this login's failures. A token names no user before it is verified."""
    address = _by_address(login)
    return ["user " + login.user, address] if login.user else [address]


def _by_address(login: Login) -> str:
    return "address " + login.address


def _shown(login: Login) -> str:
    return f"user {login.user[:_SHOWN]!r}" if login.user else "somebody"
