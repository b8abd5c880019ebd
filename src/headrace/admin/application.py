"""All pages under one roof: which room brings which routes, and what happens when one of them fails."""

import asyncio
import contextlib

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.admin import bulk, health, metrics, publishing
from headrace.admin.api import pages as api
from headrace.admin.dashboard import routes as dashboard
from headrace.admin.listener import Contribute
from headrace.admin.pages import Pages, on_failure, on_http_error, on_refusal
from headrace.admin.rabbitmq import pages as rabbitmq
from headrace.admin.site import Site
from headrace.errors import HeadraceError


def application(site: Site, contributions: list[Contribute]) -> ASGIApp:
    """The application that answers every HTTP request.

    A room inside `admin` adds its `routes(pages)` to the list below, made with `Pages.route`, which sees to the login.
    A room outside gives `app.py` a function that returns its routes; those look after logins themselves.
    """
    pages = Pages(site)
    routes = [
        *dashboard(),
        *health.routes(site),
        *metrics.routes(pages),
        *publishing.routes(pages),
        *bulk.routes(pages),
        *api.routes(pages),
        *rabbitmq.routes(pages),
    ]
    for contribute in contributions:
        routes += contribute()
    handlers = {HeadraceError: on_refusal, HTTPException: on_http_error, Exception: on_failure}
    return _as_sent(_while_true(site, Starlette(routes=routes, exception_handlers=handlers)))


def _while_true(site: Site, application: ASGIApp) -> ASGIApp:
    """Answer nothing that another node may know better: it is asked again there."""

    async def called(scope: Scope, receive: Receive, send: Send) -> None:
        is_shut = False

        async def checked(event: Message) -> None:
            nonlocal is_shut
            standing = site.standing
            if event["type"] == "http.response.start" and standing is not None and not standing.may_write():
                is_shut = True
                headers = [(b"content-length", b"0"), (b"retry-after", b"1")]
                await send({"type": "http.response.start", "status": 503, "headers": headers})
                await send({"type": "http.response.body"})
            elif not is_shut:
                await send(event)

        await application(scope, receive, checked)

    return called


def _as_sent(application: ASGIApp) -> ASGIApp:
    """Match paths as they were sent: decoded, a slash in a name would look like one between names."""

    async def called(scope: Scope, receive: Receive, send: Send) -> None:
        raw = scope.get("raw_path")
        if isinstance(raw, bytes):
            scope = {**scope, "path": raw.decode("latin-1")}
        with contextlib.suppress(asyncio.CancelledError):  # the broker stops, and the connection is gone
            await application(scope, receive, send)

    return called
