"""All operations of the API as routes, and the document that describes them."""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from headrace.admin.api import (
    cluster,
    connections,
    dead_letters,
    groups,
    history,
    messages,
    overview,
    queues,
    reload,
    sessions,
    users,
)
from headrace.admin.api.openapi import document
from headrace.admin.api.operation import PREFIX, Operation
from headrace.admin.pages import Pages, answer
from headrace.version import __version__

OPERATIONS: Final[tuple[Operation, ...]] = (
    *overview.OPERATIONS,
    *cluster.OPERATIONS,
    *queues.OPERATIONS,
    *messages.OPERATIONS,
    *groups.OPERATIONS,
    *dead_letters.OPERATIONS,
    *history.OPERATIONS,
    *connections.OPERATIONS,
    *sessions.OPERATIONS,
    *users.OPERATIONS,
    *reload.OPERATIONS,
)


def routes(pages: Pages) -> list[BaseRoute]:
    """A route for each operation; the document needs no login."""

    async def openapi(request: Request) -> Response:
        return answer(document(OPERATIONS, __version__))

    found: list[BaseRoute] = [Route(f"{PREFIX}/openapi.json", openapi)]
    for operation in OPERATIONS:
        found.append(pages.route(PREFIX + operation.path, operation.page, operation.method, operation.needs))
    return found
