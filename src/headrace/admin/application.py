"""The HTTP application: routes of all rooms, health checks, and the handlers of errors."""

import asyncio
import contextlib

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.admin import bulk, bulk_claims, metrics, publishing
from headrace.admin.api import openapi
from headrace.admin.dashboard import routes as dashboard
from headrace.admin.listener import Contribute
from headrace.admin.pages import Pages, on_failure, on_http_error, on_refusal
from headrace.admin.rabbitmq import pages as rabbitmq
from headrace.admin.site import Site
from headrace.errors import HeadraceError


def application(site: Site, contributions: list[Contribute]) -> ASGIApp:
    """Make the application that answers every HTTP request.

    A module of this room adds its `routes(pages)` to the list below, made with `Pages.route`, which checks the login.
    Another room gives `app.py` a function that returns its routes; those check logins themselves.
    """
    pages = Pages(site)
    routes = [
        *dashboard(),
        *_health(site),
        *metrics.routes(pages),
        *publishing.routes(pages),
        *bulk.routes(pages),
        *bulk_claims.routes(pages),
        *openapi.routes(pages),
        *rabbitmq.routes(pages),
    ]
    for contribute in contributions:
        routes += contribute()
    handlers = {HeadraceError: on_refusal, HTTPException: on_http_error, Exception: on_failure}
    return _with_raw_path(_while_owner(site, Starlette(routes=routes, exception_handlers=handlers)))


def _health(site: Site) -> list[BaseRoute]:
    """Return the checks of load balancers and supervisors; they need no login."""

    def facts() -> dict[str, str]:
        return {} if site.cluster is None else {"role": site.cluster.role, "group": site.cluster.group}

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "healthy", **facts()})

    async def ready(request: Request) -> Response:
        trouble = site.trouble()
        if trouble:
            return JSONResponse({"status": "not ready", "reason": trouble, **facts()}, 503)
        return JSONResponse({"status": "ready", **facts()})

    return [Route("/health", health), Route("/ready", ready)]


def _while_owner(site: Site, application: ASGIApp) -> ASGIApp:
    """Answer 503 once another node may own the store: the client asks there again."""

    async def called(scope: Scope, receive: Receive, send: Send) -> None:
        is_shut = False

        async def checked(event: Message) -> None:
            nonlocal is_shut
            cluster = site.cluster
            if event["type"] == "http.response.start" and cluster is not None and not cluster.may_write():
                is_shut = True
                headers = [(b"content-length", b"0"), (b"retry-after", b"1")]
                await send({"type": "http.response.start", "status": 503, "headers": headers})
                await send({"type": "http.response.body"})
            elif not is_shut:
                await send(event)

        await application(scope, receive, checked)

    return called


def _with_raw_path(application: ASGIApp) -> ASGIApp:
    """Match undecoded paths: a decoded slash in a name would look like a separator."""

    async def called(scope: Scope, receive: Receive, send: Send) -> None:
        raw = scope.get("raw_path")
        if isinstance(raw, bytes):
            scope = {**scope, "path": raw.decode("latin-1")}
        with contextlib.suppress(asyncio.CancelledError):  # the broker stops, and the connection is gone
            await application(scope, receive, send)

    return called
