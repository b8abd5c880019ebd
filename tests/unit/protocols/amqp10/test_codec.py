"""The bytes of AMQP 1.0, pinned: frames of the standard, and stored messages."""

import contextlib

import pytest

from headrace.errors import ProtocolError
from headrace.protocols.amqp10.codec import Decoder, Hello, TransferEncoder, encode_accepted, encode_frame, encode_sasl
from headrace.protocols.amqp10.frames import AMQP_HEADER, SASL_HEADER
from headrace.protocols.amqp10.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Modified,
    Open,
    Rejected,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Source,
    Target,
    Transfer,
)
from headrace.wire import amqp10_values as codes
from headrace.wire import types as t
from headrace.wire.amqp10 import joined, split
from headrace.wire.amqp10_values import Reader, encode_value


@pytest.mark.parametrize(
    ("value", "raw"),
    [
        (None, "40"),
        (True, "41"),
        (False, "42"),
        (t.UByte(5), "5005"),
        (t.UShort(5), "600005"),
        (t.UInt(0), "43"),
        (t.UInt(255), "52ff"),
        (t.UInt(256), "7000000100"),
        (t.ULong(0), "44"),
        (t.ULong(20), "5314"),
        (t.ULong(2**64 - 1), "80ffffffffffffffff"),
        (t.Byte(-1), "51ff"),
        (t.Short(-2), "61fffe"),
        (t.Int(-1), "54ff"),
        (t.Int(300), "710000012c"),
        (-1, "55ff"),
        (2**40, "810000010000000000"),
        (t.Float(1.5), "723fc00000"),
        (1.5, "823ff8000000000000"),
        (t.Char("€"), "73000020ac"),
        (t.Timestamp(1), "830000000000000001"),
        (t.Decimal32(b"\x32\x80\x00\x01"), "7432800001"),
        (b"ab", "a0026162"),
        ("é", "a102c3a9"),
        (t.Symbol("ab"), "a3026162"),
        ([], "45"),
        ([True, "a"], "c0050241a10161"),
        (t.Map([(t.Symbol("a"), t.UInt(1))]), "c10602a301615201"),
        (t.Array(codes.SYM32, [t.Symbol("a"), t.Symbol("b")]), "e00c02b3000000016100000001" + "62"),
        (t.Described(t.ULong(0x24), []), "00532445"),
        ([t.Described(t.ULong(0), t.Described(t.Symbol("a"), None)), True], "c0090200440" + "0a301614041"),
        (t.Array(codes.LIST32, [[t.Described(t.ULong(0), True)]]), "e00d01d0000000070000000100444" + "1"),
    ],
)
def test_values_have_these_bytes(value: object, raw: str) -> None:
    assert encode_value(value).hex() == raw
    assert t.same(Reader(bytes.fromhex(raw)).value(), value)


def test_an_array_in_a_short_form_is_read() -> None:
    value = Reader(bytes.fromhex("e00602a301610162")).value()

    assert value == t.Array(codes.SYM32, [t.Symbol("a"), t.Symbol("b")])


def _opening() -> Open:
    opening = Open("c")
    opening.max_frame_size, opening.channel_max, opening.idle_timeout = 512, 9, 30000
    return opening


def _attach() -> Attach:
    attach = Attach("l", 1, True)
    attach.sender_settles = 0
    attach.source, attach.target = Source("q"), Target("t")
    return attach


def _flow() -> Flow:
    flow = Flow()
    flow.next_incoming_id, flow.incoming_window, flow.next_outgoing_id, flow.outgoing_window = 1, 2, 3, 4
    flow.handle, flow.delivery_count, flow.link_credit, flow.drain = 0, 5, 6, True
    return flow


@pytest.mark.parametrize(
    ("frame", "raw"),
    [
        (encode_frame(0, Close().encode()), "0000000c0200000000531845"),
        (encode_frame(1, End().encode()), "0000000c0200000100531745"),
        (encode_frame(1, Begin(1, 0, 100, 9).encode()), "0000001b02000001005311c00e05600001435264520970ffffffff"),
        (encode_frame(1, Detach(2, True).encode()), "0000001102000001005316c00402520241"),
        (
            encode_frame(1, Detach(0, True, Error("amqp:not-found", "no")).encode()),
            "0000002b02000001005316c01e03434100531dc01603a30e616d71703a6e6f742d666f756e64a1026e6f40",
        ),
        (encode_frame(1, _flow().encode()), "0000001d02000001005313c0100952015202520352044352055206" + "4041"),
        (encode_accepted(1, True, 7, 9, True), "0000001e02000001005315c01105417000000007700000000941" + "00532445"),
        (
            encode_frame(1, Disposition(1, True, 7, 7, True, Rejected()).encode()),
            "0000001702000001005315c00a054152074041" + "00532545",
        ),
        (
            TransferEncoder(1, 2, 512).encode(3, 4, False, b"xyz")[0],
            "0000002402000001005314c014067000000002700000000" + "3a0040000000443424278797a",
        ),
        (encode_sasl(SaslMechanisms(["PLAIN"]).encode()), "0000001b02010000005340c00e01e00b01b300000005504c41494e"),
        (encode_sasl(SaslOutcome(0).encode()), "0000001002010000005344c003015000"),
    ],
)
def test_frames_have_these_bytes(frame: bytes, raw: str) -> None:
    assert frame.hex() == raw


@pytest.mark.parametrize("performative", [_opening(), _attach(), _flow(), Begin(None, 1, 2, 3), Detach(3, False)])
def test_what_is_written_is_read(performative: Open | Attach | Flow | Begin | Detach) -> None:
    (_, event) = Decoder().feed(AMQP_HEADER + encode_frame(3, performative.encode()))

    assert type(event) is type(performative)
    assert event.encode() == performative.encode()
    assert event.channel == 3


def test_modified_is_read_with_what_it_says() -> None:
    state = Modified(True, False, t.Map.of({"x-a": 1}))
    (_, event) = Decoder().feed(AMQP_HEADER + encode_frame(0, Disposition(0, True, 1, 1, True, state).encode()))

    assert isinstance(event, Disposition)
    assert isinstance(event.state, Modified)
    assert (event.state.delivery_failed, event.state.undeliverable_here) == (True, False)
    assert event.state.annotations == t.Map.of({"x-a": 1})


def test_a_client_may_send_its_login_and_all_that_follows_at_once() -> None:
    init = encode_sasl(SaslInit("ANONYMOUS", b"").encode())
    events = Decoder().feed(SASL_HEADER + init + AMQP_HEADER + encode_frame(0, _opening().encode()))

    assert [type(event) for event in events] == [Hello, SaslInit, Hello, Open]


@pytest.mark.parametrize(
    ("message", "properties", "payload"),
    [
        ("005375a003616263", "00", "616263"),
        ("005375b000000003616263", "01", "616263"),
        ("005377a103616263", "02", "616263"),
        ("005377b100000003616263", "03", "616263"),
        ("005377a003616263", "04", "616263"),
        ("0053775205", "06", "0053775205"),
        ("005375a00161005375a00162", "06", "005375a00161005375a00162"),
        ("005370c0020141005375a00161", "00005370c0020141", "61"),
        ("005375a00161005378c10100", "8000000000005378c10100", "61"),
    ],
)
def test_a_message_is_stored_so(message: str, properties: str, payload: str) -> None:
    stored = split(bytes.fromhex(message))

    assert (stored[0].hex(), stored[1].hex()) == (properties, payload)
    assert joined(*stored).hex() == message


@pytest.mark.parametrize("message", ["00537705", "00537a40", "005378c10100005375a00161005378c10100", "a10161"])
def test_what_is_no_message_is_refused(message: str) -> None:
    with pytest.raises(ProtocolError):
        split(bytes.fromhex(message))


def test_a_transfer_has_its_payload_behind_it() -> None:
    transfer = Transfer(0, 1)
    transfer.id, transfer.tag, transfer.state = 5, b"t", Modified()
    (_, event) = Decoder().feed(AMQP_HEADER + encode_frame(2, transfer.encode(), b"payload"))

    assert isinstance(event, Transfer)
    assert (event.channel, event.handle, event.id, event.tag, event.payload) == (2, 1, 5, b"t", b"payload")


@pytest.mark.parametrize("start", [b"\x00\x53\x15\xc0", b"\x00\x53\x14\xc0"])
@pytest.mark.parametrize(
    "number", [b"\x81", b"\x70", b"\x70\x00", b"\x52", b"\x00", b"\x43\x70", b"\x43\x81", b"\x43\x52"]
)
@pytest.mark.parametrize("count", [2, 3, 5, 6])
def test_numbers_that_are_none_or_cut_short_raise_nothing_but_a_protocol_error(
    start: bytes, number: bytes, count: int
) -> None:
    for role in (b"\x41", b"\x43", b"\x52\x01"):
        body = bytes([count]) + role + number + b"\x00\x53\x24\x45"
        decoder = Decoder()
        decoder.feed(AMQP_HEADER)
        with contextlib.suppress(ProtocolError):
            assert len(decoder.feed(encode_frame(0, start + bytes([len(body)]) + body))) == 1


def test_a_row_of_deliveries_has_the_bytes_of_each() -> None:
    encoder = TransferEncoder(1, 2, 512)
    messages = [b"xyz", b"", b"y" * 400]
    assert encoder.fit(messages)
    assert not encoder.fit([*messages, b"z" * 512])

    for number, message in enumerate(messages, (1 << 32) - 2):
        encoder.write(number & 0xFFFFFFFF, number & 0xFFFFFFFF, number % 2 == 0, message)

    alone = [
        TransferEncoder(1, 2, 512).encode(number & 0xFFFFFFFF, number & 0xFFFFFFFF, number % 2 == 0, message)[0]
        for number, message in enumerate(messages, (1 << 32) - 2)
    ]
    assert encoder.take() == b"".join(alone)
    assert encoder.take() == b""
