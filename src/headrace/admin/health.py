"""Whether the process lives and whether it serves: for load balancers and supervisors, without a login."""

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from headrace.admin.site import Site


def routes(site: Site) -> list[BaseRoute]:
    def facts() -> dict[str, str]:
        return {} if site.standing is None else {"role": site.standing.role, "group": site.standing.group}

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "healthy", **facts()})

    async def ready(request: Request) -> Response:
        trouble = site.trouble()
        if trouble:
            return JSONResponse({"status": "not ready", "reason": trouble, **facts()}, 503)
        return JSONResponse({"status": "ready", **facts()})

    return [Route("/health", health), Route("/ready", ready)]
