"""Whether a login is right: checked aside, remembered when it was, slowed down when it was not. Users: access.py."""

import hashlib
import hmac
import logging
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final, TypeVar, final

from mypy_extensions import mypyc_attr

from headrace.clock import Clock
from headrace.core.account import Account
from headrace.core.passwords import is_right
from headrace.core.users import GUEST, GUEST_HASH

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
        self._waiting: dict[bytes, list[Callable[[bool], None]]] = {}
        """Logins that ask the same, by digest: one check answers all of them."""
        self._checks: dict[str, int] = {}
        """How many checks wait for logins from an address."""

    def check(self, login: Login, account: Account | None, admit: Admit) -> None:
        """Have `admit` told whether the login is right: now when that is known, else when it was found out.

        An unknown user takes as long as a wrong password. Nobody is told why a login is refused but the log.
        """
        if login.password is None:
            self._decide(login, account, True, admit)
            return
        password_hash = account.user.password_hash if account is not None else ""
        digest = self._digest(login.user, login.password, password_hash)
        if account is not None and account.proof and hmac.compare_digest(account.proof, digest):
            self._decide(login, account, True, admit)
            return
        if digest not in self._waiting and self._is_one_too_many(login):
            _log.warning(
                "too many logins at once: one of user %s from %s is refused",
                _shown(login),
                login.address,
                extra={"user": login.user[:_SHOWN]},
            )
            admit(None)
            return

        def checked(is_password_right: bool) -> None:
            if is_password_right and account is not None:
                account.proof = digest
            self._decide(login, account, is_password_right, admit)

        self._ask(login, digest, password_hash, checked)

    def _is_one_too_many(self, login: Login) -> bool:
        """Whoever guesses must not take the place of those who come for the first time."""
        is_suspect = _by_address(login) in self._failures
        most = _MAX_SUSPECT_CHECKS if is_suspect else _MAX_CHECKS
        return len(self._waiting) >= _MAX_CHECKS or self._checks.get(login.address, 0) >= most

    def _ask(self, login: Login, digest: bytes, password_hash: str, checked: Callable[[bool], None]) -> None:
        same = self._waiting.setdefault(digest, [])
        same.append(checked)
        if len(same) > 1:
            return
        self._checks[login.address] = self._checks.get(login.address, 0) + 1
        password = login.password or b""
        known = password_hash or GUEST_HASH

        def work() -> bool:
            return is_right(password, known) and bool(password_hash)

        def done(is_password_right: bool) -> None:
            self._checks[login.address] -= 1
            if not self._checks[login.address]:
                del self._checks[login.address]
            for tell in self._waiting.pop(digest):
                tell(is_password_right)

        wait_us = self._wait_us(login)
        if wait_us:
            self._background.later(wait_us, lambda: self._background.run(work, done))
        else:
            self._background.run(work, done)

    def _decide(self, login: Login, account: Account | None, is_password_right: bool, admit: Admit) -> None:
        if account is None:
            why = "there is no such user"
        elif not is_password_right:
            why = "the password is wrong"
        elif account.name == GUEST and not login.is_loopback:
            why = f"{GUEST} may log in from this machine only; add a user for others"
        else:
            self._failures.pop(_by_user(login), None)
            self._failures.pop(_by_address(login), None)
            admit(account)
            return
        about = {"user": login.user[:_SHOWN]}
        _log.warning("login of user %s from %s refused: %s", _shown(login), login.address, why, extra=about)
        self._background.later(self._failed(login), lambda: admit(None))

    # -- slowing down ------------------------------------------------------------------------------------------------

    def _wait_us(self, login: Login) -> int:
        """How long a login has to wait before it is looked at, for what went wrong before."""
        now_us = self._clock.monotonic_us()
        found = [self._failures.get(place) for place in (_by_user(login), _by_address(login))]
        return max([0, *[failures.until_us - now_us for failures in found if failures is not None]])

    def _failed(self, login: Login) -> int:
        """Count a failure; returns how long its answer takes, twice as long each time."""
        now_us = self._clock.monotonic_us()
        longest_us = 0
        for place in (_by_user(login), _by_address(login)):
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


def _by_user(login: Login) -> str:
    return "user " + login.user


def _by_address(login: Login) -> str:
    return "address " + login.address


def _shown(login: Login) -> str:
    return repr(login.user[:_SHOWN])
