"""HTTP of a node that does not own the store: a few own pages, and the owner's answers for all else."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, final

import httptools
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.admin.metrics import (
    CONTENT_TYPE,
    Exposition,
    cluster_metrics,
    cpu_seconds,
    file_limit,
    memory_bytes,
    open_files,
)
from headrace.admin.pages import problem
from headrace.admin.site import ClusterStatus, TakeOver
from headrace.admin.stack import Stack
from headrace.cluster.forwarding.frontend import Frontend
from headrace.cluster.forwarding.preamble import HTTP
from headrace.cluster.forwarding.upstream import Sink, Upstream
from headrace.cluster.status import FOLLOWER
from headrace.config.settings import FORWARD, REJECT
from headrace.errors import HeadraceError, Unavailable
from headrace.net.connection import is_loopback
from headrace.net.facts import Origin
from headrace.version import __version__

PENDING_BYTES: Final = 256 << 10
"""Buffer for a client that reads slowly."""
# RFC 9110 [7.6.1]: hop-by-hop headers, not to be forwarded.
_NEIGHBOURS: Final = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
_NOT_ASKED: Final = _NEIGHBOURS | {b"expect"}  # this node answers `expect` itself
_NOT_ANSWERED: Final = _NEIGHBOURS | {b"server"}  # this node names itself


async def pass_on(frontend: Frontend, scope: Scope, receive: Receive, send: Send) -> None:
    """Forward a request to the owner. Raises Unavailable before the first byte of an answer."""
    upstream = await frontend.find(HTTP, _origin(scope, frontend.node))
    if not isinstance(upstream, Upstream):
        raise Unavailable("this node serves itself from now on; try again")
    exchange = Exchange(upstream, scope["method"] == "HEAD")
    upstream.attach(exchange)
    asking = asyncio.get_running_loop().create_task(_ask(exchange, scope, receive))
    try:
        await _answer(exchange, send)
    finally:
        asking.cancel()
        upstream.abort()


@final
class Exchange(Sink):
    """The owner's answer, piece by piece, and the flow control of the request."""

    def __init__(self, upstream: Upstream, is_head: bool) -> None:
        self._upstream = upstream
        self._is_head = is_head
        self._parser: Any = httptools.HttpResponseParser(self)
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._something = asyncio.Event()
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._is_paused = False
        self.headers: list[tuple[bytes, bytes]] = []
        self.status = 0
        self.has_begun = False
        self.is_whole = False
        self.is_over = False

    # -- the owner's bytes ---------------------------------------------------------------------------------------------

    def arrived(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._upstream.abort()
            self.over()

    def hold(self, is_held: bool) -> None:
        if is_held:
            self._may_write.clear()
        else:
            self._may_write.set()

    def over(self) -> None:
        self.is_over = True
        self._may_write.set()
        self._something.set()

    def on_message_begin(self) -> None:
        self.headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if self.status >= 200:
            self.has_begun = True
            self.is_whole = self._is_head
            self._something.set()

    def on_body(self, data: bytes) -> None:
        self._pending.append(data)
        self._pending_bytes += len(data)
        self._something.set()
        if self._pending_bytes > PENDING_BYTES and not self._is_paused:
            self._is_paused = True
            self._upstream.pause(True)

    def on_message_complete(self) -> None:
        if self.has_begun:
            self.is_whole = True
            self._something.set()

    # -- the answer for the client -------------------------------------------------------------------------------------

    async def write(self, data: bytes) -> None:
        """Send bytes to the owner; returns when it can take more."""
        self._upstream.write(data)
        await self._may_write.wait()

    async def begun(self) -> None:
        """Wait for the head of the answer. Raises Unavailable if the connection ends before."""
        while not self.has_begun:
            if self.is_over:
                raise Unavailable("the node that serves ended the connection before it answered; try again")
            await self._next()

    async def body(self) -> bytes:
        """The next piece of the answer; b"" at its end."""
        while not self._pending and not self.is_whole and not self.is_over:
            await self._next()
        data = b"".join(self._pending)
        self._pending.clear()
        self._pending_bytes = 0
        if self._is_paused:
            self._is_paused = False
            self._upstream.pause(False)
        return data

    async def _next(self) -> None:
        self._something.clear()
        await self._something.wait()


async def _ask(exchange: Exchange, scope: Scope, receive: Receive) -> None:
    """Send the request, then watch for the client's disconnect."""
    headers = [(name, value) for name, value in scope["headers"] if name not in _NOT_ASKED]
    names = {name for name, _ in scope["headers"]}
    is_chunked = b"transfer-encoding" in names
    target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
    lines = [scope["method"].encode() + b" " + target + b" HTTP/1.1", b"connection: close"]
    lines += [b"transfer-encoding: chunked"] if is_chunked else []
    lines += [name + b": " + value for name, value in headers]
    await exchange.write(b"\r\n".join([*lines, b"", b""]))
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            exchange.over()
            return
        body = event.get("body", b"")
        if body:
            await exchange.write(b"%x\r\n%b\r\n" % (len(body), body) if is_chunked else body)
        if not event.get("more_body", False) and is_chunked:
            is_chunked = False
            await exchange.write(b"0\r\n\r\n")


async def _answer(exchange: Exchange, send: Send) -> None:
    await exchange.begun()
    headers = [(name.lower(), value) for name, value in exchange.headers]
    kept = [(name, value) for name, value in headers if name not in _NOT_ANSWERED]
    await send({"type": "http.response.start", "status": exchange.status, "headers": kept})
    while data := await exchange.body():
        await send({"type": "http.response.body", "body": data, "more_body": True})
    if exchange.is_whole:
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _origin(scope: Scope, node: str) -> Origin:
    host, port = scope.get("client") or ("local", 0)
    server = scope.get("server") or ("", 0)
    return Origin(host, port, f"{server[0]}:{server[1]}", node, scope.get("scheme") == "https", is_loopback(host))


_LISTENER: Final = "http"
_TEMPORARY: Final = 307
_AWAY: Final = 503

_CLUSTER: Final = "/api/v1/cluster"


def speaker(frontend: Frontend, web_sockets: Mapping[str, TakeOver], cluster: ClusterStatus | None) -> Stack:
    """HTTP stack of a node that does not serve. `cluster` is None until the node has joined the cluster."""
    return Stack(FollowerPages(frontend, cluster), web_sockets)


@final
class FollowerPages:
    """Answers all requests while another node serves. It has no logins, because the owner has the users."""

    def __init__(self, frontend: Frontend, cluster: ClusterStatus | None) -> None:
        self._frontend = frontend
        self._cluster = cluster
        self._own: dict[str, Callable[[], Awaitable[Response]]] = {
            "/health": self._health,
            "/ready": self._ready,
            "/metrics": self._metrics,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # the caller refuses other WebSockets
        own = self._own.get(scope["path"]) if scope["method"] in ("GET", "HEAD") else None
        answer: ASGIApp | None
        if own is not None:
            answer = await own()
        elif scope["path"] == _CLUSTER:
            answer = await self._nodes()
        elif self._frontend.policy == FORWARD:
            answer = await self._pass_on(scope, receive, send)
        else:
            answer = self._turn_away(scope)
        if answer is not None:
            await answer(scope, receive, send)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> Response | None:
        """Forward the request; returns a response only if the owner gave none."""
        try:
            await pass_on(self._frontend, scope, receive, send)
        except Unavailable as error:
            return problem(_AWAY, "unavailable", str(error), {"retry-after": "1"})
        return None

    def _turn_away(self, scope: Scope) -> Response:
        is_tls = scope.get("scheme") == "https"
        redirect = self._frontend.find_redirect(_LISTENER)(is_tls)
        if self._frontend.policy != REJECT or not redirect.address:
            return problem(_AWAY, "unavailable", redirect.why, {"retry-after": "1"})
        path = scope["raw_path"].decode("latin-1")
        query = scope["query_string"].decode("latin-1")
        scheme = "https" if is_tls else "http"
        return RedirectResponse(f"{scheme}://{redirect.address}{path}{'?' + query if query else ''}", _TEMPORARY)

    async def _nodes(self) -> Response:
        """Answer without a login, because only the owner can check one: nodes, addresses, releases."""
        if self._cluster is None:
            return problem(_AWAY, "unavailable", "this node has only just started", {"retry-after": "1"})
        try:
            return JSONResponse(dict(await self._cluster.status()))
        except HeadraceError as error:
            return problem(_AWAY, "unavailable", str(error), {"retry-after": "1"})

    def _facts(self) -> dict[str, str]:
        return {"role": FOLLOWER, **({} if self._cluster is None else {"group": self._cluster.group})}

    async def _health(self) -> Response:
        return JSONResponse({"status": "healthy", **self._facts()})

    async def _trouble(self) -> str:
        """The reason why no client is served by way of this node; "" if they are."""
        if self._frontend.policy != FORWARD:
            return self._frontend.find_redirect(_LISTENER)(False).why
        return await self._frontend.trouble()

    async def _ready(self) -> Response:
        """A node is ready if the owner answers it: clients that it passes on are served then."""
        owner, reason = self._frontend.owner, await self._trouble()
        facts = {**self._facts(), "owner": "" if owner is None else owner.name}
        if not reason:
            return JSONResponse({"status": "ready", **facts})
        return JSONResponse({"status": "not ready", "reason": reason, **facts}, _AWAY)

    async def _metrics(self) -> Response:
        page = Exposition()
        page.gauge("headrace_info", "The release that runs.").add(1, {"version": __version__})
        page.gauge("headrace_ready", "Whether what is published can be stored.").add(int(not await self._trouble()))
        if self._cluster is not None:
            cluster_metrics(page, self._cluster)
        forwarded = page.gauge("headrace_forwarded_connections", "Connections that are passed on to the owner.")
        forwarded.add(self._frontend.forwarded)
        page.gauge("process_resident_memory_bytes", "Memory in use.").add(memory_bytes())
        page.counter("process_cpu_seconds_total", "Processor time used.").add(cpu_seconds())
        page.gauge("process_open_fds", "Open files and sockets.").add(open_files())
        page.gauge("process_max_fds", "How many there may be.").add(file_limit())
        return Response(page.encode(), media_type=CONTENT_TYPE)
