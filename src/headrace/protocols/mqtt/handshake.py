"""How a connection begins: who the client is, what it asked for, what it is told. What follows is in connection.py."""

import secrets
from typing import TYPE_CHECKING, Final, final

from headrace.config.settings import MqttSettings
from headrace.core.account import Account
from headrace.core.envelope import Envelope
from headrace.core.logins import Admit, Login
from headrace.core.publisher import Publisher
from headrace.core.rights import Rights
from headrace.core.session import FOREVER, Will
from headrace.core.topology import DEFAULT_HOST
from headrace.core.users import GUEST
from headrace.errors import AccessRefused, ProtocolError, Refused
from headrace.model import MQTT5, Message, Source
from headrace.protocols.mqtt.encoding import encode_connack
from headrace.protocols.mqtt.packets import V5, Connect
from headrace.protocols.mqtt.property_list import (
    ASSIGNED_CLIENT_IDENTIFIER,
    MAXIMUM_PACKET_SIZE,
    RECEIVE_MAXIMUM,
    RESPONSE_INFORMATION,
    SERVER_KEEP_ALIVE,
    SESSION_EXPIRY,
    TOPIC_ALIAS_MAXIMUM,
    PropertyList,
)
from headrace.protocols.mqtt.reasons import (
    BAD_AUTHENTICATION_METHOD,
    BAD_USER_NAME_OR_PASSWORD,
    CLIENT_IDENTIFIER_NOT_VALID,
    NOT_AUTHORIZED,
    QUOTA_EXCEEDED,
    SUCCESS,
    TOPIC_NAME_INVALID,
)
from headrace.protocols.mqtt.server import Host, Server

if TYPE_CHECKING:
    from headrace.net.connection import Wire

PROTOCOL: Final = "mqtt"
_MOST: Final = 65_535
_ASSIGNED_PREFIX: Final = "auto-"
_FOREVER: Final = 0xFFFF_FFFF


@final
class Handshake:
    """One CONNECT, from the login to the CONNACK."""

    def __init__(self, server: Server, wire: "Wire", connect: Connect) -> None:
        """Raises ProtocolError for what cannot be served, before anything is done."""
        self._server = server
        self._wire = wire
        self.connect = connect
        self._is_assigned = not connect.client_id
        if connect.authentication_method is not None:  # MQTT 5 [4.12]
            method = connect.authentication_method
            raise ProtocolError(BAD_AUTHENTICATION_METHOD, f"there is no authentication method {method[:64]!r} here")
        if self._is_assigned:
            if connect.version != V5 and not connect.clean_start:  # MQTT 3.1.1 [MQTT-3.1.3-8]
                raise ProtocolError(CLIENT_IDENTIFIER_NOT_VALID, "a session that is kept needs a client identifier")
            connect.client_id = _ASSIGNED_PREFIX + secrets.token_urlsafe(12)
        self._host_name, self._user = _split(connect.user_name)

    @property
    def lifetime_s(self) -> int:
        """How long the session outlives the connection."""
        return kept_seconds(self._server.limits, self.connect.session_expiry_seconds)

    @property
    def keep_alive_s(self) -> int:
        """How often the client must be heard of; 0 for never. One that cannot be told another is taken at its word."""
        asked = self.connect.keep_alive_seconds
        most = min(_seconds(self._server.limits.max_keep_alive), _MOST)
        is_too_long = most and (not asked or asked > most)
        return most if is_too_long and self.connect.version == V5 else asked

    # -- coming in ---------------------------------------------------------------------------------------------------

    def log_in(self, admit: Admit) -> None:
        """Have the login checked. Without a name, a client from this machine is guest."""
        wire = self._wire
        password: bytes | None = self.connect.password or b""
        user = self._user
        if self.connect.user_name is None:
            if wire.certificate_name:
                user, password = wire.certificate_name, None
            elif wire.is_loopback:
                user, password = GUEST, GUEST.encode()
            else:
                admit(None)
                return
        self._server.access.login(Login(user, password, wire.address, wire.is_loopback), admit)

    def admit(self, account: Account | None) -> Account:
        """Raises ProtocolError when the login was wrong."""
        if account is not None:
            return account
        if self.connect.user_name is None:
            raise ProtocolError(NOT_AUTHORIZED, "a user name and a password are needed")
        raise ProtocolError(BAD_USER_NAME_OR_PASSWORD, "user name or password are wrong")

    def enter(self, account: Account) -> tuple[Host, Rights]:
        """The virtual host, and what the user may do there. Raises ProtocolError."""
        host = self._server.find_host(self._host_name)
        rights = self._server.access.rights(account, self._host_name) if host is not None else None
        if host is None or rights is None:
            raise ProtocolError(
                NOT_AUTHORIZED, f"access to vhost '{self._host_name}' refused for user '{account.name}'"
            )
        sessions, most = host.broker.sessions, self._server.limits.max_sessions
        if len(sessions) >= most and sessions.get(self.connect.client_id) is None:
            raise ProtocolError(QUOTA_EXCEEDED, f"vhost '{self._host_name}' has {most} sessions and may have no more")
        if not account.connect():
            raise ProtocolError(
                QUOTA_EXCEEDED, f"user '{account.name}' has {account.connections} connections and may have no more"
            )
        return host, rights

    def will(self, publisher: Publisher) -> Will | None:
        """What is to be published when the client is lost. Raises ProtocolError when it may not be."""
        will = self.connect.will
        if will is None:
            return None
        try:
            publisher.check(will.topic)
        except Refused as error:
            code = NOT_AUTHORIZED if isinstance(error, AccessRefused) else TOPIC_NAME_INVALID
            raise ProtocolError(code, f"the will: {error}") from error
        source = Source(will.topic, "", self.connect.client_id, PROTOCOL, MQTT5)
        message = Message(source, will.payload, self._server.clock.now_us(), will.properties.raw)
        expires_s = will.properties.expiry_seconds
        return Will(
            Envelope(message, will.qos, will.retain), will.delay_seconds, 0 if expires_s is None else max(1, expires_s)
        )

    # -- what the client is told -------------------------------------------------------------------------------------

    def answer(self, session_present: bool) -> None:
        """CONNACK."""
        connect = self.connect
        properties = self._properties() if connect.version == V5 else None
        self._wire.send(encode_connack(connect.version, session_present, SUCCESS, properties))

    def _properties(self) -> PropertyList:
        connect, limits = self.connect, self._server.limits
        said = PropertyList()
        if limits.receive_maximum < _MOST:
            said.numbers[RECEIVE_MAXIMUM] = limits.receive_maximum
        said.numbers[MAXIMUM_PACKET_SIZE] = limits.max_packet_bytes
        said.numbers[TOPIC_ALIAS_MAXIMUM] = limits.topic_alias_maximum
        if self.lifetime_s != kept_seconds(None, connect.session_expiry_seconds):
            said.numbers[SESSION_EXPIRY] = self.lifetime_s
        if self._is_assigned:
            said.texts[ASSIGNED_CLIENT_IDENTIFIER] = connect.client_id
        if self.keep_alive_s != connect.keep_alive_seconds:
            said.numbers[SERVER_KEEP_ALIVE] = self.keep_alive_s
        if connect.wants_response_information:
            said.texts[RESPONSE_INFORMATION] = f"responses/{connect.client_id}"
        return said


def kept_seconds(limits: MqttSettings | None, asked_seconds: int) -> int:
    """How long a session is kept, as core says it: as long as was asked for, up to the limit."""
    most = 0 if limits is None else _seconds(limits.max_session_expiry)
    if asked_seconds == _FOREVER:
        return most or FOREVER
    return min(asked_seconds, most) if most else asked_seconds


def _seconds(milliseconds: int) -> int:
    """Whole seconds: the protocol has no others."""
    return -(-milliseconds // 1000)


def _split(user_name: str | None) -> tuple[str, str]:
    """The virtual host and the user: `host:user`, or the default host's user."""
    name = user_name or ""
    host, colon, user = name.rpartition(":")
    return (host, user) if colon and host else (DEFAULT_HOST, name)
