"""Frames as they are read: rows of messages give the same in one go as piece by piece, also where one is wrong."""

import pytest
from pamqp import commands

from headrace.errors import ProtocolError
from headrace.protocols.amqp091.codec import (
    HEARTBEAT_FRAME,
    Ack,
    Decoder,
    Hello,
    Method,
    Publish,
    TooLarge,
    encode_ack,
    encode_content,
)
from headrace.protocols.amqp091.frames import FRAME_MAX_SIZE, PROTOCOL_HEADER
from headrace.protocols.amqp091.methods import encode_method

_NOTHING_SAID = b"\0\0"
_PERSISTENT = bytes.fromhex("1000 02")
_OTHER_PIECES = 11
"""A number of bytes that holds no message, so that each is read frame by frame."""


def _publish(key: str, body: bytes, channel: int = 1, said: bytes = _PERSISTENT, **more: object) -> bytes:
    method = encode_method(channel, commands.Basic.Publish, {"routing_key": key, **more})
    return method + encode_content(channel, said, body, 4096)


def _read(data: bytes, piece: int) -> list[tuple[object, ...]]:
    """All that comes of these bytes, one tuple for each message and each tag, and what is wrong at the end."""
    decoder = Decoder()
    found: list[tuple[object, ...]] = []
    try:
        for at in range(0, len(data), piece):
            for event in decoder.feed(data[at : at + piece]):
                found += _plain(event)
        decoder.feed(b"")
    except ProtocolError as error:
        found.append((error.code, str(error)))
    return found


def _plain(event: object) -> list[tuple[object, ...]]:
    if isinstance(event, Publish):
        routes = event.routes or [event.route] * len(event.bodies)
        return [
            (event.channel, route.exchange, route.key, route.mandatory, route.immediate, raw, body)
            for route, raw, body in zip(routes, event.properties, event.bodies, strict=True)
        ]
    if isinstance(event, Ack):
        return [(event.channel, tag, event.multiple) for tag in range(event.first, event.tag + 1)]
    if isinstance(event, Method):
        return [(event.channel, event.method.name)]
    if isinstance(event, TooLarge):
        return [(event.channel, event.size)]
    assert isinstance(event, Hello)
    return [(event.is_ours,)]


_ROW = b"".join(
    [
        PROTOCOL_HEADER,
        *[_publish("job", body) for body in (b"aa", b"bb", b"cc", b"dd")],
        *[_publish(key, b"ee") for key in ("jab", "job", "jab")],
        _publish("job", b"ff", channel=2),
        _publish("job", b"gg", channel=2),
        _publish("job", b"hh"),
        *[_publish("job", b"ii", said=_NOTHING_SAID) for _ in range(2)],
        *[_publish("job", body) for body in (b"longer", b"longed", b"", b"jj")],
        *[_publish("job", b"kk", mandatory=True) for _ in range(3)],
        HEARTBEAT_FRAME,
        *[_publish("job", b"ll") for _ in range(2)],
    ]
)


def test_a_row_of_messages_is_read_in_one_go_as_piece_by_piece() -> None:
    found = _read(_ROW, len(_ROW))

    assert found == _read(_ROW, _OTHER_PIECES)
    assert [each[-1] for each in found[1:]] == [
        *[b"aa", b"bb", b"cc", b"dd", b"ee", b"ee", b"ee", b"ff", b"gg", b"hh", b"ii", b"ii"],
        *[b"longer", b"longed", b"", b"jj", b"kk", b"kk", b"kk", b"ll", b"ll"],
    ]
    assert [(each[0], each[2], each[3], each[4]) for each in found[4:9]] == [
        (1, "job", False, False),
        (1, "jab", False, False),
        (1, "job", False, False),
        (1, "jab", False, False),
        (2, "job", False, False),
    ]


@pytest.mark.parametrize("change", [1, 0x80])
def test_a_row_with_any_byte_changed_is_read_in_one_go_as_piece_by_piece(change: int) -> None:
    for at in range(len(PROTOCOL_HEADER), len(_ROW)):
        changed = bytearray(_ROW)
        changed[at] ^= change
        assert _read(bytes(changed), len(changed)) == _read(bytes(changed), _OTHER_PIECES), at


def test_a_row_that_is_cut_anywhere_loses_nothing() -> None:
    whole = _read(_ROW, len(_ROW))
    for at in range(1, len(_ROW)):
        decoder = Decoder()
        events = decoder.feed(_ROW[:at]) + decoder.feed(_ROW[at:])
        assert [plain for event in events for plain in _plain(event)] == whole, at


def test_messages_that_differ_in_their_bodies_alone_are_one_event() -> None:
    events = Decoder().feed(PROTOCOL_HEADER + b"".join([_publish("job", b"%d" % number) for number in range(6)]))

    assert [event.bodies for event in events if isinstance(event, Publish)] == [
        [b"0"],
        [b"1", b"2", b"3", b"4", b"5"],
    ]


def test_messages_with_keys_of_their_own_are_one_event_for_each_exchange_and_channel() -> None:
    ways = [("", "a", 1), ("", "b", 1), ("", "a", 1), ("x", "a", 1), ("x", "b", 1), ("x", "b", 2), ("x", "a", 2)]
    frames = [_publish(key, b"x", channel, exchange=exchange) for exchange, key, channel in ways]
    decoder = Decoder()
    decoder.feed(PROTOCOL_HEADER + b"".join(frames))

    events = [event for event in decoder.feed(b"".join(frames)) if isinstance(event, Publish)]

    assert [(event.channel, event.route.exchange) for event in events] == [(1, ""), (1, "x"), (2, "x")]
    assert [plain[1:3] for event in events for plain in _plain(event)] == [way[:2] for way in ways]


def test_sizes_and_channels_of_several_bytes_are_read_as_they_are() -> None:
    body = bytes(range(256)) * 300
    data = PROTOCOL_HEADER + encode_method(0x0701, commands.Basic.Publish, {"routing_key": "job"})
    data += encode_content(0x0701, _PERSISTENT, body, FRAME_MAX_SIZE)

    for piece in (len(data), 5000):
        assert _read(data, piece)[1:] == [(0x0701, "", "job", False, False, _PERSISTENT, body)]


@pytest.mark.parametrize(("mandatory", "immediate"), [(True, False), (False, True), (True, True)])
def test_both_flags_of_a_publish_are_read(mandatory: bool, immediate: bool) -> None:
    data = PROTOCOL_HEADER + _publish("job", b"a", mandatory=mandatory, immediate=immediate)

    assert _read(data, len(data))[1][3:5] == (mandatory, immediate)


@pytest.mark.parametrize(
    ("hexadecimal", "code", "text"),
    [
        ("01 0001 01000000", 501, "16777216 bytes"),
        ("01 0001 00020001", 501, "131073 bytes"),
        ("08 0001 00000000 ce", 501, "heartbeat"),
        ("08 0000 00000001 00 ce", 501, "heartbeat"),
        ("04 0000 00000000 ce", 501, "type 4"),
        ("01 0001 00000004 003c0028 00", 501, "end mark"),
        ("01 0001 00000003 003c00 ce", 501, "too short"),
        ("03 0001 00000001 61 ce", 505, "body"),
        ("02 0001 0000000e 003c 0000 0000000000000001 0000 ce", 505, "header"),
    ],
)
def test_what_is_wrong_with_a_frame_is_said(hexadecimal: str, code: int, text: str) -> None:
    ((_,), (found, said)) = _read(PROTOCOL_HEADER + bytes.fromhex(hexadecimal) + bytes(8), 1 << 20)

    assert found == code
    assert text in str(said)


def _frame(kind: int, payload: bytes, channel: int = 1) -> bytes:
    return bytes([kind]) + channel.to_bytes(2) + len(payload).to_bytes(4) + payload + b"\xce"


def _header(size: int, class_id: int = 60) -> bytes:
    return _frame(2, class_id.to_bytes(2) + bytes(2) + size.to_bytes(8) + _NOTHING_SAID)


@pytest.mark.parametrize(
    ("frames", "code", "text"),
    [
        ([_header(1)], 505, "channel 1: a content header where none is due"),
        (["publish", _header(1), _header(1)], 505, "channel 1: a content header where none is due"),
        (["publish", _header(1, 50)], 505, "channel 1: a content header of class 50"),
        ([_frame(3, b"x")], 505, "channel 1: a body frame where none is due"),
        (["publish", _frame(3, b"x")], 505, "channel 1: a body frame where none is due"),
        (["publish", _header(3), _frame(3, b"ab"), _frame(3, b"cde")], 501, "channel 1: a body goes 2 bytes beyond"),
        (["publish", _header(0), _frame(3, b"x")], 505, "channel 1: a body frame where none is due"),
    ],
)
@pytest.mark.parametrize("is_known", [False, True])
def test_contents_out_of_their_order_are_refused(
    frames: list[bytes | str], code: int, text: str, is_known: bool
) -> None:
    publish = encode_method(1, commands.Basic.Publish, {"routing_key": "q"})
    data = PROTOCOL_HEADER + (publish + _header(1) + _frame(3, b"x") if is_known else b"")
    data += b"".join([publish if isinstance(each, str) else each for each in frames])

    for piece in (len(data), _OTHER_PIECES):
        *_, (found, said) = _read(data, piece)
        assert (found, str(said).startswith(text)) == (code, True)


def test_a_message_of_the_largest_size_is_taken_and_a_larger_one_is_passed_over() -> None:
    publish = encode_method(1, commands.Basic.Publish, {"routing_key": "q"})
    decoder = Decoder()
    decoder.max_body_bytes = 3
    events = decoder.feed(PROTOCOL_HEADER)

    for size in (3, 4, 2):
        body = b"".join([_frame(3, b"x") for _ in range(size)])
        events += decoder.feed(publish + _header(size) + body)

    assert [_plain(event)[-1][-1] for event in events[1:]] == [b"xxx", 4, b"xx"]
    assert decoder.held_bytes == 0


def test_whoever_publishes_nothing_any_more_keeps_no_bodies() -> None:
    publish = encode_method(1, commands.Basic.Publish, {"routing_key": "q"})
    decoder = Decoder()
    decoder.feed(PROTOCOL_HEADER + publish + _header(3) + _frame(3, b"x"))
    assert decoder.held_bytes > 0

    decoder.drop_bodies()

    assert decoder.held_bytes == 0
    assert decoder.feed(_frame(3, b"yz")) == []
    assert decoder.feed(publish + _header(2) + _frame(3, b"a")) == []
    assert decoder.held_bytes == 0
    assert decoder.feed(_frame(3, b"b")) == []


def test_a_frame_of_the_largest_size_is_taken() -> None:
    body = b"x" * (FRAME_MAX_SIZE - 8)
    for count in (1, 3):
        row = b"".join(
            [
                encode_method(1, commands.Basic.Publish, {"routing_key": "job"})
                + encode_content(1, _PERSISTENT, body, FRAME_MAX_SIZE)
                for _ in range(count)
            ]
        )
        assert [each[-1] == body for each in _read(PROTOCOL_HEADER + row, 1 << 20)[1:]] == [True] * count


@pytest.mark.parametrize(
    "wrong",
    [
        _publish("job", b"b")[:-1] + b"\0",
        _publish("job", b"b").replace(b"\x03\0\1", b"\x03\0\2"),
        encode_method(1, commands.Basic.Publish, {"routing_key": "job"}) + encode_ack(1, 1, False),
        encode_method(1, commands.Basic.Publish, {"routing_key": "job"}) * 2,
    ],
)
def test_a_message_that_is_wrong_behind_others_is_refused_after_them(wrong: bytes) -> None:
    data = PROTOCOL_HEADER + _publish("job", b"a") * 3 + wrong

    *found, (code, _) = _read(data, len(data))

    assert [each[-1] for each in found[1:]] == [b"a"] * 3
    assert code in (501, 505)


def test_a_message_in_pieces_on_one_channel_lets_others_through() -> None:
    method = encode_method(1, commands.Basic.Publish, {"routing_key": "job"})
    content = encode_content(1, _PERSISTENT, b"in two pieces", 4096)
    data = b"".join(
        [
            *[PROTOCOL_HEADER, _publish("job", b"before"), _publish("job", b"before", channel=2), method],
            *[_publish("job", b"between", channel=2), encode_ack(2, 7, False), HEARTBEAT_FRAME, content],
        ]
    )

    found = _read(data, len(data))

    assert [(each[0], each[-1]) for each in found[1:]] == [
        (1, b"before"),
        (2, b"before"),
        (2, b"between"),
        (2, False),
        (1, b"in two pieces"),
    ]


@pytest.mark.parametrize(
    ("acks", "rows"),
    [
        ([(1, 1, False), (1, 2, False), (1, 3, False)], [(1, 1, 3, False)]),
        ([(1, 1, False), (1, 3, False)], [(1, 1, 1, False), (1, 3, 3, False)]),
        ([(1, 2, False), (1, 1, False)], [(1, 2, 2, False), (1, 1, 1, False)]),
        ([(1, 1, False), (2, 2, False)], [(1, 1, 1, False), (2, 2, 2, False)]),
        ([(1, 1, False), (1, 2, True)], [(1, 1, 1, False), (1, 2, 2, True)]),
        ([(1, 1, True), (1, 2, False)], [(1, 1, 1, True), (1, 2, 2, False)]),
        ([(1, 1 << 40, False), (1, (1 << 40) + 1, False)], [(1, 1 << 40, (1 << 40) + 1, False)]),
        ([(1, 0x0102030405060708, False)], [(1, 0x0102030405060708, 0x0102030405060708, False)]),
    ],
)
def test_acknowledgements_of_neighbours_are_a_row_and_no_others(
    acks: list[tuple[int, int, bool]], rows: list[tuple[int, int, int, bool]]
) -> None:
    events = Decoder().feed(PROTOCOL_HEADER + b"".join([encode_ack(*ack) for ack in acks]))

    assert [
        (event.channel, event.first, event.tag, event.multiple) for event in events if isinstance(event, Ack)
    ] == rows


def test_bytes_of_another_protocol_are_refused_and_passed_over() -> None:
    decoder = Decoder()
    assert [plain for event in decoder.feed(b"AMQ") for plain in _plain(event)] == []
    assert [plain for event in decoder.feed(b"P\0\1\0\0") for plain in _plain(event)] == [(False,)]
    assert decoder.feed(_ROW) == []
