"""Time that the MQTT codec takes for a packet, and a WebSocket for a frame. No broker, no sockets.

python -m bench.mqtt_codec
"""

import os
import time
from collections.abc import Callable

from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from headrace.protocols.mqtt.codec import Decoder, PublishEncoder, encode_acknowledgement, encode_publish
from headrace.protocols.mqtt.packets import PUBACK, V5, V311

COUNT = 1000
ROUNDS = 200
TOPIC = "plant/7/line/3/temperature"
PAYLOAD = bytes(100)
SAID = b"\x03\0\x0atext/plain\x26\0\1a\0\1b"
HELLO = (
    b"GET /mqtt HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
)


def best(call: Callable[[], object], rounds: int = ROUNDS) -> float:
    """The microseconds that one of the things takes that a call does COUNT of, in the best round."""
    shortest = float("inf")
    for _ in range(rounds):
        started = time.perf_counter()
        call()
        shortest = min(shortest, time.perf_counter() - started)
    return shortest / COUNT * 1e6


def decoder(version: int) -> Decoder:
    made = Decoder(1 << 28, 16)
    body = b"\0\4MQTT" + bytes((version, 2, 0, 60)) + (b"\0" if version == V5 else b"") + b"\0\1a"
    made.feed(bytes((0x10, len(body))) + body)
    return made


def decoding(version: int, packet: bytes) -> float:
    made, data = decoder(version), packet * COUNT
    return best(lambda: made.feed(data))


def encoding(qos: int, encoder: PublishEncoder | None = None) -> float:
    def call() -> None:
        for number in range(1, COUNT + 1):
            if encoder is None:
                encode_publish(V311, TOPIC, PAYLOAD, qos, packet_id=number)
            else:
                encoder.encode(qos, False, number)

    return best(call)


def unframing() -> float:
    """Frames of 120 bytes, one message each."""
    data = b"".join([b"\x82\xf8" + bytes(4) + os.urandom(120)] * COUNT)
    shortest = float("inf")
    for _ in range(ROUNDS // 10):
        protocol = ServerProtocol(subprotocols=[Subprotocol("mqtt")])
        protocol.receive_data(HELLO)
        (request,) = protocol.events_received()
        protocol.send_response(protocol.accept(request))  # type: ignore[arg-type]
        started = time.perf_counter()
        protocol.receive_data(data)
        protocol.events_received()
        shortest = min(shortest, time.perf_counter() - started)
    return shortest / COUNT * 1e6


def main() -> None:
    lines = [
        (
            f"decode PUBLISH, QoS {qos}, MQTT {name}",
            decoding(version, encode_publish(version, TOPIC, PAYLOAD, qos, packet_id=7)),
        )
        for version, name in ((V311, "3.1.1"), (V5, "5.0"))
        for qos in (0, 1)
    ]
    said = encode_publish(V5, TOPIC, PAYLOAD, 1, packet_id=7, properties=SAID)
    lines.append(("decode PUBLISH, QoS 1, MQTT 5.0, properties", decoding(V5, said)))
    lines.append(("decode PUBACK", decoding(V311, encode_acknowledgement(V311, PUBACK, 7))))
    lines.append(("encode PUBLISH, QoS 1", encoding(1)))
    lines += [(f"the same for many, QoS {qos}", encoding(qos, PublishEncoder(V311, TOPIC, PAYLOAD))) for qos in (0, 1)]
    lines.append(("a WebSocket frame of 120 bytes", unframing()))
    for name, microseconds in lines:
        print(f"{name:45} {microseconds:6.2f} us")


if __name__ == "__main__":
    main()
