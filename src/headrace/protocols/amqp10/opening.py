"""What both sides say with open: who we are, and whether a client comes in. No state: see connection.py for that."""

from typing import Final

from headrace.core.account import Account
from headrace.errors import ProtocolError
from headrace.net.connection import Wire
from headrace.protocols.amqp10.frames import (
    CHANNEL_MAX,
    FRAME_SIZE_TOO_SMALL,
    IDLE_TIMEOUT_MS,
    MAX_FRAME_SIZE,
    MIN_FRAME_SIZE,
    NOT_ALLOWED,
    NOT_FOUND,
    RESOURCE_LIMIT,
    UNAUTHORIZED,
)
from headrace.protocols.amqp10.peer import Peer, Server
from headrace.protocols.amqp10.performatives import Open
from headrace.protocols.amqp10.types import Map

CONTAINER_ID: Final = "headrace"
_LEAST_IDLE_MS: Final = 200
_SOLE_CONNECTION: Final = "sole-connection-for-container"
_OFFERED: Final = ["ANONYMOUS-RELAY", "DELAYED_DELIVERY", "SHARED-SUBS", _SOLE_CONNECTION]

# Clients of RabbitMQ 4 refuse to speak to a server that does not say it is one: to them it does.
_COMPATIBLE_WITH: Final = "RabbitMQ"
_COMPATIBLE_VERSION: Final = "4.0.0"


def answer_open(opening: Open | None, version: str, is_in: bool) -> Open:
    """Ours, to a client that said this of itself and comes in, or does not."""
    answer = Open(CONTAINER_ID)
    answer.max_frame_size = MAX_FRAME_SIZE
    answer.channel_max = CHANNEL_MAX
    answer.idle_timeout = IDLE_TIMEOUT_MS // 2
    answer.offered = _OFFERED
    properties = _introduction(opening, version)
    if not is_in:
        properties["amqp:connection-establishment-failed"] = True
    answer.properties = Map.of(properties)
    return answer


def _introduction(opening: Open | None, version: str) -> dict[str, object]:
    """Who we are: RabbitMQ 4 to its own clients, and to those that do not say whose they are, as some of them."""
    said = None if opening is None else opening.properties.get("product")
    if isinstance(said, str) and _COMPATIBLE_WITH.lower() not in said.lower():
        return {"product": "Headrace", "version": version}
    return {"product": _COMPATIBLE_WITH, "version": _COMPATIBLE_VERSION, "platform": f"Headrace {version}"}


def enter(server: Server, wire: Wire, owner: object, account: Account, opening: Open) -> Peer:
    """Let a client into the virtual host that it wants, if it may. Raises ProtocolError."""
    if opening.max_frame_size < MIN_FRAME_SIZE:
        raise ProtocolError(FRAME_SIZE_TOO_SMALL, f"frames of {opening.max_frame_size} bytes are too small")
    if 0 < opening.idle_timeout < _LEAST_IDLE_MS:
        raise ProtocolError(NOT_ALLOWED, f"an idle timeout of {opening.idle_timeout} ms is below {_LEAST_IDLE_MS}")
    hostname = opening.hostname or ""
    name = hostname.removeprefix("vhost:") if hostname.startswith("vhost:") else "/"
    host = server.find_host(name)
    if host is None:
        raise ProtocolError(NOT_FOUND, f"there is no virtual host '{name[:64]}'")
    rights = server.access.rights(account, name)
    if rights is None:
        raise ProtocolError(UNAUTHORIZED, f"user '{account.name}' may not enter vhost '{name[:64]}'")
    if not account.connect():
        limit = account.user.limits.max_connections
        raise ProtocolError(RESOURCE_LIMIT, f"user '{account.name}' has the {limit} connections it may have")
    try:
        host.containers.enter(opening.container_id, _SOLE_CONNECTION in opening.desired)
    except ProtocolError:
        account.disconnect()
        raise
    peer = Peer(wire, owner, host, account, rights, opening.container_id)
    peer.frame_max = min(opening.max_frame_size, MAX_FRAME_SIZE)
    return peer
