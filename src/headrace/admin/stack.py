"""What speaks HTTP: Starlette in uvicorn's protocol, on the broker's own event loop. Loaded when it is needed."""

import asyncio
from collections.abc import Mapping
from typing import Final, final

from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.server import ServerState

from headrace.admin.application import application
from headrace.admin.listener import Contribute, Speaker
from headrace.admin.protocol import BoundedProtocol
from headrace.admin.sampler import Sampler
from headrace.admin.site import Site, TakeOver
from headrace.net.origin import Origin

KEEP_ALIVE_SECONDS: Final = 60
CLOSE_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.02
MAX_FRAME_BYTES: Final = 16 << 20
"""The largest WebSocket message."""


@final
class Stack(Speaker):
    """The application and the connections it is served on."""

    def __init__(
        self, pages: ASGIApp, web_sockets: Mapping[str, TakeOver] | None = None, sampler: Sampler | None = None
    ) -> None:
        self._config = Config(
            pages,
            http=BoundedProtocol,
            ws="websockets-sansio",
            ws_max_size=MAX_FRAME_BYTES,
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
        )
        self._config.load()
        self._web_sockets = web_sockets or {}
        self._sampler = sampler
        if sampler is not None:
            sampler.start()
        self._state = ServerState()
        self._state.default_headers = [(b"server", b"headrace")]

    @staticmethod
    def of_site(site: Site, contributions: list[Contribute]) -> "Stack":
        """The pages of a broker."""
        return Stack(application(site, contributions), site.web_sockets, site.sampler)

    def protocol(self, origin: Origin | None = None) -> asyncio.Protocol:
        return BoundedProtocol(self._config, self._state, self._web_sockets, origin)

    @property
    def connections(self) -> int:
        return len(self._state.connections)

    async def close(self) -> None:
        if self._sampler is not None:
            self._sampler.stop()
        for connection in list(self._state.connections):
            connection.shutdown()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CLOSE_SECONDS
        while (self._state.connections or self._state.tasks) and loop.time() < deadline:
            await asyncio.sleep(_POLL_SECONDS)
        for connection in list(self._state.connections):
            connection.transport.abort()
        while self._state.connections:  # until they know it: an answer to nobody is not an error then
            await asyncio.sleep(0)
        for task in list(self._state.tasks):
            task.cancel()
