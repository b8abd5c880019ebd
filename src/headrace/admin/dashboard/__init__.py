"""Routes of the dashboard's files, which are served as they are in the package. The scripts have the behaviour."""

import hashlib
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

_FILES: Final = Path(__file__).parent
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HEADERS: Final = {
    "cache-control": "no-cache",
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


def routes() -> list[BaseRoute]:
    """Return the page at `/` and its files at `/dashboard/`; they need no login, the API does."""
    found: list[BaseRoute] = [_route("/", _FILES / "index.html")]
    for file in sorted(_FILES.iterdir()):
        if file.suffix in _TYPES:
            found.append(_route(f"/dashboard/{file.name}", file))
    return found


def _route(path: str, file: Path) -> Route:
    content = file.read_bytes()
    headers = {**_HEADERS, "etag": f'"{hashlib.sha256(content).hexdigest()[:32]}"'}

    async def page(request: Request) -> Response:
        if request.headers.get("if-none-match") == headers["etag"]:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=_TYPES[file.suffix], headers=headers)

    return Route(path, page)
