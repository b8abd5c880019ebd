"""A node that forwards clients of the stream protocol: where a goodbye fits, what a refusal says."""

import struct
from typing import cast

from headrace.net.connection import Wire
from headrace.net.handover import Redirect
from headrace.protocols.streams import frames
from headrace.protocols.streams.handover import StreamRefusal, StreamTracker
from tests.stream_client import LOGIN, Cutter, command, request
from tests.wires import FakeWire


def test_a_goodbye_fits_between_two_frames_of_an_open_connection() -> None:
    opened = request(frames.OPEN | frames.RESPONSE, 4, struct.pack(">HI", frames.OK, 0))
    confirm = command(frames.PUBLISH_CONFIRM, bytes(13))
    for cut in range(1, len(opened)):
        tracker = StreamTracker()
        tracker.passed(opened[:cut])
        assert tracker.goodbye("why") == b""
        tracker.passed(opened[cut:])
        (frame,) = Cutter().feed(tracker.goodbye("why"))
        assert frame.key == frames.CLOSE
        tracker.passed(confirm[:cut])
        assert (tracker.goodbye("why") == b"") == (cut < len(confirm))


def test_there_is_no_goodbye_before_the_login_and_after_the_servers_own() -> None:
    tracker = StreamTracker()
    tracker.passed(request(frames.PEER_PROPERTIES | frames.RESPONSE, 1, bytes(6)))
    assert tracker.goodbye("why") == b""
    tracker.passed(request(frames.OPEN | frames.RESPONSE, 4, bytes(6)))
    tracker.passed(request(frames.CLOSE, 1, bytes(4)))

    assert tracker.goodbye("why") == b""


def test_a_client_that_must_go_elsewhere_hears_where() -> None:
    refusal, line = StreamRefusal(lambda is_tls: Redirect("another node serves", "node2:5552")), FakeWire()
    refusal.opened(cast("Wire", line))

    refusal.feed(LOGIN[0])

    (frame,) = Cutter().feed(b"".join(line.sent))
    assert frame.key == frames.CLOSE
    assert b"another node serves: node2:5552" in frame.body
    assert line.is_closing


def test_garbage_is_not_answered() -> None:
    refusal, line = StreamRefusal(lambda is_tls: Redirect("another node serves")), FakeWire()
    refusal.opened(cast("Wire", line))

    refusal.feed(b"GET / HTTP/1.1\r\n\r\n")

    assert line.is_closing
    assert line.sent == []
