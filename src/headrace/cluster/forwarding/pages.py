"""The HTTP side of a node that does not own the store: a few pages of its own, all else goes to the owner."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, final

from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.admin.exposition import CONTENT_TYPE, Exposition
from headrace.admin.metrics import standing_metrics
from headrace.admin.problems import problem
from headrace.admin.process import cpu_seconds, file_limit, memory_bytes, open_files
from headrace.admin.site import Standing
from headrace.admin.stack import Stack
from headrace.cluster.forwarding.proxy import pass_on
from headrace.cluster.status import FOLLOWER
from headrace.config.settings import FORWARD, REJECT
from headrace.errors import HeadraceError, Unavailable
from headrace.version import __version__

if TYPE_CHECKING:
    from headrace.admin.site import TakeOver
    from headrace.cluster.forwarding.doorway import Doorway

_LISTENER: Final = "http"
_TEMPORARY: Final = 307
_AWAY: Final = 503

_CLUSTER: Final = "/api/v1/cluster"


def speaker(doorway: "Doorway", web_sockets: "Mapping[str, TakeOver]", standing: Standing | None) -> Stack:
    """What speaks HTTP while this node does not serve. What it is in the cluster is not known at the very start."""
    return Stack(FollowerPages(doorway, standing), web_sockets)


@final
class FollowerPages:
    """Answers every request while this node does not serve. Nobody can log in here: users are the owner's."""

    def __init__(self, doorway: "Doorway", standing: Standing | None) -> None:
        self._doorway = doorway
        self._standing = standing
        self._own: dict[str, Callable[[], Response]] = {
            "/health": lambda: JSONResponse({"status": "healthy", **self._facts()}),
            "/ready": self._ready,
            "/metrics": self._metrics,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # a WebSocket that nobody takes over is refused by who asks
        own = self._own.get(scope["path"]) if scope["method"] in ("GET", "HEAD") else None
        answer: ASGIApp | None
        if own is not None:
            answer = own()
        elif scope["path"] == _CLUSTER:
            answer = await self._cluster()
        elif self._doorway.policy == FORWARD:
            answer = await self._pass_on(scope, receive, send)
        else:
            answer = self._turn_away(scope)
        if answer is not None:
            await answer(scope, receive, send)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> Response | None:
        """None where the owner has answered."""
        try:
            await pass_on(self._doorway, scope, receive, send)
        except Unavailable as error:
            return problem(_AWAY, "unavailable", str(error), {"retry-after": "1"})
        return None

    def _turn_away(self, scope: Scope) -> Response:
        is_tls = scope.get("scheme") == "https"
        elsewhere = self._doorway.whither(_LISTENER)(is_tls)
        if self._doorway.policy != REJECT or not elsewhere.address:
            return problem(_AWAY, "unavailable", elsewhere.why, {"retry-after": "1"})
        path = scope["raw_path"].decode("latin-1")
        query = scope["query_string"].decode("latin-1")
        scheme = "https" if is_tls else "http"
        return RedirectResponse(f"{scheme}://{elsewhere.address}{path}{'?' + query if query else ''}", _TEMPORARY)

    async def _cluster(self) -> Response:
        """Without a login, as there is nobody who could check one: addresses and releases of nodes, no more."""
        if self._standing is None:
            return problem(_AWAY, "unavailable", "this node has only just started", {"retry-after": "1"})
        try:
            return JSONResponse(dict(await self._standing.status()))
        except HeadraceError as error:
            return problem(_AWAY, "unavailable", str(error), {"retry-after": "1"})

    def _facts(self) -> dict[str, str]:
        return {"role": FOLLOWER, **({} if self._standing is None else {"group": self._standing.group})}

    def _ready(self) -> Response:
        """Ready is who serves clients, or has them served."""
        owner = self._doorway.owner
        facts = {**self._facts(), "owner": "" if owner is None else owner.name}
        if owner is not None and self._doorway.policy == FORWARD:
            return JSONResponse({"status": "ready", **facts})
        reason = self._doorway.whither(_LISTENER)(False).why
        return JSONResponse({"status": "not ready", "reason": reason, **facts}, _AWAY)

    def _metrics(self) -> Response:
        page = Exposition()
        page.gauge("headrace_info", "The release that runs.").add(1, {"version": __version__})
        is_ready = self._doorway.policy == FORWARD and self._doorway.owner is not None
        page.gauge("headrace_ready", "Whether what is published can be stored.").add(int(is_ready))
        if self._standing is not None:
            standing_metrics(page, self._standing)
        passed_on = page.gauge("headrace_forwarded_connections", "Connections that are passed on to the owner.")
        passed_on.add(self._doorway.passed_on)
        page.gauge("process_resident_memory_bytes", "Memory in use.").add(memory_bytes())
        page.counter("process_cpu_seconds_total", "Processor time used.").add(cpu_seconds())
        page.gauge("process_open_fds", "Open files and sockets.").add(open_files())
        page.gauge("process_max_fds", "How many there may be.").add(file_limit())
        return Response(page.encode(), media_type=CONTENT_TYPE)
