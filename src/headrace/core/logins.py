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
from headrace.core.bearers import Bearer, Bearers, Tokens
from headrace.core.passwords import is_right
from headrace.core.users import GUEST, GUEST_HASH
from headrace.errors import Refused

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
