"""One client's connection, from CONNECT to the end. Publishing and subscriptions have files of their own."""

import secrets
from collections.abc import Iterator
from typing import Final, final

from headrace.config.settings import MqttSettings
from headrace.core.access.logins import Account, Admit, Login, is_token
from headrace.core.access.users import GUEST
from headrace.core.client import Client
from headrace.core.pipeline import AT_ONCE
from headrace.core.pubsub.session import FOREVER, Envelope, Will
from headrace.core.routing.topology import DEFAULT_HOST
from headrace.errors import AccessRefused, HeadraceError, ProtocolError, Refused
from headrace.model import MQTT5, Message, Source
from headrace.net.connection import BY_BROKER, BY_ORDER, Wire
from headrace.net.facts import ChannelFacts, ConnectionFacts
from headrace.net.handler import Handler
from headrace.protocols.inlet import Inlet
from headrace.protocols.mqtt.codec import PING_RESPONSE, Decoder, encode_connack, encode_disconnect
from headrace.protocols.mqtt.outbox import Outbox
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
from headrace.protocols.mqtt.publishing import Publisher
from headrace.protocols.mqtt.reasons import (
    ADMINISTRATIVE_ACTION,
    BAD_AUTHENTICATION_METHOD,
    BAD_USER_NAME_OR_PASSWORD,
    CLIENT_IDENTIFIER_NOT_VALID,
    KEEP_ALIVE_TIMEOUT,
    NORMAL_DISCONNECTION,
    NOT_AUTHORIZED,
    PACKET_TOO_LARGE,
    PROTOCOL_ERROR,
    QUOTA_EXCEEDED,
    SERVER_SHUTTING_DOWN,
    SUCCESS,
    TOPIC_NAME_INVALID,
)
from headrace.protocols.mqtt.receiver import Receiver
from headrace.protocols.mqtt.server import Host, Server
from headrace.protocols.mqtt.subscriptions import resume, subscribe, unsubscribe
from headrace.wire.mqtt5 import (
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

PROTOCOL: Final = "mqtt"
_MOST: Final = 65_535
_ASSIGNED_PREFIX: Final = "auto-"
_FOREVER: Final = 0xFFFF_FFFF


@final
class Handshake:
    """One CONNECT, from the login to the CONNACK."""

    def __init__(self, server: Server, wire: Wire, connect: Connect) -> None:
        """Raises ProtocolError for a CONNECT that cannot be served."""
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
        self._is_nameless = not connect.user_name and not is_token(connect.password or b"")
        """True without a user name, or with an empty one; a token has its own."""

    @property
    def lifetime_s(self) -> int:
        """Seconds for which the session outlives the connection."""
        return kept_seconds(self._server.limits, self.connect.session_expiry_seconds)

    @property
    def keep_alive_s(self) -> int:
        """The keep alive in seconds, 0 for none. Only MQTT 5 clients can be given a shorter one than they ask for."""
        asked = self.connect.keep_alive_seconds
        most = min(_seconds(self._server.limits.max_keep_alive), _MOST)
        is_too_long = most and (not asked or asked > most)
        return most if is_too_long and self.connect.version == V5 else asked

    # -- login ---------------------------------------------------------------------------------------------------------

    def log_in(self, admit: Admit) -> None:
        """Check the login; `admit` gets the account. Without a user name, a client from this machine is guest."""
        wire = self._wire
        password: bytes | None = self.connect.password or b""
        user = self._user
        if self._is_nameless:
            if wire.certificate_name:
                user, password = wire.certificate_name, None
            elif wire.is_loopback:
                user, password = GUEST, GUEST.encode()
            else:
                admit(None)
                return
        self._server.access.login(Login(user, password, wire.address, wire.is_loopback), admit)

    def admit(self, account: Account | None) -> Account:
        """The account of a login. Raises ProtocolError if the login was wrong."""
        if account is not None:
            return account
        if self._is_nameless:
            raise ProtocolError(NOT_AUTHORIZED, "a user name and a password are needed")
        raise ProtocolError(BAD_USER_NAME_OR_PASSWORD, "user name or password are wrong")

    def enter(self, account: Account) -> tuple[Host, Client]:
        """Enter the virtual host, without being counted as a connection yet. Raises ProtocolError."""
        host = self._server.find_host(self._host_name)
        try:
            rights = self._server.access.enter(account, self._host_name)
        except AccessRefused as error:
            raise ProtocolError(NOT_AUTHORIZED, str(error)) from error
        assert host is not None
        sessions, most = host.broker.sessions, self._server.limits.max_sessions
        client_id = self.connect.client_id
        if len(sessions) >= most and sessions.get(client_id) is None:
            raise ProtocolError(QUOTA_EXCEEDED, f"vhost '{self._host_name}' has {most} sessions and may have no more")
        return host, Client(host.broker, account, rights, client_id, PROTOCOL, MQTT5)

    def will(self, client: Client) -> Will | None:
        """The message for when the client is lost. Raises ProtocolError if the client may not publish it."""
        will = self.connect.will
        if will is None:
            return None
        try:
            client.check_topic(will.topic)
        except Refused as error:
            code = NOT_AUTHORIZED if isinstance(error, AccessRefused) else TOPIC_NAME_INVALID
            raise ProtocolError(code, f"the will: {error}") from error
        source = Source(will.topic, "", self.connect.client_id, PROTOCOL, MQTT5)
        message = Message(source, will.payload, self._server.clock.now_us(), will.properties.raw)
        expires_s = will.properties.expiry_seconds
        return Will(
            Envelope(message, will.qos, will.retain),
            will.properties.delay_seconds,
            0 if expires_s is None else max(1, expires_s),
        )

    # -- the answer ----------------------------------------------------------------------------------------------------

    def check_answer(self) -> None:
        """Raises ProtocolError if the client takes no packet as large as its CONNACK."""
        size, most = len(self._answer(False)), self.connect.maximum_packet_bytes
        if most and size > most:  # MQTT 5 [MQTT-3.1.2-24]
            raise ProtocolError(PACKET_TOO_LARGE, f"the CONNACK has {size} bytes, the maximum packet size is {most}")

    def answer(self, session_present: bool) -> None:
        """CONNACK."""
        self._wire.send(self._answer(session_present))

    def _answer(self, session_present: bool) -> bytes:
        connect = self.connect
        if connect.version != V5:
            return encode_connack(connect.version, session_present, SUCCESS)
        properties = self._properties()
        whole = encode_connack(V5, session_present, SUCCESS, properties)
        if RESPONSE_INFORMATION in properties.texts and 0 < connect.maximum_packet_bytes < len(whole):
            del properties.texts[RESPONSE_INFORMATION]  # MQTT 5 [3.1.2.11.6]: the server may leave it out
            return encode_connack(V5, session_present, SUCCESS, properties)
        return whole

    def _properties(self) -> PropertyList:
        connect, limits = self.connect, self._server.limits
        properties = PropertyList()
        if limits.receive_maximum < _MOST:
            properties.numbers[RECEIVE_MAXIMUM] = limits.receive_maximum
        properties.numbers[MAXIMUM_PACKET_SIZE] = self._server.max_packet_bytes
        properties.numbers[TOPIC_ALIAS_MAXIMUM] = limits.topic_alias_maximum
        if self.lifetime_s != kept_seconds(None, connect.session_expiry_seconds):
            properties.numbers[SESSION_EXPIRY] = self.lifetime_s
        if self._is_assigned:
            properties.texts[ASSIGNED_CLIENT_IDENTIFIER] = connect.client_id
        if self.keep_alive_s != connect.keep_alive_seconds:
            properties.numbers[SERVER_KEEP_ALIVE] = self.keep_alive_s
        if connect.wants_response_information:
            properties.texts[RESPONSE_INFORMATION] = f"responses/{connect.client_id}"
        return properties


def kept_seconds(limits: MqttSettings | None, asked_seconds: int) -> int:
    """The lifetime of a session in core's terms: as long as the client asks, up to the limit."""
    most = 0 if limits is None else _seconds(limits.max_session_expiry)
    if asked_seconds == _FOREVER:
        return most or FOREVER
    return min(asked_seconds, most) if most else asked_seconds


def _seconds(milliseconds: int) -> int:
    """Whole seconds, rounded up."""
    return -(-milliseconds // 1000)


def _split(user_name: str | None) -> tuple[str, str]:
    """The virtual host and the user: `host:user`, or the default host's user."""
    name = user_name or ""
    host, colon, user = name.rpartition(":")
    return (host, user) if colon and host else (DEFAULT_HOST, name)


MAX_CONNECT_BYTES: Final = 512 << 10
"""The largest CONNECT: nobody has logged in yet."""
_SMALL_BYTES: Final = 4096


@final
class Connection(Handler):
    """Turns the packets of one connection into calls of its session, publisher and receiver."""

    __slots__ = (
        "_buffered_bytes",
        "_decoder",
        "_handshake",
        "_held",
        "_inlet",
        "_is_busy",
        "_is_ending",
        "_publisher",
        "_receiver",
        "_server",
        "_wire",
    )

    def __init__(self, server: Server) -> None:
        self._server = server
        self._decoder = Decoder(MAX_CONNECT_BYTES, server.limits.topic_alias_maximum)
        self._wire: Wire | None = None
        self._handshake: Handshake | None = None
        self._receiver: Receiver | None = None
        self._publisher: Publisher | None = None
        """None until CONNACK is sent."""
        self._held: list[Packet] = []
        """Packets that came while the login was being checked, or behind a packet that is handled in steps."""
        self._is_busy = False
        """True while a packet is handled in steps."""
        self._is_ending = False
        self._buffered_bytes = 0
        """Bytes that wait in front of this handler: see `buffered`."""
        self._inlet = Inlet(server.intake, self._refuse_intake)

    # -- calls from net ------------------------------------------------------------------------------------------------

    def opened(self, wire: Wire) -> None:
        self._wire = self._inlet.wire = wire

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
        if self._receiver is not None:
            self._receiver.hold(is_held)

    def beat(self) -> None:
        return  # it is the client that shows it lives

    def silent(self) -> None:
        """End a connection that was silent for too long."""
        self.end(ProtocolError(KEEP_ALIVE_TIMEOUT, "nothing came for one and a half times the keep alive"))

    def stop(self) -> None:
        self.end(ProtocolError(SERVER_SHUTTING_DOWN, "the broker stops"))

    def lost(self) -> None:
        self._held = []
        self._drop_intake()
        self._leave(with_will=True)
        self._inlet.end()
        if self._publisher is not None:
            self._publisher.close()
            self._publisher = None

    def facts(self) -> ConnectionFacts | None:
        receiver = self._receiver
        if receiver is None:
            return None
        held = ChannelFacts(1, receiver.prefetch, receiver.unsettled, consumers=receiver.consumers())
        return ConnectionFacts(
            protocol=VERSION_NAMES[receiver.version],
            user=receiver.client.account.name,
            host=receiver.host.name,
            client_id=receiver.client_id,
            channels=[held],
        )

    # -- calls from core ---------------------------------------------------------------------------------------------

    def _on_ended(self, why: str) -> None:
        """The user or the virtual host is gone."""
        self.end(ProtocolError(ADMINISTRATIVE_ACTION, why))

    # -- packets -------------------------------------------------------------------------------------------------------

    def _take_all(self, packets: list[Packet]) -> None:
        now_us = self._server.clock.now_us()
        for at, packet in enumerate(packets):
            if self._is_ending:
                return
            if self._is_busy:
                self._held += packets[at:]
                return
            publisher, receiver = self._publisher, self._receiver
            if publisher is None or receiver is None:
                self._begin(packet)
            elif isinstance(packet, Publish):
                publisher.publish(packet, now_us)
            elif isinstance(packet, Acknowledgement):
                _acknowledge(packet, publisher, receiver.outbox)
            else:
                self._take(packet, receiver)
        if self._receiver is not None and self._receiver.client.published:
            self._inlet.meter(self._receiver.client, self._server.clock.monotonic_us())

    def _begin(self, packet: Packet) -> None:
        """Handle CONNECT, and hold all packets behind it until the login is checked."""
        wire = self._wire
        assert wire is not None
        if self._handshake is not None:
            self._held.append(packet)
        elif isinstance(packet, Connect):
            self._handshake = Handshake(self._server, wire, packet)
            wire.pause_reading(BY_BROKER)
            self._handshake.log_in(self._logged_in)

    def _logged_in(self, account: Account | None) -> None:
        """Open the connection after the login was checked."""
        handshake, wire = self._handshake, self._wire
        if handshake is None or wire is None or self._is_ending:
            return
        try:
            self._open(handshake, wire, handshake.admit(account))
        except ProtocolError as error:
            self.end(error)

    def _open(self, handshake: Handshake, wire: Wire, account: Account) -> None:
        """Attach the session; CONNACK follows, after the commit if it promises something."""
        connect = handshake.connect
        handshake.check_answer()
        host, client = handshake.enter(account)
        if not client.connect(self._inlet.pause_by_broker, self._on_ended):
            raise ProtocolError(QUOTA_EXCEEDED, client.refusal)
        self._receiver = receiver = Receiver(self.end, wire, host, self._server, connect, client)
        self._decoder.max_packet_bytes = self._server.max_packet_bytes
        will = handshake.will(client)
        lifetime_s = handshake.lifetime_s
        sessions = host.broker.sessions
        former = sessions.get(connect.client_id)
        is_promise = lifetime_s != 0 or will is not None or (former is not None and former.is_kept)
        receiver.is_held = True  # nothing is sent before CONNACK
        _, was_there = sessions.connect(
            connect.client_id, connect.clean_start, lifetime_s, receiver, will, account.name
        )

        if is_promise:
            self._open_when_safe(handshake, receiver, was_there)
        else:
            self._opened(handshake, receiver, was_there)

    def _open_when_safe(self, handshake: Handshake, receiver: Receiver, was_there: bool) -> None:
        def stored(error: HeadraceError | None) -> None:
            if self._receiver is not receiver:
                return  # it left meanwhile
            if error is not None:  # what could not be stored is tried again
                self._open_when_safe(handshake, receiver, was_there)
                return
            receiver.wire.guarded(lambda: self._opened(handshake, receiver, was_there))

        receiver.host.broker.when_safe(stored)

    def _opened(self, handshake: Handshake, receiver: Receiver, was_there: bool) -> None:
        """Send CONNACK, then handle the packets that were held."""
        self._publisher = Publisher(receiver)
        self._handshake = None
        handshake.answer(was_there)
        receiver.wire.watch(handshake.keep_alive_s * 1.5, self.silent)
        receiver.wire.resume_reading(BY_BROKER)
        if was_there:
            receiver.outbox.resume()
            resume(receiver)
        receiver.hold(False)
        self._take_held()

    def _take(self, packet: Packet, receiver: Receiver) -> None:
        if isinstance(packet, PingRequest):
            receiver.wire.send(PING_RESPONSE)
        elif isinstance(packet, Subscribe):
            self._take_steps(receiver, subscribe(receiver, packet), len(packet.subscriptions))
        elif isinstance(packet, Unsubscribe):
            self._take_steps(receiver, unsubscribe(receiver, packet), len(packet.patterns))
        elif isinstance(packet, Disconnect):
            self._disconnect(packet, receiver)
        elif isinstance(packet, Auth):
            raise ProtocolError(PROTOCOL_ERROR, "AUTH: the connection was made without an authentication method")

    def _take_steps(self, receiver: Receiver, steps: Iterator[None], count: int) -> None:
        """Handle a packet step by step; packets behind it wait for a long one."""
        if count <= AT_ONCE:
            for _ in steps:
                pass
            return
        self._is_busy = True
        receiver.wire.pause_reading(BY_ORDER)
        receiver.host.broker.in_steps(self._to_the_end(receiver, steps))

    def _to_the_end(self, receiver: Receiver, steps: Iterator[None]) -> Iterator[None]:
        try:
            yield from steps
        except ProtocolError as error:
            self.end(error)
        self._is_busy = False
        receiver.wire.resume_reading(BY_ORDER)
        if not receiver.is_closed:
            receiver.wire.guarded(self._take_held)

    def _take_held(self) -> None:
        """Handle the packets that waited."""
        held, self._held = self._held, []
        try:
            self._take_all(held)
        except ProtocolError as error:
            self.end(error)

    def _disconnect(self, packet: Disconnect, receiver: Receiver) -> None:
        """End on the client's request: without its will unless it asks for that."""
        session = receiver.session
        assert session is not None
        lifetime_s = packet.session_expiry_seconds
        if lifetime_s is not None:
            if lifetime_s and not session.lifetime_s:  # MQTT 5 [3.14.2.2.2]
                raise ProtocolError(PROTOCOL_ERROR, "DISCONNECT: a session without expiry cannot be given one now")
            receiver.host.broker.sessions.set_lifetime(session, kept_seconds(receiver.limits, lifetime_s))
        self._leave(with_will=packet.reason != NORMAL_DISCONNECTION)
        self._is_ending = True
        receiver.wire.close()

    # -- the end -----------------------------------------------------------------------------------------------------

    def end(self, error: HeadraceError) -> None:
        """Tell the client why, as far as its version can, and close."""
        wire = self._wire
        if self._is_ending or wire is None:
            return
        self._is_ending = True
        self._drop_intake()
        receiver, handshake = self._receiver, self._handshake
        has_session = receiver is not None and receiver.session is not None
        most = 0 if handshake is None else handshake.connect.maximum_packet_bytes
        if receiver is not None:
            most = receiver.max_packet_bytes
        self._leave(with_will=True)
        code = error.code if isinstance(error, ProtocolError) else PROTOCOL_ERROR
        version = self._decoder.version
        reasons = receiver.reasons(str(error)) if receiver is not None else self._reasons(str(error), most)
        if self._publisher is not None:
            goodbye = encode_disconnect(version, code, reasons)
        elif has_session:
            goodbye = b""  # the session is gone before the client was told of it, and CONNACK has no code for that
        else:
            goodbye = encode_connack(version, False, code, reasons) if version else b""
        if goodbye and (not most or len(goodbye) <= most):
            wire.send(goodbye)
        wire.close()

    def _reasons(self, text: str, most: int) -> PropertyList | None:
        """The reason for a client that did not get in."""
        if self._decoder.version != V5 or most:
            return None
        properties = PropertyList()
        properties.texts[REASON_STRING] = text
        return properties

    def _leave(self, with_will: bool) -> None:
        """Detach the session and end the client."""
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.close()
            receiver.host.broker.sessions.leave(receiver, with_will)
            receiver.client.leave()
            receiver.refuse = _nothing

    def _note_intake(self) -> None:
        """Report the memory of an incomplete packet."""
        self._inlet.note(0 if self._is_ending else self._decoder.held_bytes + self._buffered_bytes)

    def _drop_intake(self) -> None:
        self._decoder.clear()
        self._buffered_bytes = 0
        self._note_intake()

    def _refuse_intake(self, error: HeadraceError) -> None:
        self.end(ProtocolError(QUOTA_EXCEEDED, str(error)))


def _acknowledge(packet: Acknowledgement, publisher: Publisher, outbox: Outbox) -> None:
    kind = packet.kind
    if kind == PUBACK:
        outbox.acknowledged(packet.packet_id)
    elif kind == PUBREC:
        outbox.received(packet.packet_id, packet.reason)
    elif kind == PUBREL:
        publisher.released(packet.packet_id)
    elif kind == PUBCOMP:
        outbox.completed(packet.packet_id)


def _nothing(error: ProtocolError) -> None:
    return
