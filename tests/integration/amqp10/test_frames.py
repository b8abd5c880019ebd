"""AMQP 1.0 frame by frame: windows, pieces, settlement modes, detached links, limits and errors that libraries hide."""

import socket
import time
from collections.abc import Callable, Iterator

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from headrace.protocols.amqp10.frames import AMQP_HEADER, RECEIVER_SECOND, SASL_HEADER
from headrace.protocols.amqp10.performatives import (
    ACCEPTED,
    Accepted,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Received,
    Rejected,
    Released,
    Target,
    Transfer,
)
from headrace.wire.types import Map
from tests.amqp10_client import RawClient, body, credit, receiver, sender, transfer
from tests.servers import Server, drain

Connect = Callable[..., RawClient]


@pytest.fixture
def connect(server: Server) -> Iterator[Connect]:
    opened: list[RawClient] = []

    def client(container_id: str = "raw", **options: int) -> RawClient:
        opened.append(RawClient(server.port, container_id, **options))
        return opened[-1]

    yield client
    for one in opened:
        one.close()


def _fill(channel: BlockingChannel, queue: str, count: int) -> None:
    for number in range(count):
        channel.basic_publish("", queue, b"%d" % number)


# -- windows and credit ----------------------------------------------------------------------------------------------


def test_no_more_is_sent_than_the_window_has_room_for(connect: Connect, channel: BlockingChannel, queue: str) -> None:
    _fill(channel, queue, 10)
    client = connect()
    client.begin(incoming_window=2)
    client.send(receiver("r", queue), credit(0, 100, incoming_window=2))
    first = client.all_of(Transfer, 2)
    client.send(credit(0, 100, next_incoming_id=2, incoming_window=3))
    second = client.all_of(Transfer, 3)
    client.send(credit(0, 100, next_incoming_id=5, incoming_window=100))
    third = client.all_of(Transfer, 5)

    assert [len(first), len(second), len(third)] == [2, 3, 5]
    assert [piece.id for piece in first + second + third] == list(range(10))


def test_a_message_larger_than_the_window_goes_on_when_there_is_room(
    connect: Connect, channel: BlockingChannel, queue: str
) -> None:
    channel.basic_publish("", queue, b"x" * 3000)
    client = connect(max_frame_size=512)
    client.begin(incoming_window=1)
    client.send(receiver("r", queue), credit(0, 5, incoming_window=1))
    pieces = client.all_of(Transfer, 1)
    while pieces[-1].more:
        client.send(credit(0, 5, next_incoming_id=len(pieces), incoming_window=1))
        pieces.append(client.expect(Transfer))

    assert len(pieces) == 7
    assert b"".join([piece.payload for piece in pieces]).count(b"x") >= 3000


def test_drain_gives_credit_back_and_echo_is_answered(connect: Connect, channel: BlockingChannel, queue: str) -> None:
    _fill(channel, queue, 3)
    client = connect()
    client.begin()
    client.send(receiver("r", queue), credit(0, 10, drain=True))
    events = [client.expect(Transfer) for _ in range(3)]
    drained = client.expect(Flow)
    client.send(credit(0, 5, next_incoming_id=3, delivery_count=10, echo=True))
    echoed = client.expect(Flow)

    assert [event.id for event in events] == [0, 1, 2]
    assert (drained.handle, drained.delivery_count, drained.link_credit, drained.drain) == (0, 10, 0, True)
    assert (echoed.delivery_count, echoed.link_credit) == (10, 5)


def test_a_session_echoes_its_window(connect: Connect) -> None:
    client = connect()
    client.begin()
    flow = Flow()
    flow.next_incoming_id, flow.incoming_window, flow.outgoing_window, flow.echo = 0, 5, 5, True
    client.send(flow)

    assert client.expect(Flow).incoming_window == 4096


# -- deliveries that come in -----------------------------------------------------------------------------------------


def test_pieces_are_put_together_and_aborted_ones_are_forgotten(
    connect: Connect, channel: BlockingChannel, queue: str
) -> None:
    client = connect()
    client.begin()
    client.send(sender("s", queue), sender("t", queue, 1))
    whole = body("one two three")
    client.send(
        transfer(0, whole[:5], more=True),
        transfer(1, body("between"), handle=1),
        transfer(-1, whole[5:9], more=True, tag=None),
        transfer(-1, whole[9:], tag=None),
        transfer(2, b"never", more=True),
        transfer(-1, b"", tag=None, aborted=True),
        transfer(3, body("after")),
    )
    outcomes: dict[int, type] = {}
    while len(outcomes) < 3:
        told = client.expect(Disposition)
        outcomes.update({number: type(told.state) for number in range(told.first, told.last + 1)})

    assert outcomes == {0: Accepted, 1: Accepted, 3: Accepted}
    assert drain(channel, queue, 3) == [b"between", b"one two three", b"after"]


def test_what_is_no_message_is_rejected_and_the_link_goes_on(connect: Connect, queue: str) -> None:
    client = connect()
    client.begin()
    client.send(sender("s", queue), transfer(0, b"\x00\x53\x99\x40"), transfer(1, body("fine")))
    found = [client.expect(Disposition), client.expect(Disposition)]

    assert [type(told.state) for told in found] == [Rejected, Accepted]
    rejected = found[0].state
    assert isinstance(rejected, Rejected)
    assert rejected.error is not None
    assert rejected.error.condition == "amqp:decode-error"


def test_a_sender_that_settles_last_hears_first(connect: Connect, channel: BlockingChannel, queue: str) -> None:
    client = connect()
    client.begin()
    client.send(_second(sender("s", queue)), transfer(0, body("x")))
    told = client.expect(Disposition)
    assert (told.settled, type(told.state)) == (False, Accepted)
    client.send(Disposition(0, False, 0, 0, True, ACCEPTED), transfer(1, body("y")))
    told = client.expect(Disposition)
    assert (told.first, told.settled, type(told.state)) == (1, False, Accepted)

    assert drain(channel, queue, 2) == [b"x", b"y"]


def _second(attach: Attach) -> Attach:
    """A sender that settles last."""
    attach.receiver_settles = RECEIVER_SECOND
    return attach


@pytest.mark.parametrize("policy", ["link-detach", "session-end", "connection-close", "never"])
def test_a_sender_that_wants_to_resume_hears_that_nothing_is_known_and_sends_anew(
    connect: Connect, channel: BlockingChannel, queue: str, policy: str
) -> None:
    attach = _second(sender("s", queue))
    assert isinstance(attach.target, Target)
    attach.target.durable, attach.target.expiry_policy = 2, policy
    client = connect()
    client.begin()
    client.send(attach, transfer(0, body("x")))
    client.expect(Disposition)
    client.close()
    client = connect()
    client.begin()
    attach.unsettled = Map([(b"0", None)])
    attach.incomplete_unsettled = True
    client.send(attach)
    answer = client.expect(Attach)
    assert (answer.unsettled, answer.incomplete_unsettled) == (None, False)
    client.send(transfer(0, body("x"), resume=True))
    told = client.expect(Disposition)

    assert (told.first, told.settled, type(told.state)) == (0, False, Accepted)
    assert drain(channel, queue, 2) == [b"x", b"x"]


def test_a_link_that_lasts_is_taken_over_by_another_connection(
    connect: Connect, channel: BlockingChannel, queue: str
) -> None:
    _fill(channel, queue, 2)
    attach = receiver("r", queue)
    assert attach.source is not None
    attach.source.expiry_policy = "never"
    client = connect("moving")
    client.begin()
    client.send(attach, credit(0, 2))
    tags = [client.expect(Transfer).tag for _ in range(2)]
    other = connect("moving")
    other.begin()
    attach.unsettled = Map([(tags[0], ACCEPTED.described()), (tags[1], None)])
    other.send(attach, credit(0, 2))
    assert other.expect(Attach).unsettled is None
    again = [other.expect(Transfer), other.expect(Transfer)]
    stolen = client.expect(Detach)

    assert [(one.resume, one.settled, one.payload[-1:]) for one in again] == [
        (False, False, b"0"),
        (False, False, b"1"),
    ]
    assert stolen.error is not None
    assert stolen.error.condition == "amqp:link:stolen"


# -- deliveries that go out ------------------------------------------------------------------------------------------


def test_a_receiver_that_settles_second_is_told_that_it_is_settled(
    connect: Connect, channel: BlockingChannel, queue: str
) -> None:
    _fill(channel, queue, 2)
    client = connect()
    client.begin()
    attach = receiver("r", queue)
    attach.receiver_settles = RECEIVER_SECOND
    client.send(attach, credit(0, 2))
    client.expect(Transfer)
    client.expect(Transfer)
    client.send(
        Disposition(0, True, 0, 0, False, Received(0, 10)),
        Disposition(0, True, 0, 1, False, ACCEPTED),
    )
    told = [client.expect(Disposition), client.expect(Disposition)]

    assert [(one.is_receiver, one.first, one.settled, type(one.state)) for one in told] == [
        (False, 0, True, Accepted),
        (False, 1, True, Accepted),
    ]
    assert channel.queue_declare(queue, passive=True).method.message_count == 0


def test_settled_without_a_state_is_the_default_outcome(connect: Connect, channel: BlockingChannel, queue: str) -> None:
    _fill(channel, queue, 2)
    client = connect()
    client.begin()
    attach = receiver("r", queue)
    assert attach.source is not None
    attach.source.default_outcome = ACCEPTED
    client.send(attach, credit(0, 1))
    answer = client.expect(Attach)
    client.expect(Transfer)
    client.send(Disposition(0, True, 0, 0, True, None), Detach(0, True))
    client.expect(Detach)

    assert answer.source is not None
    assert isinstance(answer.source.default_outcome, Accepted)
    assert drain(channel, queue, 1, quiet=1) == [b"1"]


@pytest.mark.parametrize("policy", ["link-detach", "session-end", "connection-close", "never"])
def test_a_detached_link_gives_back_what_was_unsettled_and_resumes_nothing(
    connect: Connect, channel: BlockingChannel, queue: str, policy: str
) -> None:
    _fill(channel, queue, 3)
    client = connect()
    client.begin()
    attach = receiver("r", queue)
    assert attach.source is not None
    attach.source.durable, attach.source.expiry_policy = 2, policy
    client.send(attach, credit(0, 3))
    tags = [client.expect(Transfer).tag for _ in range(3)]
    client.send(Disposition(0, True, 1, 1, True, ACCEPTED), Detach(0, False))
    assert client.expect(Detach).closed is False
    assert channel.queue_declare(queue, passive=True).method.message_count == 2
    attach.unsettled = Map([(tags[0], ACCEPTED.described()), (tags[2], None)])
    client.send(attach, credit(0, 3, next_incoming_id=3))
    answer = client.expect(Attach)
    assert (answer.unsettled, answer.incomplete_unsettled) == (None, False)
    again = [client.expect(Transfer), client.expect(Transfer)]
    assert [(one.resume, one.settled, one.payload[-1:]) for one in again] == [
        (False, False, b"0"),
        (False, False, b"2"),
    ]
    client.send(Disposition(0, True, again[0].id, again[1].id, True, ACCEPTED), Detach(0, True))
    client.expect(Detach)
    assert drain(channel, queue, 0, quiet=0.5) == []


def test_a_message_that_the_receiver_is_too_small_for_detaches_it(
    connect: Connect, channel: BlockingChannel, queue: str
) -> None:
    channel.basic_publish("", queue, b"x" * 100)
    client = connect()
    client.begin()
    attach = receiver("r", queue)
    attach.max_message_size = 50
    client.send(attach, credit(0, 1))
    detach = client.expect(Detach)

    assert detach.error is not None
    assert detach.error.condition == "amqp:link:message-size-exceeded"
    assert drain(channel, queue, 1) == [b"x" * 100]


def test_a_link_attached_again_by_its_name_is_stolen(connect: Connect, queue: str) -> None:
    client = connect()
    client.begin()
    client.send(receiver("r", queue), receiver("r", queue, 1))
    detach = client.expect(Detach)

    assert detach.handle == 0
    assert detach.error is not None
    assert detach.error.condition == "amqp:link:stolen"


# -- errors ----------------------------------------------------------------------------------------------------------


def test_a_handle_of_no_link_ends_the_session_and_no_more(connect: Connect, queue: str) -> None:
    client = connect()
    client.begin()
    client.begin(1)
    client.send(transfer(0, b"", handle=7))
    end = client.expect(End)

    assert end.error is not None
    assert end.error.condition == "amqp:session:unattached-handle"
    attach = receiver("r", queue)
    attach.channel = 1
    client.send(attach)
    assert client.expect(Attach).name == "r"


def test_a_handle_in_use_ends_the_session(connect: Connect, queue: str) -> None:
    client = connect()
    client.begin()
    client.send(receiver("r", queue), receiver("s", queue))
    end = client.expect(End)

    assert end.error is not None
    assert end.error.condition == "amqp:session:handle-in-use"


@pytest.mark.parametrize(
    ("frame", "condition"),
    [
        (b"\x00\x02\x00\x01\x02\x00\x00\x00", "amqp:connection:framing-error"),
        (b"\x00\x00\x00\x09\x02\x00\x00\x00\x40", "amqp:decode-error"),
        (b"\x00\x00\x00\x0c\x02\x00\x00\x00\x00\x53\x99\x45", "amqp:decode-error"),
        (b"\x00\x00\x00\x0c\x02\x00\x00\x05\x00\x53\x17\x45", "amqp:not-allowed"),
        (b"\x00\x00\x00\x08\x01\x00\x00\x00", "amqp:connection:framing-error"),
    ],
)
def test_a_broken_frame_closes_the_connection_with_a_reason(
    server: Server, connect: Connect, frame: bytes, condition: str
) -> None:
    client = connect()
    client._socket.sendall(frame)
    close = client.expect(Close)

    assert close.error is not None
    assert close.error.condition == condition
    client.send(Close())
    with pytest.raises(ConnectionError):
        client.next()


def test_a_channel_above_the_agreed_closes_the_connection(connect: Connect) -> None:
    client = connect()
    begin = Begin(None, 0, 1, 1)
    begin.channel = 2000
    client.send(begin)
    close = client.expect(Close)

    assert close.error is not None
    assert close.error.condition == "amqp:connection:framing-error"


@pytest.mark.parametrize("header", [b"AMQP\x00\x01\x01\x00", b"AMQP\x03\x01\x00\x07", b"AMQP\x02\x01\x00\x00"])
def test_a_version_that_is_not_spoken_is_answered_with_one_that_is(server: Server, header: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), 10) as raw:
        raw.sendall(header)
        assert raw.recv(100) == SASL_HEADER
        assert raw.recv(100) == b""


def test_a_wrong_password_is_told_so(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), 10) as raw:
        raw.sendall(SASL_HEADER)
        init = b"\x00\x53\x41\xc0\x1b\x02\xa3\x05PLAIN\xa0\x11\x00guest\x00other-word"
        raw.sendall((8 + len(init)).to_bytes(4) + b"\x02\x01\x00\x00" + init + AMQP_HEADER)
        data = b""
        while piece := raw.recv(1000):
            data += piece
    assert data.startswith(SASL_HEADER)
    assert data.endswith(b"\x00\x53\x44\xc0\x03\x01\x50\x01")


def test_an_idle_client_gets_frames_that_show_life(connect: Connect) -> None:
    client = connect(idle_timeout=400)
    deadline = time.monotonic() + 60
    while client.heartbeats < 4 and time.monotonic() < deadline:
        with pytest.raises(TimeoutError):
            client.next(0.5)

    assert client.heartbeats >= 4


def test_released_is_what_becomes_of_a_message_without_a_queue(connect: Connect) -> None:
    client = connect()
    client.begin()
    client.send(sender("s", "/exchanges/amq.direct/nobody"), transfer(0, body("x")))

    assert isinstance(client.expect(Disposition).state, Released)
