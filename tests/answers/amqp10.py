"""Answers of a server of AMQP 1.0: performatives, outcomes by the class that decides them, replies of management."""

from collections.abc import Callable

from headrace.protocols.amqp10 import performatives
from headrace.protocols.amqp10.frames import DECLARE, DISCHARGE, RECEIVER_SECOND
from headrace.protocols.amqp10.performatives import (
    ACCEPTED,
    NEVER,
    UNSETTLED_STATE,
    Attach,
    Coordinator,
    Declared,
    Detach,
    Disposition,
    Transactional,
    Transfer,
)
from headrace.wire.amqp10 import Head
from headrace.wire.types import Described, Map, ULong
from tests.amqp10_client import RawClient, body, credit, receiver, sender, transfer
from tests.answers.decisions import Answers, Decision, NotPromised, Place, Request, Synced
from tests.answers.sources import called_on, subclasses_of

_MANAGEMENT = "protocols/amqp10/management.py"
_OF_REPLIES = {"publish", "publish_topic", "when_kept", "check_publish", "check_publish_topic"}
"""Calls that send a reply, not calls that a request asks for."""


def in_the_code() -> set[str]:
    """Return all performatives, sinks and origins, and the calls of management to core."""
    own = subclasses_of("Performative", "protocols/amqp10")
    found = {f"{name} frame" for name in own if name != "SaslInit"}
    found |= {f"Disposition by {name}" for name in subclasses_of("Sink", "protocols/amqp10")}
    found |= {f"Transfer and disposition from {name}" for name in subclasses_of("Origin", "protocols/amqp10")}
    asked = called_on("broker", _MANAGEMENT) | called_on("client", _MANAGEMENT)
    return found | {f"Reply to {name}" for name in asked - _OF_REPLIES}


def _client(place: Place) -> RawClient:
    client = RawClient(place.server.port, place.name())
    place.on_close(client.close)
    client.begin()
    return client


def _attached(place: Place, attach: Attach) -> RawClient:
    client = _client(place)
    client.send(attach)
    client.expect(Attach)
    return client


def _subscription() -> Attach:
    attach = receiver("r", "news/today")
    assert attach.source is not None
    attach.source.durable, attach.source.expiry_policy = UNSETTLED_STATE, NEVER
    return attach


def _said(client: RawClient, *said: performatives.Performative, kind: type[object] = Disposition) -> Request:
    def request() -> None:
        client.send(*said)
        client.expect(kind)

    return request


def _subscribe(place: Place) -> Request:
    return _said(_client(place), _subscription(), kind=Attach)


def _unsubscribe(place: Place) -> Request:
    return _said(_attached(place, _subscription()), Detach(0, True), kind=Detach)


def _send(place: Place) -> Request:
    return _said(_attached(place, sender("s", place.declare())), transfer(0, body("x")))


def _discharge(place: Place) -> Request:
    """Commit a transaction with one message."""
    client = _attached(place, sender("s", place.declare()))
    link = sender("c", "")
    link.handle, link.target = 1, Coordinator([])
    client.send(link)
    client.expect(Attach)
    client.send(transfer(0, body(Described(ULong(DECLARE), [])), 1))
    state = client.expect(Disposition).state
    assert isinstance(state, Declared)
    client.send(transfer(1, body("x"), state=Transactional(state.transaction)))
    client.expect(Disposition)
    return _said(client, transfer(2, body(Described(ULong(DISCHARGE), [state.transaction, False])), 1))


def _settle_second(place: Place) -> Request:
    """Send an outcome unsettled, and wait for the sender's settlement."""
    attach = receiver("r", place.filled())
    attach.receiver_settles = RECEIVER_SECOND
    client = _attached(place, attach)
    client.send(credit(0, 1))
    number = client.expect(Transfer).id
    return _said(client, Disposition(0, True, number, number, False, ACCEPTED))


def _manager(place: Place, node: str) -> RawClient:
    client = _attached(place, sender("m", node, 1))
    client.send(receiver("m", node, 2))
    client.expect(Attach)
    client.send(credit(2, 10))
    return client


def _by_path(verb: str, path: Callable[[Place], str], said: object = None) -> Decision:
    """Send a request to `/management`."""

    def prepare(place: Place) -> Request:
        client, head = _manager(place, "/management"), Head()
        head.properties = ["1", None, path(place), verb, "$me"]
        return _said(client, transfer(0, head.encode() + body(said), 1), kind=Transfer)

    return Synced(prepare)


def _by_entity(operation: str, name: Callable[[Place], str]) -> Decision:
    """Send a request to `$management`."""

    def prepare(place: Place) -> Request:
        client, head = _manager(place, "$management"), Head()
        head.properties = ["1", None, None, None, "$me"]
        head.application = Map([("operation", operation), ("type", "queue"), ("name", name(place))])
        return _said(client, transfer(0, head.encode() + body(Map([])), 1), kind=Transfer)

    return Synced(prepare)


def _exchange(place: Place) -> str:
    name = place.name()
    place.put(f"/api/exchanges/%2F/{name}", {"type": "topic"})
    return f"/exchanges/{name}"


def _binding(place: Place) -> Request:
    client, head, queue = _manager(place, "/management"), Head(), place.declare()
    head.properties = ["1", None, "/bindings", "POST", "$me"]
    said = Map([("source", "amq.topic"), ("destination_queue", queue), ("binding_key", "k"), ("arguments", Map([]))])
    return _said(client, transfer(0, head.encode() + body(said), 1), kind=Transfer)


def _bound(place: Place) -> str:
    queue = place.declare()
    place.post(f"/api/bindings/%2F/e/amq.topic/q/{queue}", {"routing_key": "k"})
    return f"/bindings/src=amq.topic;dstq={queue};key=k;args="


_CONNECTION = NotPromised("it is about the connection, which no crash survives")

ANSWERS: Answers = {
    "Attach frame of a durable subscription": Synced(_subscribe),
    "Detach frame of a durable subscription": Synced(_unsubscribe),
    "Disposition by Publisher": Synced(_send),
    "Disposition by CoordinatorSink": Synced(_discharge),
    "Disposition by ManagementSink": _by_path("PUT", lambda place: f"/queues/{place.name()}", Map([])),
    "Transfer and disposition from Subscription": Synced(_settle_second),
    "Transfer and disposition from Replies": _by_path("PUT", lambda place: f"/queues/{place.name()}", Map([])),
    "Transfer and disposition from Browsing": NotPromised("who looks at messages changes nothing"),
    "Reply to declare": _by_path("PUT", lambda place: f"/queues/{place.name()}", Map([])),
    "Reply to declare of an entity": _by_entity("CREATE", Place.name),
    "Reply to delete": _by_path("DELETE", lambda place: f"/queues/{place.filled()}"),
    "Reply to delete of an entity": _by_entity("DELETE", Place.filled),
    "Reply to purge": _by_path("DELETE", lambda place: f"/queues/{place.filled()}/messages"),
    "Reply to declare_exchange": _by_path("PUT", lambda place: f"/exchanges/{place.name()}", Map([("type", "topic")])),
    "Reply to delete_exchange": _by_path("DELETE", _exchange),
    "Reply to bind": Synced(_binding),
    "Reply to unbind": _by_path("DELETE", _bound),
    "Reply to queue": NotPromised("it says what there is and changes nothing"),
    "Disposition frame": NotPromised("who decides it is named above"),
    "Transfer frame": NotPromised("a delivery that is not settled comes again"),
    "Flow frame": NotPromised("credit is given anew after a crash"),
    "Open frame": _CONNECTION,
    "Begin frame": _CONNECTION,
    "End frame": NotPromised("what ends with a session expires after a crash, too"),
    "Close frame": NotPromised("what ends with a connection expires after a crash, too"),
    "SaslMechanisms frame": _CONNECTION,
    "SaslOutcome frame": _CONNECTION,
}
