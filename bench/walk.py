"""Walk of one message: calls, functions, files and changes of file, for each protocol. Interpreted code only.

    PYTHONPATH=src python -m bench.walk [--chain]

Each walk starts with the bytes that a publisher sends and ends when the last answer is in an output buffer. Between
them the message is stored by a local engine, delivered to a consumer and confirmed. Sockets are left out. The counts
are of the steady state: earlier messages have filled every cache.
"""

import argparse
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Final, cast

from pamqp import base, commands, frame

import headrace
from bench.guard.client import House, Pipe, ack_frame, publish_frames
from headrace.net.connection import Wire
from headrace.net.handler import Handler
from headrace.protocols.amqp091.frames import FRAME_MAX_SIZE, PROTOCOL_HEADER
from headrace.storage.local.engine import LocalEngine

_ROOT: Final = str(Path(headrace.__file__).parent)
_WITHIN: Final = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")
"""A comprehension counts as part of its function, as it does from Python 3.12 on."""
_WARM_UP: Final = 60
_WALKS: Final = 9
_QUIET_SECONDS: Final = 0.02
_PATIENCE: Final = 200
PAYLOAD: Final = b"x" * 100


class Profile:
    """Records every call of a function of the package, in all threads, while it is on."""

    def __init__(self) -> None:
        self.is_on = False
        self.calls: list[CodeType] = []

    def install(self) -> None:
        threading.setprofile(self._event)
        sys.setprofile(self._event)

    def _event(self, at: FrameType, event: str, argument: object) -> None:
        code = at.f_code
        if self.is_on and event == "call" and code.co_filename.startswith(_ROOT) and code.co_name not in _WITHIN:
            self.calls.append(code)

    def measure(self, walk: Callable[[], None]) -> list[CodeType]:
        self.calls = []
        self.is_on = True
        walk()
        self.is_on = False
        return self.calls


class Place:
    """A broker over a local engine, and the loop that a program would run."""

    def __init__(self, folder: Path) -> None:
        self._woken = threading.Event()
        self.engine = LocalEngine(folder, self._woken.set)
        self.house = House(self.engine)

    def turn(self) -> None:
        """Run until no call is due and the engine is silent."""
        soon = self.house.soon
        while True:
            while soon:
                calls, soon[:] = list(soon), []
                for call in calls:
                    call()
            if not self._woken.wait(_QUIET_SECONDS):
                return
            self._woken.clear()
            self.engine.poll()


class Client:
    """A client's end of a connection."""

    def __init__(self, place: Place, protocol: str) -> None:
        self._place = place
        self._pipe = Pipe(place.house.soon)
        self._handler: Handler = place.house.handler(protocol)
        self._pipe.hand_over = self._hand_over
        self._handler.opened(cast("Wire", self._pipe))

    def _hand_over(self, handler: Handler) -> None:
        self._handler = handler

    def say(self, data: bytes, *expected: bytes) -> bytes:
        """Send bytes and let all happen that follows, until the answer has what is expected; returns the answer."""
        self._handler.feed(data)
        for _ in range(_PATIENCE):
            self._place.turn()
            answer = b"".join(self._pipe.output.parts)
            if all([part in answer for part in expected]):
                return self._pipe.output.take()
        raise AssertionError(f"the answer is {answer!r}, without {expected}")


class Walk:
    """A message of one protocol, sent again and again."""

    name = ""

    def send(self) -> None:
        """Publish one message, which is delivered and confirmed."""

    def settle(self) -> None:
        """Acknowledge it."""


class Amqp091(Walk):
    name = "AMQP 0-9-1 publish, deliver, confirm"

    def __init__(self, place: Place) -> None:
        self._client = client = Client(place, "amqp")
        client.say(PROTOCOL_HEADER)
        self._call(commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest", "en_US"), 0)
        self._call(commands.Connection.TuneOk(0, FRAME_MAX_SIZE, 0), 0)
        self._call(commands.Connection.Open("/"), 0)
        self._call(commands.Channel.Open())
        self._call(commands.Confirm.Select())
        self._call(commands.Queue.Declare(queue="orders", durable=True))
        self._call(commands.Basic.Consume(queue="orders", consumer_tag="walk"))
        self._publish = publish_frames("orders", PAYLOAD)
        self._tag = 0

    def _call(self, command: base.Frame, channel: int = 1) -> None:
        self._client.say(frame.marshal(command, channel))

    def send(self) -> None:
        self._tag += 1
        self._client.say(self._publish, PAYLOAD, ack_frame(self._tag, False))

    def settle(self) -> None:
        self._client.say(ack_frame(self._tag, False))


class Mqtt(Walk):
    name = "MQTT QoS 1 to $queue/ with a group"

    def __init__(self, place: Place) -> None:
        place.house.declare("jobs")
        self._publisher = self._connect(place, b"meter")
        self._worker = self._connect(place, b"worker")
        group = b"\x26" + _text(b"consumer-group") + _text(b"billing")
        self._worker.say(_packet(0x82, b"\0\1" + bytes((len(group),)) + group + _text(b"$queue/jobs") + b"\1"))
        self._group = b"\x26" + _text(b"group-id") + _text(b"billing")
        self._offset = -1

    @staticmethod
    def _connect(place: Place, name: bytes) -> Client:
        client = Client(place, "mqtt")
        client.say(_packet(0x10, _text(b"MQTT") + b"\5\2\0\x3c\0" + _text(name)))
        return client

    def send(self) -> None:
        self._publisher.say(_packet(0x32, _text(b"$queue/jobs") + b"\0\1\0" + PAYLOAD), b"\x40\2\0\1")
        self._offset += 1

    def settle(self) -> None:
        """Settle by the address with a verb, and confirm the packet."""
        place = b"\x26" + _text(b"message-id") + _text(b"jobs:%d" % self._offset)
        said = self._group + place
        self._worker.say(_packet(0x32, _text(b"$queue/jobs/$ack") + b"\0\2" + bytes((len(said),)) + said))
        number = (0x8000 + self._offset % 0x8000).to_bytes(2)
        self._worker.say(_packet(0x40, number))


class Amqp10(Walk):
    name = "AMQP 1.0 transfer"

    def __init__(self, place: Place) -> None:
        self._client = client = Client(place, "amqp")
        client.say(b"AMQP\0\1\0\0")
        self._perform(0x10, _string("walk"), _string("vhost:/"))
        self._perform(0x11, b"\x40", _uint(0), _uint(2048), _uint(2048))
        source = _described(0x28, _string("/queues/bills"))
        target = _described(0x29, _string("/queues/bills"))
        place.house.declare("bills")
        self._perform(
            0x12, _string("out"), _uint(0), b"\x42", b"\x50\0", b"\x50\0", source, target, b"\x40", b"\x40", _uint(0)
        )
        self._perform(0x12, _string("in"), _uint(1), b"\x41", b"\x50\0", b"\x50\0", source, target)
        self._flow(0)
        self._number = -1

    def _flow(self, received: int) -> None:
        """Give the receiving link credit."""
        self._perform(
            0x13, _uint(received), _uint(2048), _uint(received), _uint(2048), _uint(1), _uint(received), _uint(100)
        )

    def _perform(self, code: int, *fields: bytes, payload: bytes = b"", expected: tuple[bytes, ...] = ()) -> None:
        body = _described(code, *fields) + payload
        self._client.say((8 + len(body)).to_bytes(4) + b"\2\0\0\0" + body, *expected)

    def send(self) -> None:
        self._number += 1
        tag = b"\xa0\4" + self._number.to_bytes(4)
        message = b"\0\x53\x70\xc0\2\1\x41" + b"\0\x53\x75\xa0" + bytes((len(PAYLOAD),)) + PAYLOAD
        fields = (_uint(0), _uint(self._number), tag, _uint(0), b"\x42")
        self._perform(0x14, *fields, payload=message, expected=(PAYLOAD, b"\0\x53\x15"))

    def settle(self) -> None:
        accepted = _described(0x24)
        self._perform(0x15, b"\x41", _uint(self._number), _uint(self._number), b"\x41", accepted)
        self._flow(self._number + 1)


def _text(raw: bytes) -> bytes:
    return len(raw).to_bytes(2) + raw


def _packet(first: int, body: bytes) -> bytes:
    size = bytes((len(body),)) if len(body) < 128 else bytes((len(body) & 0x7F | 0x80, len(body) >> 7))
    return bytes((first,)) + size + body


def _string(text: str) -> bytes:
    return b"\xa1" + bytes((len(text),)) + text.encode()


def _uint(number: int) -> bytes:
    return b"\x70" + number.to_bytes(4)


def _described(code: int, *fields: bytes) -> bytes:
    body = b"".join(fields)
    return b"\0\x53" + bytes((code,)) + b"\xd0" + (4 + len(body)).to_bytes(4) + len(fields).to_bytes(4) + body


def measure(kind: Callable[[Place], Walk], profile: Profile) -> list[CodeType]:
    """The calls of one message, as most messages make them."""
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder) / "data")
        walk = kind(place)
        for _ in range(_WARM_UP):
            walk.send()
            walk.settle()
        found: list[list[CodeType]] = []
        for _ in range(_WALKS):
            found.append(profile.measure(walk.send))
            walk.settle()
        place.engine.close()
    usual = Counter([len(calls) for calls in found]).most_common(1)[0][0]
    return next(calls for calls in found if len(calls) == usual)


def report(name: str, calls: list[CodeType]) -> str:
    files = [code.co_filename for code in calls]
    changes = sum([now != then for now, then in zip(files[1:], files, strict=False)])
    return f"{name:40}{len(calls):7}{len(set(calls)):11}{len(set(files)):7}{changes:9}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chain", action="store_true", help="list the calls, in order")
    is_chain = parser.parse_args().chain
    profile = Profile()
    profile.install()
    print(f"{'walk':40}{'calls':>7}{'functions':>11}{'files':>7}{'changes':>9}")
    kinds: tuple[Callable[[Place], Walk], ...] = (Amqp091, Mqtt, Amqp10)
    for kind in kinds:
        calls = measure(kind, profile)
        print(report(getattr(kind, "name", ""), calls))
        if is_chain:
            for code in calls:
                print(f"    {code.co_filename[len(_ROOT) + 1 :]:44} {code.co_qualname}")


if __name__ == "__main__":
    main()
