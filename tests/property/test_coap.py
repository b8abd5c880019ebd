"""Laws of the CoAP side: any datagram is read, refused or ignored; nothing is kept without bound."""

import contextlib

from hypothesis import example, given
from hypothesis import strategies as st

from headrace.errors import ProtocolError
from headrace.net.datagrams import Peer
from headrace.protocols.coap.codec import decode_request, encode_answer
from headrace.protocols.coap.endpoint import Endpoint
from tests.endpoints import access_to
from tests.house import House

_heads = st.tuples(st.sampled_from([0x40, 0x41, 0x48, 0x50]), st.integers(0, 31), st.binary(min_size=2, max_size=2))


@given(st.binary(max_size=80))
@example(bytes.fromhex("40020000d1"))
@example(bytes.fromhex("40020000e1ff"))
@example(bytes.fromhex("40020000d10effffffff"))  # block 1 of four bytes
def test_any_datagram_is_a_request_or_refused(data: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        decode_request(data)


@given(_heads, st.binary(max_size=60))
def test_any_body_of_a_request_is_read_or_refused(head: tuple[int, int, bytes], rest: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        decode_request(bytes(head[:2]) + head[2] + rest)


@given(_heads, st.binary(max_size=8), st.text(max_size=20))
def test_any_request_can_be_answered(head: tuple[int, int, bytes], rest: bytes, words: str) -> None:
    answer = encode_answer(bytes(head[:2]) + head[2] + rest, 0x80, 7, words)

    assert answer[0] >> 6 == 1
    assert answer[1] == 0x80


class _Port:
    """The port that answers go to."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send(self, data: bytes, peer: Peer) -> None:
        self.sent.append(data)


@given(
    st.lists(
        st.binary(max_size=60)
        | st.tuples(_heads, st.binary(max_size=40)).map(lambda made: bytes(made[0][:2]) + made[0][2] + made[1]),
        max_size=10,
    )
)
def test_any_datagrams_in_any_order_are_answered_or_ignored(datagrams: list[bytes]) -> None:
    house = House()
    hosts, access = access_to(house.broker, house.engine, house.clock)
    endpoint = Endpoint(hosts, access, house.clock)
    port = _Port()
    endpoint.opened(port)  # type: ignore[arg-type]

    for datagram in datagrams:
        endpoint.received(datagram, Peer(("127.0.0.1", 5683)))
    house.run()

    assert len(port.sent) <= len(datagrams)
