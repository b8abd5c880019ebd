"""How a page is put together: who may see it, its address, body, answer and errors. The pages are elsewhere."""

import asyncio
import base64
import binascii
import ipaddress
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar, final
from urllib.parse import unquote, urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from headrace.admin.site import MANAGEMENT, MONITORING, Site, Visitor
from headrace.admin.slices import AT_ONCE, ordered, sliced
from headrace.core.access.logins import Login, is_token
from headrace.core.access.permissions import Rights
from headrace.core.broker import Broker
from headrace.errors import (
    AccessRefused,
    Corrupt,
    HeadraceError,
    NotFound,
    PreconditionFailed,
    Refused,
    ResourceLocked,
    TooLarge,
    Truncated,
    Unavailable,
)
from headrace.storage.api import Done

SCOPE_KEY: Final = "headrace.presence"
"""Where a request has the presence of its connection, in its scope."""
_PROTOCOL: Final = "HTTP"
_log: Final = logging.getLogger("headrace.admin")


@final
class Presence:
    """One connection, and the user whose requests came on it last."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._user = ""

    def came(self, user: str) -> None:
        """A request of this user came; the first is told."""
        if user != self._user:
            self._user = user
            _log.info("connected", extra=self._about())

    def left(self) -> None:
        """The connection is over."""
        if self._user:
            _log.info("the connection is ended", extra=self._about())

    def _about(self) -> dict[str, str]:
        return {"connection": self._name, "protocol": _PROTOCOL, "user": self._user}


class BadRequest(Refused):
    """The request itself makes no sense: a parameter, the body."""


class NoLogin(AccessRefused):
    """Nobody logged in, or with the wrong password."""


_STATUS: Final[tuple[tuple[type[HeadraceError], int, str], ...]] = (
    (BadRequest, 400, "bad_request"),
    (TooLarge, 413, "too_large"),
    (NoLogin, 401, "not_authorised"),
    (NotFound, 404, "not_found"),
    (Truncated, 409, "truncated"),
    (AccessRefused, 403, "forbidden"),
    (PreconditionFailed, 409, "conflict"),
    (ResourceLocked, 409, "locked"),
    (Refused, 400, "bad_request"),
    (Unavailable, 503, "unavailable"),
    (Corrupt, 503, "damaged"),
    (HeadraceError, 500, "error"),
)


def problem(status: int, error: str, reason: str, headers: dict[str, str] | None = None) -> Response:
    """An answer that says what went wrong."""
    return JSONResponse({"error": error, "reason": reason}, status, headers)


async def on_refusal(request: Request, error: Exception) -> Response:
    """The answer to a request that the broker refused."""
    for kind, status, name in _STATUS:
        if isinstance(error, kind):
            headers: dict[str, str] = {}
            if status == 401 and "x-requested-with" not in request.headers:  # scripts ask the user themselves
                headers["www-authenticate"] = 'Basic realm="Headrace"'
            if status == 413:
                headers["connection"] = "close"
            return problem(status, name, str(error), headers)
    raise error


async def on_http_error(request: Request, error: Exception) -> Response:
    """The answer to a request for a page that there is not, or not with this method."""
    assert isinstance(error, HTTPException)
    names = {404: "not_found", 405: "method_not_allowed"}
    return problem(error.status_code, names.get(error.status_code, "error"), error.detail, dict(error.headers or {}))


async def on_failure(request: Request, error: Exception) -> Response:
    """The answer when it is our fault; the log has the traceback."""
    _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return problem(500, "internal_error", "this is an error of the server; its log says more")


Item = TypeVar("Item")

_SLICE_BYTES: Final = 128 << 10
"""How much of a list is made at once, if its items are long."""


def encode(value: object) -> str:
    """JSON in ASCII: texts that clients sent need not be valid Unicode, and must not spoil the answer."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def answer(value: object, status: int = 200) -> Response:
    """One value that is not long."""
    return Response(encode(value).encode("ascii"), status, media_type="application/json")


def nothing(status: int = 204) -> Response:
    return Response(status_code=status)


def streamed(parts: AsyncIterator[bytes]) -> Response:
    """JSON that is sent piece by piece, as it is made."""
    return StreamingResponse(parts, media_type="application/json")


async def array(items: Iterable[Item], shown: Callable[[Item], object]) -> AsyncIterator[bytes]:
    """A list as JSON, a slice at a time; `shown` has None for an item that is gone by now."""
    before = "["
    texts: list[str] = []
    count = size = 0
    for item in items:
        count += 1
        value = shown(item)
        if value is not None:
            text = encode(value)
            texts.append(text)
            size += len(text)
        if count >= AT_ONCE or size >= _SLICE_BYTES:
            if texts:
                yield (before + ",".join(texts)).encode("ascii")
                before = ","
            texts = []
            count = size = 0
            await asyncio.sleep(0)
    yield ((before if texts or before == "[" else "") + ",".join(texts) + "]").encode("ascii")


async def after(names: Iterable[str], last: str, limit: int) -> tuple[list[str], str | None]:
    """The names behind `last` in order, and the one to go on after, None at the end."""
    found = await ordered([name async for name in sliced(names, 1000) if name > last or not last])
    return found[:limit], found[limit - 1] if len(found) > limit else None


async def listed(items: Sequence[Item], next_after: object, shown: Callable[[Item], object]) -> Response:
    """A part of a list, with where the next part begins."""
    parts = [part async for part in array(items, shown)]
    raw = b'{"items":' + b"".join(parts) + b',"next":' + encode(next_after).encode("ascii") + b"}"
    return Response(raw, media_type="application/json")


_MAX: Final = 1 << 53


@final
class Section:
    """One table of a body."""

    def __init__(self, where: str, values: Mapping[str, object]) -> None:
        self._where = where
        self._values = values
        self._read: list[str] = []
        self._sections: list[Section] = []

    def check_all_read(self) -> None:
        """Raises Refused when there is a key that means nothing."""
        for name in self._values:
            if name not in self._read:
                known = ", ".join(sorted(set(self._read)))
                raise Refused(f"{self._where}: there is no key {name!r}; known are {known}")
        for section in self._sections:
            section.check_all_read()

    def get(self, name: str) -> object:
        self._read.append(name)
        return self._values.get(name)

    def section(self, name: str) -> "Section":
        value = self.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise self.bad(name, value, "must be a table")
        section = Section(f"{self._where}, {name}", value or {})
        self._sections.append(section)
        return section

    def text(self, name: str, default: str) -> str:
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise Refused(f"{self._where}: {name!r} must be a text, not {_kind(value)}")  # it may be a secret
        return value

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        value = self.text(name, default)
        if value not in choices:
            raise self.bad(name, value, f"must be one of {', '.join(choices)}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.bad(name, value, "must be true or false")
        return value

    def number(self, name: str, default: int, least: int = 0, most: int = _MAX) -> int:
        value = self.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.bad(name, value, f"must be a whole number from {least} to {most}")
        return value

    def bad(self, name: str, value: object, what: str) -> Refused:
        return Refused(f"{self._where}: {name!r} {what}, not {value!r}")


def _kind(value: object) -> str:
    """What JSON calls it."""
    if isinstance(value, Mapping):
        return "an object"
    return "a list" if isinstance(value, list) else "true or false" if isinstance(value, bool) else "a number"


MAX_BODY_BYTES: Final = 32 << 20
BODY_SECONDS: Final = 60.0
_LONG_BYTES: Final = 256 << 10
"""A body of at least this size is taken apart beside the event loop."""
_SAFE: Final = ("GET", "HEAD", "OPTIONS")


@final
class Call:
    """One request of somebody who logged in."""

    __slots__ = ("_body", "request", "site", "visitor")

    def __init__(self, request: Request, site: Site, visitor: Visitor) -> None:
        self.request = request
        self.site = site
        self.visitor = visitor
        self._body = 0

    # -- what the address says ---------------------------------------------------------------------------------------

    def path(self, name: str) -> str:
        """What the address says at the place of one of the route's parameters."""
        try:
            return unquote(self.request.path_params[name], errors="strict")
        except UnicodeDecodeError as error:
            raise BadRequest(f"the {name} in the address is not UTF-8") from error

    def text(self, name: str, default: str = "") -> str:
        """A parameter behind the question mark."""
        return self.request.query_params.get(name, default)

    def number(self, name: str, default: int, least: int, most: int) -> int:
        """The same, as a whole number. Raises BadRequest."""
        text = self.request.query_params.get(name, "")
        if not text:
            return default
        if not (text.isascii() and text.isdecimal() and len(text) <= 19 and least <= int(text) <= most):
            raise BadRequest(f"{name!r} takes a whole number from {least} to {most}, not {text[:40]!r}")
        return int(text)

    def flag(self, name: str) -> bool:
        """The same, as true or false. Raises BadRequest."""
        text = self.request.query_params.get(name, "false")
        if text not in ("true", "false"):
            raise BadRequest(f"{name!r} takes true or false, not {text[:40]!r}")
        return text == "true"

    def condition(self, name: str) -> bool:
        """A flag on which something is removed, in our spelling or RabbitMQ's: neither must be passed over."""
        return self.flag(name) or self.flag(name.replace("_", "-"))

    # -- what the visitor may do -------------------------------------------------------------------------------------

    def sees(self, host: str) -> bool:
        """Whether the visitor may look at what is in a virtual host."""
        return self.visitor.may(MONITORING) or self.site.access.rights(self.visitor.account, host) is not None

    def broker(self, host: str) -> Broker:
        """A virtual host to look at. Raises NotFound, AccessRefused."""
        found = self.site.hosts.find(host)
        if found is None:
            raise NotFound(f"no vhost '{host}'")
        if not self.sees(host):
            raise AccessRefused(f"access to vhost '{host}' refused for user '{self.visitor.name}'")
        return found

    def rights(self, host: str) -> Rights:
        """What the visitor may do in a virtual host. Raises NotFound, AccessRefused."""
        self.broker(host)
        rights = self.site.access.rights(self.visitor.account, host)
        if rights is None:
            raise AccessRefused(f"user '{self.visitor.name}' has no permissions in vhost '{host}'")
        return rights

    def meter(self, messages: int, largest_bytes: int) -> None:
        """Count what the visitor is about to publish. Raises TooLarge, Unavailable when that is too much for now."""
        self.site.hosts.check_memory()
        account = self.visitor.account
        if account.is_metered:
            account.check_size(largest_bytes)
            account.check_rate(messages, self.site.clock.monotonic_us())

    def record(self, what: str) -> None:
        """Write down what a visitor removed."""
        _log.info("%s, by user %r over HTTP", what, self.visitor.name)

    async def stored(self, broker: Broker) -> None:
        """Return when everything called so far would survive a crash."""
        await done(broker.when_safe)

    async def kept(self, broker: Broker) -> None:
        """Return when all that was declared, bound, deleted or purged so far would; at once where it does already."""

        def start(tell: Done) -> None:
            if not broker.when_kept(tell):
                tell(None)

        await done(start)

    # -- what the body says ------------------------------------------------------------------------------------------

    async def body(self, max_bytes: int = MAX_BODY_BYTES) -> bytes:
        """The whole body. Raises TooLarge, BadRequest when it does not come, Unavailable when too many come at once."""
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for part in self.request.stream():
                    size += len(part)
                    if size > max_bytes:
                        raise TooLarge(f"the body has more than {max_bytes} bytes, which is the most here")
                    self._take(len(part))
                    parts.append(part)
        except TimeoutError as error:
            raise BadRequest(f"the body did not come within {BODY_SECONDS:g} s") from error
        except ClientDisconnect as error:
            raise BadRequest("the connection ended before the body did") from error
        return b"".join(parts)

    async def json(self) -> dict[str, object]:
        """The table that the body is, as JSON; empty when there is none. Raises BadRequest as well."""
        raw = await self.body()
        if not raw.strip():
            return {}
        try:
            found = _parse(raw) if len(raw) < _LONG_BYTES else await asyncio.to_thread(_parse, raw)
        except (ValueError, RecursionError) as error:
            raise BadRequest(f"the body is not JSON: {error}") from error
        if not isinstance(found, dict):
            raise BadRequest("the body must be a JSON object")
        return found

    async def section(self) -> Section:
        """The same, to be read key by key."""
        return Section("the body", await self.json())

    def release(self) -> None:
        """The body is not needed any more."""
        self.site.hosts.intake.give_back(self._body)
        self._body = 0

    def _take(self, size: int) -> None:
        if not self.site.hosts.intake.borrow(size):
            raise Unavailable("too many large requests at once; try again later")
        self._body += size


async def done(start: Callable[[Done], None]) -> None:
    """Start something that says when it is done, and wait for that. Raises what it is told."""
    answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def tell(error: HeadraceError | None) -> None:
        if answer.done():
            return
        if error is None:
            answer.set_result(None)
        else:
            answer.set_exception(error)

    start(tell)
    await answer


Page = Callable[[Call], Awaitable[Response]]


@final
class Pages:
    """Makes routes to pages that only those who logged in see."""

    def __init__(self, site: Site) -> None:
        self._site = site

    @property
    def site(self) -> Site:
        return self._site

    def route(self, path: str, page: Page, method: str = "GET", tag: str = MANAGEMENT) -> Route:
        """A page for visitors with this tag. `path` has Starlette's parameters: `/queues/{name}`.

        Paths are matched as they were sent, so that a name may have any character in its encoded form: `Call.path`
        decodes it.
        """

        async def endpoint(request: Request) -> Response:
            _check_origin(request)
            visitor = await self.visitor(request)
            if not visitor.may(tag):
                raise AccessRefused(f"user {visitor.name!r} needs the tag {tag!r} for this")
            call = Call(request, self._site, visitor)
            try:
                return await page(call)
            finally:
                call.release()

        return Route(path, endpoint, methods=[method])

    async def visitor(self, request: Request) -> Visitor:
        """Who asks. Raises NoLogin."""
        name, password = _credentials(request.headers.get("authorization", ""))
        address = "local" if request.client is None else request.client.host
        visitor = await self._site.sign_in(Login(name, password, address, is_from_here(request)))
        if visitor is None:
            raise NoLogin("Login failed")
        presence = request.scope.get(SCOPE_KEY)
        if isinstance(presence, Presence):
            presence.came(visitor.name)
        return visitor


def is_from_here(request: Request) -> bool:
    """Whether the client is on this machine."""
    if request.client is None:
        return True
    try:
        address = ipaddress.ip_address(request.client.host)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


def _credentials(header: str) -> tuple[str, bytes]:
    """Name and password; of a token it is the password alone, as a token says whose it is."""
    scheme, _, value = header.partition(" ")
    if scheme.lower() == "bearer" and is_token(token := value.strip().encode(errors="replace")):
        return "", token
    if scheme.lower() != "basic":
        raise NoLogin("log in with HTTP basic authentication, or with a token as bearer")
    try:
        user, colon, password = base64.b64decode(value.strip(), validate=True).partition(b":")
        name = user.decode()
    except (binascii.Error, UnicodeDecodeError, ValueError) as error:
        raise NoLogin("the login is no name and password in base64") from error
    if not colon:
        raise NoLogin("the login has no colon between name and password")
    return name, password


def _check_origin(request: Request) -> None:
    """A page of somebody else's must not make a visitor's browser change anything here."""
    if request.method in _SAFE:
        return
    origin = request.headers.get("origin", "")
    if origin and urlsplit(origin).netloc != request.headers.get("host", ""):
        raise AccessRefused("requests that change something are not taken from other sites' pages")


def _parse(raw: bytes) -> object:
    """Raises ValueError and RecursionError."""
    # The hook does nothing. Calling it lets other threads run: without it a long body would hold up all of them.
    return json.loads(raw, parse_constant=_no_constant, object_hook=_same if len(raw) >= _LONG_BYTES else None)


def _same(found: dict[str, object]) -> dict[str, object]:
    return found


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no number in JSON")
