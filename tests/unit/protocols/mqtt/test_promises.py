"""CONNACK, SUBACK: what they promise of a session that is kept would survive a crash by then."""

from headrace.errors import Unavailable
from tests.devices import CONNACK, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, SUBACK, Device, Field, packet, text
from tests.refusing_engine import RefusingEngine

_KEPT = {0x11: 3600}


def _field() -> tuple[RefusingEngine, Field]:
    engine = RefusingEngine()
    field = Field(engine)
    field.run()
    return engine, field


def _kinds(device: Device) -> list[int]:
    device.field.run()
    return [one.kind for one in device.take()]


def test_a_session_that_is_kept_is_announced_once_it_would_survive_a_crash() -> None:
    engine, field = _field()
    engine.is_closed_door = True
    kept = field.device("kept", said=_KEPT)
    brief = field.device("brief")
    assert kept.connack is None
    assert brief.connack is not None

    engine.open_door()

    assert _kinds(kept) == [CONNACK]


def test_what_a_client_sends_without_waiting_is_done_after_its_connack() -> None:
    engine, field = _field()
    engine.is_closed_door = True
    device = field.device("c", said=_KEPT)
    device.send(packet(0x82, b"\0\1", b"\0", text("a"), b"\1"))
    device.send(packet(0x32, text("a"), b"\0\2", b"\0", b"x"))
    assert _kinds(device) == []

    engine.open_door()

    assert sorted(_kinds(device)) == sorted([CONNACK, SUBACK, PUBLISH, PUBACK])


def test_what_waits_for_a_session_comes_after_its_connack() -> None:
    engine, field = _field()
    device = field.device("c", said=_KEPT)
    device.subscribe(("a", 1))
    device.lose()
    other = field.device("other")
    other.publish("a", "kept", 1)
    engine.is_closed_door = True
    back = Device(field)
    back.connect("c", clean=False, said=_KEPT)
    other.publish("a", "live")
    assert back.connack is None

    engine.open_door()

    assert _kinds(back) == [CONNACK, PUBLISH]


def test_an_old_session_that_a_clean_start_ends_is_gone_for_good_by_the_connack() -> None:
    engine, field = _field()
    field.device("c", said=_KEPT).lose()
    engine.is_closed_door = True
    clean = field.device("c")
    assert clean.connack is None

    engine.open_door()

    assert _kinds(clean) == [CONNACK]


def test_a_store_that_is_away_delays_the_answers_until_it_is_back() -> None:
    engine, field = _field()
    device = field.device("c", said=_KEPT)
    engine.failure, engine.fails_all = Unavailable("the store is away"), True
    device.send(packet(0x82, b"\0\1", b"\0", text("a"), b"\1"))
    other = field.device("other", said=_KEPT)
    assert (_kinds(device), other.connack) == ([], None)

    engine.failure = None
    field.advance(2)

    assert _kinds(device) == [SUBACK]
    assert _kinds(other) == [CONNACK]


def test_a_session_that_is_taken_over_before_its_connack_is_just_closed() -> None:
    engine, field = _field()
    engine.is_closed_door = True
    first = field.device("c", said=_KEPT)
    second = field.device("c", said=_KEPT)
    assert first.line.is_closed
    assert first.line.sent == []

    engine.open_door()

    assert _kinds(second) == [CONNACK]


def test_a_receipt_is_not_answered_by_a_commit_that_began_before_it() -> None:
    engine, field = _field()
    reader = field.device("c", said=_KEPT)
    reader.subscribe(("a", 2))
    writer = field.device("w")
    writer.publish("a", "1", 2)
    writer.publish("a", "2", 2)
    first, second = reader.messages(acknowledge=False)
    engine.is_closed_door = True
    reader.answer(PUBREC, first.number)
    reader.answer(PUBREC, second.number)
    assert _kinds(reader) == []

    engine.let_one_in()

    field.run()
    assert [(one.kind, one.number) for one in reader.take()] == [(PUBREL, first.number)]
    engine.open_door()
    field.run()
    assert [(one.kind, one.number) for one in reader.take()] == [(PUBREL, second.number)]


def test_a_release_is_not_answered_by_a_commit_that_began_before_it() -> None:
    """Or the client uses the identifier again, and after a crash the new message counts as the old one."""
    engine, field = _field()
    writer = field.device("c", said=_KEPT)
    for number in (1, 2):
        writer.publish("a", "x", 2, number=number)
    assert _kinds(writer) == [PUBREC, PUBREC]
    engine.is_closed_door = True
    for number in (1, 2):
        writer.answer(PUBREL, number)
    assert _kinds(writer) == []

    engine.let_one_in()

    field.run()
    assert [(one.kind, one.number) for one in writer.take()] == [(PUBCOMP, 1)]
    engine.open_door()
    field.run()
    assert [(one.kind, one.number) for one in writer.take()] == [(PUBCOMP, 2)]


def test_receipts_and_releases_are_answered_once_each_when_a_store_is_back() -> None:
    engine, field = _field()
    device = field.device("c", said=_KEPT)
    device.subscribe(("a", 2))
    for number in (1, 2):
        device.publish("a", "x", 2, number=number)
    field.run()
    messages = device.messages(acknowledge=False)
    device.take()
    engine.failure, engine.fails_all = Unavailable("the store is away"), True
    for number, message in enumerate(messages, 1):
        device.answer(PUBREL, number)
        device.answer(PUBREC, message.number)
    assert _kinds(device) == []

    engine.failure = None
    field.advance(2)

    field.run()
    answers = sorted((one.kind, one.number) for one in device.take())
    assert answers == sorted([*[(PUBREL, one.number) for one in messages], (PUBCOMP, 1), (PUBCOMP, 2)])
