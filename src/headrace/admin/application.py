"""All pages under one roof: which room brings which routes, and what happens when one of them fails."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException

from headrace.admin import health, publishing
from headrace.admin.listener import Contribute
from headrace.admin.pages import Pages
from headrace.admin.problems import on_failure, on_http_error, on_refusal
from headrace.admin.site import Site
from headrace.errors import HeadraceError


def application(site: Site, contributions: list[Contribute]) -> Starlette:
    """The application that answers every HTTP request.

    A room inside `admin` adds its `routes(pages)` to the list below, made with `Pages.route`, which sees to the login.
    A room outside gives `app.py` a function that returns its routes; those look after logins themselves.
    """
    pages = Pages(site)
    routes = [*health.routes(site), *publishing.routes(pages)]
    for contribute in contributions:
        routes += contribute()
    handlers = {HeadraceError: on_refusal, HTTPException: on_http_error, Exception: on_failure}
    return Starlette(routes=routes, exception_handlers=handlers)
