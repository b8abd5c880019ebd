"""The answers of CoAP, which takes messages and does nothing else."""

import socket

from headrace.protocols.coap import codec
from tests.answers.decisions import SECONDS, Answers, NotPromised, Place, Request, Synced
from tests.coap_client import post

_REFUSAL = NotPromised("it says that nothing was published")


def in_the_code() -> set[str]:
    """All codes of answers."""
    public = {name: value for name, value in vars(codec).items() if name.isupper() and not name.startswith("_")}
    return {name for name, value in public.items() if isinstance(value, int) and value > 0x3F}


def _publish(qos: int, place: Place) -> Request:
    queue = place.declare()
    client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    place.on_close(client.close)
    client.connect(("127.0.0.1", place.server.ports["coap"]))
    client.settimeout(SECONDS)
    said = post(1, ["$queue", queue], b"x", [f"qos={qos}"])

    def request() -> None:
        client.send(said)
        assert client.recv(2048)[1] == codec.CHANGED

    return request


ANSWERS: Answers = {
    "CHANGED": Synced(lambda place: _publish(1, place)),
    "CHANGED of a message at QoS 0": NotPromised("nothing is promised of QoS 0", lambda place: _publish(0, place)),
    "CONTINUE": NotPromised("a message of which a part is missing is not published"),
    "BAD_REQUEST": _REFUSAL,
    "UNAUTHORIZED": _REFUSAL,
    "BAD_OPTION": _REFUSAL,
    "FORBIDDEN": _REFUSAL,
    "NOT_FOUND": _REFUSAL,
    "METHOD_NOT_ALLOWED": _REFUSAL,
    "ENTITY_INCOMPLETE": _REFUSAL,
    "ENTITY_TOO_LARGE": _REFUSAL,
    "SERVICE_UNAVAILABLE": _REFUSAL,
    "PROXYING_NOT_SUPPORTED": _REFUSAL,
}
