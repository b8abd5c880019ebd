"""Frame of a page: login, address, body, answer, errors. The pages are in the other modules of this room."""

import asyncio
import base64
import binascii
import ipaddress
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Final, TypeVar, cast, final
from urllib.parse import unquote, urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from headrace.admin.site import MANAGEMENT, MONITORING, Site, Visitor
from headrace.admin.slices import AT_ONCE, ordered, sliced
from headrace.config.kinds import Flag, Kind, Number, Unfit
from headrace.config.table import Model, parse_model, read_model
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
"""Key of a request's scope for the Presence of its connection."""
_PROTOCOL: Final = "HTTP"
_log: Final = logging.getLogger("headrace.admin")


@final
class Presence:
    """One connection, and the user of its last request."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._user = ""

    def came(self, user: str) -> None:
        """Note a request of this user; log the first one."""
        if user != self._user:
            self._user = user
            _log.info("connected", extra=self._about())

    def left(self) -> None:
        """Log the end of the connection."""
        if self._user:
            _log.info("the connection is ended", extra=self._about())

    def _about(self) -> dict[str, str]:
        return {"connection": self._name, "protocol": _PROTOCOL, "user": self._user}


class BadRequest(Refused):
    """The request is malformed: a parameter, the body."""


class NoLogin(AccessRefused):
    """The login is missing or wrong."""


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
    """Make the answer to a request that failed."""
    return JSONResponse({"error": error, "reason": reason}, status, headers)


async def on_refusal(request: Request, error: Exception) -> Response:
    """Answer a request that the broker refused."""
    for kind, status, name in _STATUS:
        if isinstance(error, kind):
            headers: dict[str, str] = {}
            if status == 401 and "x-requested-with" not in request.headers:  # scripts ask the user for the password
                headers["www-authenticate"] = 'Basic realm="Headrace"'
            if status == 413:
                headers["connection"] = "close"
            return problem(status, name, str(error), headers)
    raise error


async def on_http_error(request: Request, error: Exception) -> Response:
    """Answer a request for an unknown page or method."""
    assert isinstance(error, HTTPException)
    names = {404: "not_found", 405: "method_not_allowed"}
    return problem(error.status_code, names.get(error.status_code, "error"), error.detail, dict(error.headers or {}))


async def on_failure(request: Request, error: Exception) -> Response:
    """Answer a request that failed by a bug; the log has the traceback."""
    _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return problem(500, "internal_error", "this is an error of the server; its log says more")


Item = TypeVar("Item")

_SLICE_BYTES: Final = 128 << 10
"""Bytes of a list after which other work runs."""


def encode(value: object) -> str:
    """Encode a value as JSON in ASCII: texts of clients may be invalid Unicode, which ASCII escapes."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def answer(value: object, status: int = 200) -> Response:
    """Answer with one short value."""
    return Response(encode(value).encode("ascii"), status, media_type="application/json")


def nothing(status: int = 204) -> Response:
    return Response(status_code=status)


def streamed(parts: AsyncIterator[bytes]) -> Response:
    """Answer with JSON that is sent in parts, as it is made."""
    return Parts(parts, media_type="application/json")


@final
class Parts(StreamingResponse):
    """An answer in parts. It breaks off visibly if the rest of it becomes unreadable, and ends when its client leaves.

    The base class ends it by an error, whose traceback is a cycle: what the client was to get next stayed in memory.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        parts = cast("AsyncGenerator[bytes, None]", self.body_iterator)
        leaving = asyncio.create_task(_disconnected(receive))
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for part in parts:
                await send({"type": "http.response.body", "body": part, "more_body": True})
                if leaving.done():
                    return
        except HeadraceError as error:
            _log.warning("an answer breaks off: %s", error)
            return  # the answer has no end, so the connection is closed
        finally:
            leaving.cancel()
            await parts.aclose()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _disconnected(receive: Receive) -> None:
    """Wait until the client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def array(items: Iterable[Item], shown: Callable[[Item], object]) -> AsyncIterator[bytes]:
    """Encode a list as JSON, one slice at a time; `shown` returns None for an item that is gone."""
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
    """Return the names after `last` in order, and the `after` of the next page; None at the end."""
    found = await ordered([name async for name in sliced(names, 1000) if name > last or not last])
    return found[:limit], found[limit - 1] if len(found) > limit else None


async def listed(items: Sequence[Item], next_after: object, shown: Callable[[Item], object]) -> Response:
    """Answer with a page of a list, and the start of the next page."""
    parts = [part async for part in array(items, shown)]
    raw = b'{"items":' + b"".join(parts) + b',"next":' + encode(next_after).encode("ascii") + b"}"
    return Response(raw, media_type="application/json")


MAX_BODY_BYTES: Final = 32 << 20
BODY_SECONDS: Final = 60.0
_LONG_BYTES: Final = 256 << 10
"""Size from which a body is parsed in a thread."""
_SAFE: Final = ("GET", "HEAD", "OPTIONS")


@final
class Call:
    """One request of a user who logged in."""

    __slots__ = ("_body", "request", "site", "visitor")

    def __init__(self, request: Request, site: Site, visitor: Visitor) -> None:
        self.request = request
        self.site = site
        self.visitor = visitor
        self._body = 0

    # -- the address ---------------------------------------------------------------------------------------

    def path(self, name: str) -> str:
        """Return a parameter of the route. Raises BadRequest."""
        try:
            return unquote(self.request.path_params[name], errors="strict")
        except UnicodeDecodeError as error:
            raise BadRequest(f"the {name} in the address is not UTF-8") from error

    def text(self, name: str, default: str = "") -> str:
        """Return a query parameter as text."""
        return self.request.query_params.get(name, default)

    def number(self, name: str, default: int, least: int, most: int) -> int:
        """Return a query parameter as a whole number. Raises BadRequest."""
        text = self.text(name)
        return cast("int", _parsed(name, Number(least, most), text)) if text else default

    def flag(self, name: str) -> bool:
        """Return a query parameter as true or false. Raises BadRequest."""
        return bool(_parsed(name, Flag(), self.text(name, "false")))

    def query(self, model: type[Model]) -> Model:
        """Read the query parameters into their model. Raises Fault."""
        return parse_model(model, self.request.query_params)

    def condition(self, name: str) -> bool:
        """Read a condition of a deletion, spelled our way or RabbitMQ's: both count."""
        return self.flag(name) or self.flag(name.replace("_", "-"))

    # -- rights -------------------------------------------------------------------------------------

    def sees(self, host: str) -> bool:
        """Return True if the visitor may see the resources of a virtual host."""
        return self.visitor.may(MONITORING) or self.site.access.rights(self.visitor.account, host) is not None

    def broker(self, host: str) -> Broker:
        """Return the broker of a virtual host that the visitor may see. Raises NotFound, AccessRefused."""
        found = self.site.hosts.find(host)
        if found is None:
            raise NotFound(f"no vhost '{host}'")
        if not self.visitor.may(MONITORING):
            self.site.access.enter(self.visitor.account, host)
        return found

    def rights(self, host: str) -> Rights:
        """Return the visitor's rights in a virtual host. Raises NotFound, AccessRefused."""
        self.broker(host)
        rights = self.site.access.rights(self.visitor.account, host)
        if rights is None:
            raise AccessRefused(f"user '{self.visitor.name}' has no permissions in vhost '{host}'")
        return rights

    def enter(self, host: str) -> tuple[Broker, Rights]:
        """Return a virtual host that the visitor may use, and the rights there. Raises NotFound, AccessRefused."""
        broker = self.site.hosts.find(host)
        if broker is None:
            raise NotFound(f"no vhost '{host}'")
        return broker, self.site.access.enter(self.visitor.account, host)

    def record(self, what: str) -> None:
        """Log a deletion, with the visitor's name."""
        _log.info("%s, by user %r over HTTP", what, self.visitor.name)

    async def stored(self, broker: Broker) -> None:
        """Wait until all operations so far are durable."""
        await done(broker.when_safe)

    async def kept(self, broker: Broker) -> None:
        """Wait until all declarations, bindings, deletions and purges so far are durable."""

        def start(tell: Done) -> None:
            if not broker.when_kept(tell):
                tell(None)

        await done(start)

    # -- the body ------------------------------------------------------------------------------------------

    async def body(self, max_bytes: int = MAX_BODY_BYTES) -> bytes:
        """Read the body. Raises TooLarge, BadRequest if it does not arrive, Unavailable without memory for it."""
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
        """Parse the body as a JSON object; an empty body is an empty object. Raises BadRequest."""
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

    async def read(self, model: type[Model], is_lenient: bool = False) -> Model:
        """Read the body into its model. Raises Fault, and the errors of `json`."""
        return read_model(model, await self.json(), "the body", is_lenient)

    def release(self) -> None:
        """Give back the memory of the body."""
        self.site.hosts.intake.give_back(self._body)
        self._body = 0

    def _take(self, size: int) -> None:
        if not self.site.hosts.intake.borrow(size):
            raise Unavailable("too many large requests at once; try again later")
        self._body += size


def _parsed(name: str, kind: Kind, text: str) -> object:
    try:
        return kind.parse(text)
    except Unfit as error:
        raise BadRequest(f"{name!r} {error}, not {text[:40]!r}") from error


async def done(start: Callable[[Done], object]) -> None:
    """Start an operation and wait for its callback. Raises the error that the callback gets."""
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
    """Makes routes to pages that need a login."""

    def __init__(self, site: Site) -> None:
        self.site = site

    def route(self, path: str, page: Page, method: str = "GET", tag: str = MANAGEMENT) -> Route:
        """Make the route of a page for users with this tag. `path` has Starlette's parameters: `/queues/{name}`.

        Paths are matched undecoded, so a name may have any character; `Call.path` decodes it.
        """

        async def endpoint(request: Request) -> Response:
            _check_origin(request)
            visitor = await self.visitor(request)
            if not visitor.may(tag):
                raise AccessRefused(f"user {visitor.name!r} needs the tag {tag!r} for this")
            call = Call(request, self.site, visitor)
            try:
                return await page(call)
            finally:
                call.release()

        return Route(path, endpoint, methods=[method])

    async def visitor(self, request: Request) -> Visitor:
        """Log the visitor in. Raises NoLogin."""
        name, password = _credentials(request.headers.get("authorization", ""))
        address = "local" if request.client is None else request.client.host
        visitor = await self.site.sign_in(Login(name, password, address, is_from_here(request)))
        if visitor is None:
            raise NoLogin("Login failed")
        presence = request.scope.get(SCOPE_KEY)
        if isinstance(presence, Presence):
            presence.came(visitor.name)
        return visitor


def is_from_here(request: Request) -> bool:
    """Return True if the client is on this machine."""
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
    """Return name and password; a token is a password without a name."""
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
    """Refuse changes that a page of another site makes a browser send."""
    if request.method in _SAFE:
        return
    origin = request.headers.get("origin", "")
    if origin and urlsplit(origin).netloc != request.headers.get("host", ""):
        raise AccessRefused("requests that change something are not taken from other sites' pages")


def _parse(raw: bytes) -> object:
    """Raises ValueError and RecursionError."""
    # The hook does nothing, but calling it lets other threads run while a long body is parsed.
    return json.loads(raw, parse_constant=_no_constant, object_hook=_same if len(raw) >= _LONG_BYTES else None)


def _same(found: dict[str, object]) -> dict[str, object]:
    return found


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no number in JSON")
