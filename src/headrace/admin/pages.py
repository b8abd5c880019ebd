"""How a page is put together: who may see it, what its address and its body say. The pages themselves are elsewhere."""

import asyncio
import base64
import binascii
import ipaddress
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, final
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.admin.problems import BadRequest, NoLogin
from headrace.admin.site import MANAGEMENT, Site, Visitor
from headrace.core.logins import Login
from headrace.errors import AccessRefused, TooLarge, Unavailable

MAX_BODY_BYTES: Final = 32 << 20
BODY_SECONDS: Final = 60.0
MAX_BODIES_BYTES: Final = 256 << 20
"""All bodies that are being read or worked on together."""
_SAFE: Final = ("GET", "HEAD", "OPTIONS")


@final
class Intake:
    """How much of the memory for request bodies is in use."""

    def __init__(self) -> None:
        self.used_bytes = 0


@final
class Call:
    """One request of somebody who logged in."""

    __slots__ = ("_body", "_intake", "request", "site", "visitor")

    def __init__(self, request: Request, site: Site, visitor: Visitor, intake: Intake) -> None:
        self.request = request
        self.site = site
        self.visitor = visitor
        self._intake = intake
        self._body = 0

    @property
    def path(self) -> Mapping[str, str]:
        """What the address says at the places of the route's parameters."""
        return self.request.path_params

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
        return b"".join(parts)

    async def json(self, max_bytes: int = MAX_BODY_BYTES) -> object:
        """What the body says as JSON; None when it is empty. Raises BadRequest as well."""
        raw = await self.body(max_bytes)
        if not raw.strip():
            return None
        try:
            return json.loads(raw, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise BadRequest(f"the body is not JSON: {error}") from error

    def release(self) -> None:
        """The body is not needed any more."""
        self._intake.used_bytes -= self._body
        self._body = 0

    def _take(self, size: int) -> None:
        if self._intake.used_bytes + size > MAX_BODIES_BYTES:
            raise Unavailable("too many large requests at once; try again later")
        self._intake.used_bytes += size
        self._body += size


Page = Callable[[Call], Awaitable[Response]]


@final
class Pages:
    """Makes routes to pages that only those who logged in see."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._intake = Intake()

    def route(self, path: str, page: Page, method: str = "GET", tag: str = MANAGEMENT) -> Route:
        """A page for visitors with this tag. `path` has Starlette's parameters: `/queues/{name}`, `/{rest:path}`."""

        async def endpoint(request: Request) -> Response:
            _check_origin(request)
            visitor = await self.visitor(request)
            if not visitor.may(tag):
                raise AccessRefused(f"user {visitor.name!r} needs the tag {tag!r} for this")
            call = Call(request, self._site, visitor, self._intake)
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
    scheme, _, value = header.partition(" ")
    if scheme.lower() != "basic":
        raise NoLogin("log in with HTTP basic authentication")
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


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no number in JSON")
