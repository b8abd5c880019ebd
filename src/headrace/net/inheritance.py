"""Listening sockets, opened anew or left by the program that this process ran before. Connections are not inherited."""

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from typing import Final

from headrace.errors import Unavailable
from headrace.net.connection import HANDSHAKE_SECONDS

_BACKLOG: Final = 1024


async def open_server(
    accept: Callable[[], asyncio.BaseProtocol], host: str, port: int, tls: ssl.SSLContext | None, left: int | None
) -> asyncio.Server:
    """Listen; port 0 picks a free one, and with a descriptor that was left nothing is picked.

    Raises Unavailable when the address cannot be had.
    """
    loop = asyncio.get_running_loop()
    patience = HANDSHAKE_SECONDS if tls is not None else None
    if left is not None:
        os.set_inheritable(left, False)
        sock = socket.socket(fileno=left)
        return await loop.create_server(accept, sock=sock, ssl=tls, backlog=_BACKLOG, ssl_handshake_timeout=patience)
    try:
        return await loop.create_server(accept, host, port, ssl=tls, backlog=_BACKLOG, ssl_handshake_timeout=patience)
    except OSError as error:
        raise Unavailable(
            f"cannot listen on {host}:{port}: {error.strerror or error}; is another broker running there?"
        ) from error


def leave(server: asyncio.Server) -> int:
    """A descriptor of what a server listens on that is still there for the program that comes after an exec."""
    descriptor = os.dup(server.sockets[0].fileno())
    os.set_inheritable(descriptor, True)
    return descriptor
