"""One client's connection, from the protocol header to the close. Methods are in channel.py, bytes in codec.py."""

from itertools import chain
from typing import Final, final

from pamqp import base, commands

from headrace.clock import Clock
from headrace.errors import AccessRefused, HeadraceError, PreconditionFailed, ProtocolError
from headrace.net.connection import BY_ORDER, Wire
from headrace.net.facts import ConnectionFacts
from headrace.net.handler import Handler
from headrace.protocols.amqp091.channel import Channel
from headrace.protocols.amqp091.codec import HEARTBEAT_FRAME, Ack, Decoder, Event, Hello, Method, Publish, TooLarge
from headrace.protocols.amqp091.frames import (
    CHANNEL_ERROR,
    COMMAND_INVALID,
    CONNECTION_FORCED,
    NOT_ALLOWED,
    PROTOCOL_HEADER,
)
from headrace.protocols.amqp091.handshake import Handshake
from headrace.protocols.amqp091.methods import encode_method
from headrace.protocols.amqp091.server import ConnectionContext, Server, close_fields, ends_channel_only
from headrace.protocols.inlet import Inlet

_GOODBYE_SECONDS: Final = 2.0


@final
class Connection(Handler):
    """Turns the events of one connection into calls of its channels."""

    def __init__(self, server: Server, clock: Clock) -> None:
        self._server = server
        self._clock = clock
        self._decoder = Decoder(server.routes)
        self._wire: Wire | None = None
        self._handshake: Handshake | None = None
        self._context: ConnectionContext | None = None
        self._channels: dict[int, Channel] = {}
        self._waiting: list[Event] | None = None
        """A method that waits for earlier publishes, and all events behind it; None if no method waits."""
        self._is_closing = False
        self._inlet = Inlet(server.intake, self._fail)

    # -- calls from net ------------------------------------------------------------------------------------------------

    def opened(self, wire: Wire) -> None:
        self._wire = self._inlet.wire = wire
        self._handshake = Handshake(self._server, wire, self._fail)

    def feed(self, data: bytes) -> None:
        context = self._context
        if context is not None:
            context.now_us = self._clock.now_us()
        try:
            events = self._decoder.feed(data)
            for event in events:
                self._take(event)
        except ProtocolError as error:
            self._fail(error)
            return
        if self._decoder.failure is not None:
            self._fail(self._decoder.failure)
        self._note_intake()
        if context is not None and context.client.published:
            self._inlet.meter(context.client, self._clock.monotonic_us())

    def hold_output(self, is_held: bool) -> None:
        if self._context is not None:
            self._context.is_held = is_held
            for channel in self._channels.values():
                channel.subscriptions.refresh()

    def beat(self) -> None:
        self._send_raw(HEARTBEAT_FRAME)

    def stop(self) -> None:
        if self._context is None:
            if self._wire is not None:
                self._wire.close()
            return
        self._fail(ProtocolError(CONNECTION_FORCED, "broker forced connection closure with reason 'shutdown'"))

    def lost(self) -> None:
        self._waiting = None
        self._leave()
        self._decoder.clear()
        self._note_intake()
        self._inlet.end()
        self._context = self._handshake = None

    def facts(self) -> ConnectionFacts | None:
        context, handshake = self._context, self._handshake
        if context is None or handshake is None:
            return None
        return ConnectionFacts(
            protocol="AMQP 0-9-1",
            user=context.client.account.name,
            host=context.host.name,
            client_id=context.client.client_id,
            heartbeat_seconds=handshake.heartbeat,
            frame_max=context.frame_max,
            channel_max=handshake.channel_max,
            client_properties=handshake.client_properties,
            channels=[channel.facts() for channel in self._channels.values()],
        )

    # -- events --------------------------------------------------------------------------------------------------------

    def _take(self, event: Event) -> None:
        """Handle one event. An error ends the channel or the connection."""
        if self._is_closing:
            self._take_while_closing(event)
            return
        if self._waiting is not None:
            self._waiting.append(event)
            return
        try:
            if isinstance(event, Publish):
                channel = self._channels.get(event.channel)
                if channel is None:
                    raise _no_channel(event.channel)
                if not channel.is_closing:
                    channel.publisher.publish(event)
            elif isinstance(event, Ack):
                channel = self._channels.get(event.channel)
                if channel is None:
                    raise _no_channel(event.channel)
                if not channel.is_closing:
                    channel.subscriptions.ack(event.first, event.tag, event.multiple)
            elif isinstance(event, Method):
                self._method(event)
            elif isinstance(event, TooLarge):
                self._refuse_size(event)
            else:
                self._greet(event.is_ours)
        except HeadraceError as error:
            self._refuse(error, event)

    def _refuse_size(self, event: TooLarge) -> None:
        channel = self._channels.get(event.channel)
        if channel is None:
            raise _no_channel(event.channel)
        if not channel.is_closing:
            raise PreconditionFailed(f"message size {event.size} is larger than configured max size {event.most}")

    def _greet(self, is_ours: bool) -> None:
        """Start the handshake, or tell a client of another protocol which one is spoken here."""
        if is_ours and self._handshake is not None:
            self._handshake.start()
            return
        self._send_raw(PROTOCOL_HEADER)
        self._is_closing = True
        if self._wire is not None:
            self._wire.close()

    def _wait(self, event: Event) -> None:
        """Keep this event and all that follow until `_resume`."""
        self._waiting = [event]
        if self._wire is not None:
            self._wire.pause_reading(BY_ORDER)

    def _resume(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is None or self._wire is None:
            return  # the connection is lost
        self._wire.resume_reading(BY_ORDER)
        for event in waiting:
            self._take(event)

    def _method(self, event: Method) -> None:
        number, method = event.channel, event.method
        if number == 0:
            self._connection_method(method)
            return
        if self._context is None:
            raise ProtocolError(CHANNEL_ERROR, f"{method.name} on channel {number} before the connection is open")
        channel = self._channels.get(number)
        if isinstance(method, commands.Channel.Open):
            self._open_channel(number, channel)
        elif channel is None:
            if not isinstance(method, commands.Channel.CloseOk | commands.Channel.Close):
                raise _no_channel(number)
            if isinstance(method, commands.Channel.Close):
                self._context.send(number, commands.Channel.CloseOk)
        elif isinstance(method, commands.Channel.Close):
            self._drop_channel(channel)
            self._context.send(number, commands.Channel.CloseOk)
        elif isinstance(method, commands.Channel.CloseOk):
            self._drop_channel(channel)
        elif not channel.is_closing:
            if channel.must_wait(method, self._resume):
                self._wait(event)
            else:
                channel.handle(method)

    def _connection_method(self, method: base.Frame) -> None:
        if isinstance(method, commands.Connection.Close):
            self._is_closing = True
            self._leave()
            self._send_raw(encode_method(0, commands.Connection.CloseOk))
            if self._wire is not None:
                self._wire.finish(_GOODBYE_SECONDS)  # a client that still sends must see the answer, not a reset
        elif (
            isinstance(method, commands.Connection.UpdateSecret)
            and self._context is not None
            and self._handshake is not None
        ):
            self._handshake.renew(self._context, method, lambda: len(self._channels))
        elif isinstance(method, commands.Connection.Blocked | commands.Connection.Unblocked):
            return
        elif self._context is not None or self._handshake is None:
            raise ProtocolError(COMMAND_INVALID, f"{method.name} on an open connection")
        else:
            context = self._handshake.handle(method)
            if context is not None:
                self._open(self._handshake, context)

    def _open(self, handshake: Handshake, context: ConnectionContext) -> None:
        """Answer connection.open. Raises ProtocolError if the user or the virtual host has too many connections."""
        client = context.client
        if not client.connect(self._on_flow, self._on_ended, self._on_rights):
            raise ProtocolError(NOT_ALLOWED, client.refusal)
        self._context = context
        context.now_us = self._clock.now_us()
        context.end = self._fail
        self._decoder.frame_max = context.frame_max
        self._decoder.max_body_bytes = self._server.intake.largest_bytes
        context.send(0, commands.Connection.OpenOk)
        context.wire.keep_alive(handshake.heartbeat)

    def _open_channel(self, number: int, channel: Channel | None) -> None:
        assert self._context is not None
        assert self._handshake is not None
        if channel is not None:
            raise ProtocolError(CHANNEL_ERROR, f"second 'channel.open' seen on channel {number}")
        count, most = len(self._channels), self._handshake.channel_max
        if count >= most:
            raise ProtocolError(
                NOT_ALLOWED, f"number of channels opened ({count}) has reached the negotiated channel_max ({most})"
            )
        account = self._context.client.account
        if not account.open_channel():
            raise ProtocolError(
                NOT_ALLOWED,
                f"number of channels opened for user '{account.name}' has reached the maximum allowed user limit "
                f"of ({account.user.limits.max_channels})",
            )
        self._channels[number] = Channel(self._context, number)
        self._context.send(number, commands.Channel.OpenOk)

    def _take_while_closing(self, event: Event) -> None:
        """After we closed, wait for the client's close or close-ok."""
        if isinstance(event, Method) and event.channel == 0 and self._wire is not None:
            if isinstance(event.method, commands.Connection.Close):
                self._send_raw(encode_method(0, commands.Connection.CloseOk))
                self._wire.close()
            elif isinstance(event.method, commands.Connection.CloseOk):
                self._wire.close()

    # -- errors and ends -----------------------------------------------------------------------------------------------

    def _refuse(self, error: HeadraceError, event: Event) -> None:
        number = 0 if isinstance(event, Hello) else event.channel
        channel = self._channels.get(number)
        if isinstance(event, Publish) and isinstance(error, PreconditionFailed) and self._context is not None:
            try:
                self._context.broker.topology.exchanges.check_publish(event.route.exchange)
            except HeadraceError as worse:
                error = worse  # an exchange that is not there is told before what is wrong with the message
        if channel is None or self._context is None or not ends_channel_only(error):
            self._end(error, _index(event))
            return
        channel.close()
        channel.is_closing = True
        channel.send(commands.Channel.Close, close_fields(error, _index(event)))

    def _fail(self, error: HeadraceError) -> None:
        """End the connection for an error that no method caused."""
        self._end(error, 0)

    def _end(self, error: HeadraceError, index: int) -> None:
        """Tell the client why, and close; `index` is the method that failed, 0 for none."""
        if self._is_closing or self._wire is None:
            return
        self._is_closing = True
        self._leave()
        self._decoder.drop_bodies()
        self._note_intake()
        if isinstance(error, AccessRefused) and not self._expects_refusals():
            self._wire.close()
            return
        fields = close_fields(error, index)
        self._send_raw(encode_method(0, commands.Connection.Close, fields))
        self._wire.close(_GOODBYE_SECONDS)

    def _expects_refusals(self) -> bool:
        """True if the client understands a close while it logs in; others just lose the connection."""
        if self._context is not None or self._handshake is None:
            return True
        return self._handshake.capabilities.get("authentication_failure_close") is True

    def _on_ended(self, why: str) -> None:
        """The user or the virtual host is gone."""
        self._fail(ProtocolError(CONNECTION_FORCED, why))

    def _on_rights(self) -> None:
        """Cancel consumers of queues that the user may not read any more."""
        for channel in self._channels.values():
            channel.subscriptions.restrict()

    # -- flow and memory -----------------------------------------------------------------------------------------------

    def _on_flow(self, is_blocked: bool) -> None:
        """Read nothing while the broker has more in hand than it can write; tell the client if it can hear it."""
        context = self._context
        if context is None:
            return
        if context.has("connection.blocked"):
            if is_blocked:
                context.send(0, commands.Connection.Blocked, {"reason": "what was published waits for the disk"})
            else:
                context.send(0, commands.Connection.Unblocked)
        self._inlet.pause_by_broker(is_blocked)

    def _note_intake(self) -> None:
        """Report the memory of messages that are incomplete or not committed."""
        context = self._context
        self._inlet.note(self._decoder.held_bytes + (0 if context is None else context.staged_bytes))

    def _drop_channel(self, channel: Channel) -> None:
        del self._channels[channel.number]
        channel.close()
        self._forget_channel(channel)

    def _forget_channel(self, channel: Channel) -> None:
        channel.answers.drop()
        channel.detach()
        if self._context is not None:
            self._context.client.account.close_channel()

    def _leave(self) -> None:
        """Free all messages and exclusive queues of the connection, before the client hears that it is over."""
        self._close_channels()
        if self._context is not None:
            self._context.client.leave()

    def _close_channels(self) -> None:
        channels = list(self._channels.values())
        if self._context is None or not channels:
            return
        self._channels.clear()
        leaving = [channel.leave() for channel in channels]
        self._context.broker.in_steps(chain.from_iterable(leaving))
        for channel in channels:
            self._forget_channel(channel)

    def _send_raw(self, data: bytes) -> None:
        if self._wire is not None:
            self._wire.send(data)


def _no_channel(number: int) -> ProtocolError:
    return ProtocolError(CHANNEL_ERROR, f"expected 'channel.open' on channel {number}")


def _index(event: Event) -> int:
    if isinstance(event, Hello):
        return 0
    if isinstance(event, Method):
        return event.method.index
    return commands.Basic.Ack.index if isinstance(event, Ack) else commands.Basic.Publish.index
