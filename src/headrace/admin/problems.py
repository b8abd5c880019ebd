"""What goes wrong, as HTTP says it: one table from our errors to status codes. The shape is RabbitMQ's."""

import logging
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

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

_log: Final = logging.getLogger("headrace.admin")


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
