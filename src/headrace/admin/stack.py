"""HTTP server: Starlette in uvicorn's protocol, with bounds, on the broker's event loop. listener.py loads it late."""

import asyncio
import sys
from collections.abc import Callable, Mapping
from typing import Final, final

from httptools import HttpParserUpgrade
from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from headrace.admin.application import application
from headrace.admin.listener import Contribute, Speaker
from headrace.admin.pages import SCOPE_KEY, Presence
from headrace.admin.sampler import Sampler
from headrace.admin.site import Site, TakeOver
from headrace.net.facts import Origin

MAX_HEAD_BYTES: Final = 64 << 10
"""Most bytes of a request line with its headers."""
HEAD_SECONDS: Final = 10.0
"""Longest time for a client to send them."""
STALL_SECONDS: Final = 30.0
"""Longest silence within a body, and longest wait for a client that does not read."""


@final
class BoundedProtocol(HttpToolsProtocol):
    """Ends connections of clients that are too slow or send too much."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        web_sockets: Mapping[str, TakeOver] | None = None,
        origin: Origin | None = None,
    ) -> None:
        super().__init__(config, server_state, {})
        self._origin = origin
        self._web_sockets = web_sockets or {}
        self._is_in_head = True
        self._head_bytes = 0
        self._segment = b""
        self._has_body_to_come = False
        self._reading = _Deadline(self.loop, self._on_silence)
        self._writing = _Deadline(self.loop, self._end)
        self._presence: Presence | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._origin is not None:
            self.client = (self._origin.address, self._origin.port)
            self.scheme = "https" if self._origin.is_tls else "http"
        self._presence = Presence(f"{_shown(self.client)} -> {_shown(self.server)}")
        self._reading.set(HEAD_SECONDS)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._has_body_to_come:
            self._reading.set(STALL_SECONDS)
        elif not self._reading.is_set:  # these are the first bytes of another request
            self._reading.set(HEAD_SECONDS)
        self._segment = data
        super().data_received(data)
        self._segment = b""
        if self._is_in_head and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse_head()

    def on_message_begin(self) -> None:
        self._is_in_head = True
        self._head_bytes = 0
        super().on_message_begin()
        self.scope[SCOPE_KEY] = self._presence  # type: ignore[typeddict-unknown-key]

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._has_body_to_come = True
        self._reading.set(STALL_SECONDS)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._has_body_to_come = False
        self._reading.stop()
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        self._reading.stop()
        take_over = self._web_sockets.get(self.url.partition(b"?")[0].decode("latin-1"))
        if take_over is None:
            super().handle_websocket_upgrade()
        else:
            self._hand_over(take_over())

    def _behind_head(self) -> bytes:
        """Return the bytes after an upgrade request in the same segment."""
        upgrade = sys.exception()
        if isinstance(upgrade, HttpParserUpgrade) and isinstance(upgrade.args[0], int):
            return self._segment[upgrade.args[0] :]
        return b""

    def _hand_over(self, protocol: asyncio.Protocol) -> None:
        """Hand the connection to another protocol, beginning with this request."""
        rest = self._behind_head()
        self.connections.discard(self)
        lines = [self.scope["method"].encode() + b" " + self.url + b" HTTP/1.1"]
        lines += [name + b": " + value for name, value in self.scope["headers"]]
        self.transport.set_protocol(protocol)
        protocol.connection_made(self.transport)
        protocol.data_received(b"\r\n".join([*lines, b"", b""]))
        if rest and not self.transport.is_closing():
            protocol.data_received(rest)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._writing.set(STALL_SECONDS)

    def resume_writing(self) -> None:
        self._writing.stop()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._reading.end()
        self._writing.end()
        if self._presence is not None:
            self._presence.left()
        super().connection_lost(exc)

    def _on_silence(self) -> None:
        if self.flow.read_paused:  # reading is paused by us
            self._reading.set(STALL_SECONDS)
        else:
            self._end()

    def _end(self) -> None:
        self.logger.warning("%s is too slow: the connection is ended", self.client)
        self.transport.abort()

    def _refuse_head(self) -> None:
        lines = [STATUS_LINE[431], b"content-length: 0\r\n", b"connection: close\r\n\r\n"]
        self.transport.write(b"".join(lines))
        self.transport.close()


def _shown(address: tuple[str, int | None] | None) -> str:
    return "local" if address is None else f"{address[0]}:{address[1]}"


def _nothing() -> None:
    return


@final
class _Deadline:
    """A timer that calls unless it is stopped in time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        self._loop = loop
        self._call = call
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_set(self) -> bool:
        return self._timer is not None

    def set(self, seconds: float) -> None:
        self.stop()
        self._timer = self._loop.call_later(seconds, self._call)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def end(self) -> None:
        """Stop for good: no reference cycle is left."""
        self.stop()
        self._call = _nothing


KEEP_ALIVE_SECONDS: Final = 60
CLOSE_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.02
MAX_FRAME_BYTES: Final = 16 << 20
"""Largest WebSocket message."""


@final
class Stack(Speaker):
    """The application with its connections."""

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
        """Make the stack of a broker."""
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
        while self._state.connections:  # an answer to an aborted connection must not be logged as an error
            await asyncio.sleep(0)
        for task in list(self._state.tasks):
            task.cancel()
