"""The beginning of a connection: start, tune, open, with SASL's answers. An open connection is connection.py's."""

from collections.abc import Callable, Mapping
from typing import Final, final

from pamqp import base, commands

from headrace.core.access.logins import Account, Login
from headrace.core.client import Client
from headrace.errors import AccessRefused, HeadraceError, ProtocolError
from headrace.model import AMQP091
from headrace.net.connection import Wire
from headrace.protocols.amqp091.frames import (
    CHANNEL_MAX,
    COMMAND_INVALID,
    FRAME_MAX_SIZE,
    FRAME_MIN_SIZE,
    HEARTBEAT_SECONDS,
    NOT_ALLOWED,
    SYNTAX_ERROR,
)
from headrace.protocols.amqp091.methods import encode_method
from headrace.protocols.amqp091.publishing import PROTOCOL
from headrace.protocols.amqp091.server import ConnectionContext, Server
from headrace.wire.amqp091 import Reader
from headrace.wire.types import LongString

PLAIN: Final = "PLAIN"
AMQPLAIN: Final = "AMQPLAIN"
EXTERNAL: Final = "EXTERNAL"


def parse_login(mechanism: str, response: bytes, certificate_name: str, address: str, is_loopback: bool) -> Login:
    """Raises ProtocolError when the response is not one of the mechanism."""
    if mechanism == PLAIN:
        parts = response.split(b"\0")
        if len(parts) != 3:
            raise ProtocolError(SYNTAX_ERROR, "a PLAIN response is an identity, a user and a password with NUL between")
        return Login(parts[1].decode(errors="replace"), parts[2], address, is_loopback)
    if mechanism == AMQPLAIN:
        size = len(response).to_bytes(4, "big")
        table = Reader(size + response).table()
        user, password = table.get("LOGIN"), table.get("PASSWORD")
        if not isinstance(user, str) or not isinstance(password, str | LongString):
            raise ProtocolError(SYNTAX_ERROR, "an AMQPLAIN response is a table with LOGIN and PASSWORD")
        return Login(user, password.encode() if isinstance(password, str) else bytes(password), address, is_loopback)
    if mechanism == EXTERNAL and certificate_name:
        return Login(certificate_name, None, address, is_loopback)
    raise ProtocolError(SYNTAX_ERROR, f"the mechanism {mechanism[:32]!r} is not offered")


# RabbitMQ's clients look for these before they use them.
CAPABILITIES: Final[Mapping[str, object]] = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "consumer_priorities": True,
    "authentication_failure_close": True,
    "per_consumer_qos": True,
    "direct_reply_to": True,
}


def start_fields(version: str, has_certificate: bool) -> dict[str, object]:
    """The fields of connection.start. Clients with a certificate that names them are offered EXTERNAL."""
    properties = {
        "capabilities": CAPABILITIES,
        "cluster_name": "headrace",
        "copyright": "",
        "information": "Licensed under the Apache License 2.0",
        "platform": "Python",
        "product": "Headrace",
        "version": version,
    }
    return {
        "version_major": 0,
        "version_minor": 9,
        "server_properties": properties,
        "mechanisms": (f"{PLAIN} {AMQPLAIN}" + (f" {EXTERNAL}" if has_certificate else "")).encode(),
        "locales": b"en_US",
    }


@final
class Handshake:
    """Asks and answers until the connection is open."""

    def __init__(self, server: Server, wire: Wire, refuse: Callable[[HeadraceError], None]) -> None:
        self._server = server
        self._wire = wire
        self._refuse = refuse
        self._expected: type[base.Frame] | None = commands.Connection.StartOk
        """The method that must come next; None while a login is being checked."""
        self._account: Account | None = None
        self._client_id = ""
        self._frame_max = FRAME_MAX_SIZE
        self.heartbeat = 0
        self.client_properties: Mapping[str, object] = {}
        self.capabilities: Mapping[str, object] = {}
        self.channel_max = CHANNEL_MAX

    def start(self) -> None:
        self._send(commands.Connection.Start, **start_fields(self._server.version, bool(self._wire.certificate_name)))

    def handle(self, method: base.Frame) -> ConnectionContext | None:
        """Go a step on; the last one gives the context. Raises AccessRefused, ProtocolError."""
        if type(method) is not self._expected:
            due = "nothing" if self._expected is None else self._expected.name
            raise ProtocolError(COMMAND_INVALID, f"{method.name} where {due} is due")
        if isinstance(method, commands.Connection.StartOk):
            self._log_in(method)
        elif isinstance(method, commands.Connection.TuneOk):
            self._tune(method)
        elif isinstance(method, commands.Connection.Open):
            return self._open(method.virtual_host)
        return None

    def _log_in(self, method: commands.Connection.StartOk) -> None:
        given: Mapping[str, object] = method.client_properties
        self.client_properties = given
        capabilities = given.get("capabilities")
        self.capabilities = capabilities if isinstance(capabilities, dict) else {}
        name = given.get("connection_name")
        self._client_id = name if isinstance(name, str) and name else self._wire.peer
        response: object = method.response  # pamqp says str; our reader leaves long strings as bytes
        assert isinstance(response, bytes)
        wire = self._wire
        login = parse_login(method.mechanism, response, wire.certificate_name, wire.address, wire.is_loopback)
        self._expected = None
        self._server.access.login(login, lambda account: self._logged_in(method.mechanism, account))

    def _logged_in(self, mechanism: str, account: Account | None) -> None:
        if account is None:
            self._refuse(AccessRefused(f"Login was refused using authentication mechanism {mechanism}."))
            return
        self._account = account
        self._send(
            commands.Connection.Tune, channel_max=CHANNEL_MAX, frame_max=FRAME_MAX_SIZE, heartbeat=HEARTBEAT_SECONDS
        )
        self._expected = commands.Connection.TuneOk

    def _tune(self, method: commands.Connection.TuneOk) -> None:
        frame_max = method.frame_max or FRAME_MAX_SIZE
        if not FRAME_MIN_SIZE <= frame_max <= FRAME_MAX_SIZE:
            raise ProtocolError(
                NOT_ALLOWED, f"negotiated frame_max = {frame_max} is not from {FRAME_MIN_SIZE} to {FRAME_MAX_SIZE}"
            )
        if method.channel_max > CHANNEL_MAX:
            raise ProtocolError(NOT_ALLOWED, f"negotiated channel_max = {method.channel_max} is above {CHANNEL_MAX}")
        self._frame_max = frame_max
        self.channel_max = method.channel_max or CHANNEL_MAX
        self.heartbeat = method.heartbeat
        self._expected = commands.Connection.Open

    def _open(self, name: str) -> ConnectionContext:
        account = self._account
        assert account is not None
        host = self._server.find_host(name)
        if host is None:
            raise ProtocolError(NOT_ALLOWED, f"vhost {name} not found")
        try:
            rights = self._server.access.enter(account, name)
        except AccessRefused as error:
            raise ProtocolError(NOT_ALLOWED, str(error)) from error
        client = Client(host.broker, account, rights, self._client_id, PROTOCOL, AMQP091)
        return ConnectionContext(self._wire, host, client, self.capabilities, self._frame_max)

    def renew(
        self, context: ConnectionContext, method: commands.Connection.UpdateSecret, channels: Callable[[], int]
    ) -> None:
        """Go on with another token of the same user; a client that came with a password has nothing to renew."""
        client = context.client
        if not client.account.expires_us:
            self._send(commands.Connection.UpdateSecretOk)
            return
        secret: object = method.new_secret  # as above
        assert isinstance(secret, bytes)
        login = Login(client.account.name, secret, self._wire.address, self._wire.is_loopback)
        self._server.access.login(login, lambda account: self._renewed(client, account, channels()))

    def _renewed(self, client: Client, account: Account | None, channels: int) -> None:
        if not client.is_connected:
            return  # the connection ended meanwhile
        name = client.account.name
        rights = None if account is None else self._server.access.rights(account, client.rights.host)
        if account is None or rights is None or account.name != name:
            self._refuse(ProtocolError(NOT_ALLOWED, f"the new secret is none of user '{name}' in this vhost"))
            return
        client.renew(account, rights, channels)
        self._send(commands.Connection.UpdateSecretOk)

    def _send(self, kind: type[base.Frame], **fields: object) -> None:
        self._wire.send(encode_method(0, kind, fields))
