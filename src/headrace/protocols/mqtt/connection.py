"""One client's connection: from CONNECT to the end. Other files do what its packets ask for."""

import secrets
from typing import TYPE_CHECKING, Final, final

from headrace.config.settings import MqttSettings
from headrace.core.access.logins import Account, Admit, Login
from headrace.core.access.permissions import Rights
from headrace.core.access.users import GUEST
from headrace.core.client import Client as CoreClient
from headrace.core.flow import Holding
from headrace.core.pubsub.session import FOREVER, Envelope, Will
from headrace.core.routing.topology import DEFAULT_HOST
from headrace.errors import AccessRefused, HeadraceError, ProtocolError, Refused
from headrace.model import MQTT5, Message, Source
from headrace.net.connection import BY_BROKER, BY_INTAKE, Wire
from headrace.net.facts import ChannelFacts, ConnectionFacts
from headrace.net.handler import Handler
from headrace.protocols.mqtt.client import Client
from headrace.protocols.mqtt.codec import Decoder
from headrace.protocols.mqtt.encoding import PING_RESPONSE, encode_connack, encode_disconnect
from headrace.protocols.mqtt.packets import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    V5,
    VERSION_NAMES,
    Acknowledgement,
    Auth,
    Connect,
    Disconnect,
    Packet,
    PingRequest,
    Publish,
    Subscribe,
    Unsubscribe,
)
from headrace.protocols.mqtt.properties import (
    ASSIGNED_CLIENT_IDENTIFIER,
    MAXIMUM_PACKET_SIZE,
    REASON_STRING,
    RECEIVE_MAXIMUM,
    RESPONSE_INFORMATION,
    SERVER_KEEP_ALIVE,
    SESSION_EXPIRY,
    TOPIC_ALIAS_MAXIMUM,
    PropertyList,
)
from headrace.protocols.mqtt.publishing import Inbox
from headrace.protocols.mqtt.reasons import (
    BAD_AUTHENTICATION_METHOD,
    BAD_USER_NAME_OR_PASSWORD,
    CLIENT_IDENTIFIER_NOT_VALID,
    KEEP_ALIVE_TIMEOUT,
    NORMAL_DISCONNECTION,
    NOT_AUTHORIZED,
    PROTOCOL_ERROR,
    QUOTA_EXCEEDED,
    SERVER_SHUTTING_DOWN,
    SESSION_TAKEN_OVER,
    SUCCESS,
    TOPIC_NAME_INVALID,
)
from headrace.protocols.mqtt.server import Host, Server
from headrace.protocols.mqtt.subscriptions import resume, subscribe, unsubscribe

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

    def will(self, publisher: CoreClient) -> Will | None:
        """What is to be published when the client is lost. Raises ProtocolError when it may not be."""
        will = self.connect.will
        if will is None:
            return None
        try:
            publisher.check_topic(will.topic)
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
        said.numbers[MAXIMUM_PACKET_SIZE] = self._server.max_packet_bytes
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


MAX_CONNECT_BYTES: Final = 512 << 10
_SMALL_BYTES: Final = 4096
"""How long a CONNECT may be: nobody has logged in yet."""


@final
class Connection(Handler):
    """What comes in on one connection, and what it does."""

    __slots__ = (
        "_account",
        "_buffered_bytes",
        "_client",
        "_decoder",
        "_handshake",
        "_held",
        "_holding",
        "_inbox",
        "_is_ending",
        "_is_paused",
        "_server",
        "_wire",
    )

    def __init__(self, server: Server) -> None:
        self._server = server
        self._decoder = Decoder(MAX_CONNECT_BYTES, server.limits.topic_alias_maximum)
        self._wire: Wire | None = None
        self._handshake: Handshake | None = None
        self._client: Client | None = None
        self._account: Account | None = None
        self._inbox: Inbox | None = None
        self._held: list[Packet] = []
        """What came while the login was being checked."""
        self._is_ending = False
        self._is_paused = False
        self._buffered_bytes = 0
        """What waits in front of this: see `buffered`."""
        self._holding = Holding(self._pause_intake, self._refuse_intake)

    # -- what net calls ----------------------------------------------------------------------------------------------

    def opened(self, wire: Wire) -> None:
        self._wire = wire

    def feed(self, data: bytes) -> None:
        try:
            packets = self._decoder.feed(data)
            self._take_all(packets)
            if self._decoder.failure is not None:
                raise self._decoder.failure
        except ProtocolError as error:
            self.end(error)
        self._note_intake()

    def buffered(self, size_bytes: int) -> None:
        self._buffered_bytes = size_bytes if size_bytes > _SMALL_BYTES else 0
        self._note_intake()

    def hold_output(self, is_held: bool) -> None:
        if self._client is not None:
            self._client.hold(is_held)

    def beat(self) -> None:
        return  # it is the client that shows it lives

    def silent(self) -> None:
        """The client showed no sign of life for too long."""
        self.end(ProtocolError(KEEP_ALIVE_TIMEOUT, "nothing came for one and a half times the keep alive"))

    def stop(self) -> None:
        self.end(ProtocolError(SERVER_SHUTTING_DOWN, "the broker stops"))

    def lost(self) -> None:
        self._held = []
        self._drop_intake()
        self._leave(with_will=True)

    def facts(self) -> ConnectionFacts | None:
        client, account = self._client, self._account
        if client is None or account is None:
            return None
        held = ChannelFacts(1, client.prefetch, client.unsettled, consumers=client.consumers())
        return ConnectionFacts(
            protocol=VERSION_NAMES[client.version],
            user=account.name,
            host=client.host.name,
            client_id=client.client_id,
            channels=[held],
        )

    # -- what others tell --------------------------------------------------------------------------------------------

    def taken_over(self) -> None:
        """Another connection has the session now."""
        self.end(ProtocolError(SESSION_TAKEN_OVER, "another connection has this client identifier now"))

    def expel(self, reason: int, why: str) -> None:
        """The user or the virtual host is gone, or the user may not do any more what it does."""
        self.end(ProtocolError(reason, why))

    def on_flow(self, is_blocked: bool) -> None:
        """Publishers wait while the broker has more in hand than it can write."""
        if self._wire is None or is_blocked == self._is_paused:
            return
        self._is_paused = is_blocked
        if is_blocked:
            self._wire.pause_reading(BY_BROKER)
        else:
            self._wire.resume_reading(BY_BROKER)

    # -- what comes in -----------------------------------------------------------------------------------------------

    def _take_all(self, packets: list[Packet]) -> None:
        now_us = self._server.clock.now_us()
        for packet in packets:
            if self._is_ending:
                return
            inbox = self._inbox
            if inbox is None:
                self._begin(packet)
            elif isinstance(packet, Publish):
                inbox.publish(packet, now_us)
            elif isinstance(packet, Acknowledgement):
                self._acknowledge(packet)
            else:
                self._take(packet)
        if self._inbox is not None and self._inbox.published:
            self._meter(self._inbox)

    def _begin(self, packet: Packet) -> None:
        """Before the connection is open: CONNECT, then nothing is done until the login is checked."""
        wire = self._wire
        assert wire is not None
        if self._handshake is not None:
            self._held.append(packet)
        elif isinstance(packet, Connect):
            self._handshake = Handshake(self._server, wire, packet)
            wire.pause_reading(BY_BROKER)
            self._handshake.log_in(self._logged_in)

    def _logged_in(self, account: Account | None) -> None:
        """The password was checked."""
        handshake, wire = self._handshake, self._wire
        if handshake is None or wire is None or self._is_ending:
            return
        try:
            self._open(handshake, wire, handshake.admit(account))
        except ProtocolError as error:
            self.end(error)

    def _open(self, handshake: Handshake, wire: Wire, account: Account) -> None:
        """Have the session; CONNACK follows, where it promises something once that would survive a crash."""
        connect = handshake.connect
        host, rights = handshake.enter(account)
        self._account = account
        self._client = client = Client(self, wire, host, self._server, connect)
        host.add(self, account)
        self._decoder.max_packet_bytes = self._server.max_packet_bytes
        publisher = CoreClient(host.broker, account, rights, connect.client_id, PROTOCOL, MQTT5)
        will = handshake.will(publisher)
        lifetime_s = handshake.lifetime_s
        sessions = host.broker.sessions
        former = sessions.get(connect.client_id)
        is_promise = lifetime_s != 0 or will is not None or (former is not None and former.is_kept)
        client.is_held = True  # nothing is sent before CONNACK
        _, was_there = sessions.connect(connect.client_id, connect.clean_start, lifetime_s, client, will, account.name)
        inbox = Inbox(client, account, rights, publisher)

        def kept(error: HeadraceError | None) -> None:
            if self._client is not client:
                return  # it left meanwhile
            if error is not None:  # what could not be stored is tried again
                host.broker.when_safe(kept)
                return
            wire.guarded(lambda: self._opened(handshake, client, inbox, was_there))

        if is_promise:
            host.broker.when_safe(kept)
        else:
            self._opened(handshake, client, inbox, was_there)

    def _opened(self, handshake: Handshake, client: Client, inbox: Inbox, was_there: bool) -> None:
        """CONNACK, and then all that came meanwhile."""
        self._inbox = inbox
        self._handshake = None
        handshake.answer(was_there)
        client.wire.watch(handshake.keep_alive_s * 1.5, self.silent)
        if not self._is_paused:
            client.wire.resume_reading(BY_BROKER)
        if was_there:
            client.outbox.resume()
            resume(client, inbox.rights)
        client.hold(False)
        held, self._held = self._held, []
        try:
            self._take_all(held)
        except ProtocolError as error:
            self.end(error)

    def _take(self, packet: Packet) -> None:
        client, inbox = self._client, self._inbox
        assert client is not None
        assert inbox is not None
        if isinstance(packet, PingRequest):
            client.wire.send(PING_RESPONSE)
        elif isinstance(packet, Subscribe):
            subscribe(client, packet, inbox.rights)
        elif isinstance(packet, Unsubscribe):
            unsubscribe(client, packet)
        elif isinstance(packet, Disconnect):
            self._disconnect(packet)
        elif isinstance(packet, Auth):
            raise ProtocolError(PROTOCOL_ERROR, "AUTH: the connection was made without an authentication method")

    def _acknowledge(self, packet: Acknowledgement) -> None:
        client, inbox = self._client, self._inbox
        assert client is not None
        assert inbox is not None
        kind = packet.kind
        if kind == PUBACK:
            client.outbox.acknowledged(packet.packet_id)
        elif kind == PUBREC:
            client.outbox.received(packet.packet_id, packet.reason)
        elif kind == PUBREL:
            inbox.released(packet.packet_id)
        elif kind == PUBCOMP:
            client.outbox.completed(packet.packet_id)

    def _disconnect(self, packet: Disconnect) -> None:
        """The client goes: without its will unless it asks for that."""
        client = self._client
        assert client is not None
        assert client.session is not None
        lifetime_s = packet.session_expiry_seconds
        if lifetime_s is not None:
            if lifetime_s and not client.session.lifetime_s:  # MQTT 5 [3.14.2.2.2]
                raise ProtocolError(PROTOCOL_ERROR, "DISCONNECT: a session without expiry cannot be given one now")
            client.host.broker.sessions.set_lifetime(client.session, kept_seconds(client.limits, lifetime_s))
        self._leave(with_will=packet.reason != NORMAL_DISCONNECTION)
        self._is_ending = True
        client.wire.close()

    # -- the end -----------------------------------------------------------------------------------------------------

    def end(self, error: HeadraceError) -> None:
        """Tell the client why, as far as its version has words for it, and close."""
        wire = self._wire
        if self._is_ending or wire is None:
            return
        self._is_ending = True
        self._drop_intake()
        client = self._client
        has_session = client is not None and client.session is not None
        self._leave(with_will=True)
        code = error.code if isinstance(error, ProtocolError) else PROTOCOL_ERROR
        version = self._decoder.version
        reasons = client.reasons(str(error)) if client is not None else self._reasons(str(error))
        if self._inbox is not None:
            goodbye = encode_disconnect(version, code, reasons)
        elif has_session:
            goodbye = b""  # the session is gone before the client was told of it, and CONNACK has no code for that
        else:
            goodbye = encode_connack(version, False, code, reasons) if version else b""
        if goodbye:
            wire.send(goodbye)
        wire.close()

    def _reasons(self, text: str) -> PropertyList | None:
        """Why a client that is not in yet is not let in."""
        most = self._handshake.connect.maximum_packet_bytes if self._handshake is not None else 0
        if self._decoder.version != V5 or most:
            return None
        properties = PropertyList()
        properties.texts[REASON_STRING] = text
        return properties

    def _leave(self, with_will: bool) -> None:
        """Let go of the session and of everything that knows this connection."""
        client, account = self._client, self._account
        self._client = None
        if client is None or account is None:
            return
        client.close()
        client.host.broker.sessions.leave(client, with_will)
        client.host.remove(self, account)
        account.disconnect()

    def _note_intake(self) -> None:
        """Tell how much memory is taken by a packet that is not whole."""
        size_bytes = 0 if self._is_ending else self._decoder.held_bytes + self._buffered_bytes
        if size_bytes != self._holding.size_bytes:
            self._server.intake.note(self._holding, size_bytes)

    def _drop_intake(self) -> None:
        self._decoder.clear()
        self._buffered_bytes = 0
        self._note_intake()

    def _pause_intake(self, is_paused: bool) -> None:
        if self._wire is not None:
            if is_paused:
                self._wire.pause_reading(BY_INTAKE)
            else:
                self._wire.resume_reading(BY_INTAKE)

    def _refuse_intake(self, error: HeadraceError) -> None:
        self.end(ProtocolError(QUOTA_EXCEEDED, str(error)))

    def _meter(self, inbox: Inbox) -> None:
        """A user that sends more than it may is not heard for a while."""
        messages, inbox.published = inbox.published, 0
        assert self._account is not None
        assert self._wire is not None
        pause_us = self._account.spend(messages, self._server.clock.monotonic_us())
        if pause_us:
            self._wire.pause_for(pause_us / 1_000_000)
