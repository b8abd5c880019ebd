"""How a page is put together: who may see it, what its address and its body say. The pages themselves are elsewhere."""

import asyncio
import base64
import binascii
import ipaddress
import json
from collections.abc import Awaitable, Callable
from typing import Final, final
from urllib.parse import unquote, urlsplit

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.admin.presence import SCOPE_KEY, Presence
from headrace.admin.problems import BadRequest, NoLogin
from headrace.admin.section import Section
from headrace.admin.site import MANAGEMENT, MONITORING, Site, Visitor
from headrace.core.bearers import is_token
from headrace.core.broker import Broker
from headrace.core.logins import Login
from headrace.core.rights import Rights
from headrace.errors import AccessRefused, HeadraceError, NotFound, TooLarge, Unavailable
from headrace.storage.api import Done

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
        account = self.visitor.account
        if account.is_metered:
            account.check_size(largest_bytes)
            account.check_rate(messages, self.site.clock.monotonic_us())

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
            found = json.loads(raw, parse_constant=_no_constant)
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
        self._intake.used_bytes -= self._body
        self._body = 0

    def _take(self, size: int) -> None:
        if self._intake.used_bytes + size > MAX_BODIES_BYTES:
            raise Unavailable("too many large requests at once; try again later")
        self._intake.used_bytes += size
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
        self._intake = Intake()

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


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no number in JSON")
