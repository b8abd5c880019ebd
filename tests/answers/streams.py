"""The answers of the stream protocol: responses by the command that they answer, and what it says by itself."""

import struct

from headrace.protocols.streams import frames
from headrace.protocols.streams.frames import FIELDS, RESPONSE
from tests.answers.decisions import Answers, NotPromised, Place, Request, Synced
from tests.stream_client import StreamClient, entry, position, publish, subscription, table, text, texts

_OWN = ("PUBLISH_CONFIRM", "PUBLISH_ERROR", "DELIVER", "METADATA_UPDATE", "CONSUMER_UPDATE", "CREDIT")
"""Frames of a server without a request, or instead of a response."""
_REFUSAL = NotPromised("it says that nothing was stored")
_LOGIN = NotPromised("it is about the connection alone")
_READ = NotPromised("it tells what readers may see, and changes nothing")


def in_the_code() -> set[str]:
    """The names of all commands that a server answers, and of what it says by itself."""
    names = list(vars(frames))
    commands = names[names.index("DECLARE_PUBLISHER") : names.index("RESPONSE")]
    answered = {key for key, kinds in FIELDS.items() if not key & RESPONSE and kinds.startswith("c")}
    return {name for name in commands if getattr(frames, name) in answered} | set(_OWN)


def _client(place: Place) -> StreamClient:
    client = StreamClient(place.server.ports["stream"])
    place.on_close(client.close)
    return client


def _asked(place: Place, key: int, body: bytes) -> Request:
    client = _client(place)
    return lambda: client.ask(key, body)


def _stream(place: Place) -> str:
    return place.declare("", **{"x-queue-type": "stream"})


def _super_stream(name: str) -> bytes:
    return text(name) + texts(f"{name}-0", f"{name}-1") + texts("0", "1") + table()


def _publish(place: Place, name: str = "") -> Request:
    client = _client(place)
    client.ask(frames.DECLARE_PUBLISHER, b"\0" + text(name) + text(_stream(place)))

    def request() -> None:
        client.send(publish(0, entry(1, b"x")))
        client.expect(frames.PUBLISH_CONFIRM)

    return request


def _duplicate(place: Place) -> Request:
    client = _client(place)
    client.ask(frames.DECLARE_PUBLISHER, b"\0" + text("p") + text(_stream(place)))

    def request() -> None:
        client.send(publish(0, entry(1, b"x")), publish(0, entry(1, b"x")))
        assert client.expect(frames.PUBLISH_CONFIRM).ids

    return request


def _sequence(place: Place) -> Request:
    client, stream = _client(place), _stream(place)
    client.ask(frames.DECLARE_PUBLISHER, b"\0" + text("p") + text(stream))

    def request() -> None:
        client.send(publish(0, entry(7, b"x")))
        response = client.ask(frames.QUERY_PUBLISHER_SEQUENCE, text("p") + text(stream))
        assert response.fields == struct.pack(">Q", 7)

    return request


def _deliver(place: Place) -> Request:
    """A message that somebody else publishes."""
    stream = _stream(place)
    reader, writer = _client(place), _client(place)
    reader.ask(frames.SUBSCRIBE, subscription(0, stream, position(frames.FIRST)))
    writer.ask(frames.DECLARE_PUBLISHER, b"\0" + text("") + text(stream))

    def request() -> None:
        writer.send(publish(0, entry(1, b"x")))
        assert reader.expect(frames.DELIVER).messages == [b"x"]

    return request


def _delete(place: Place) -> Request:
    return _asked(place, frames.DELETE, text(_stream(place)))


def _delete_super_stream(place: Place) -> Request:
    client, name = _client(place), place.name()
    client.ask(frames.CREATE_SUPER_STREAM, _super_stream(name))
    return lambda: client.ask(frames.DELETE_SUPER_STREAM, text(name))


ANSWERS: Answers = {
    "PUBLISH_CONFIRM": Synced(_publish),
    "PUBLISH_CONFIRM of a message with a named publisher": Synced(lambda place: _publish(place, "p")),
    "PUBLISH_CONFIRM of a message that is on its way already": Synced(_duplicate),
    "PUBLISH_ERROR": _REFUSAL,
    "DELIVER": Synced(_deliver),
    "METADATA_UPDATE": NotPromised("it tells that a stream is not to be found here now"),
    "CONSUMER_UPDATE": NotPromised("it asks the client which offset is next"),
    "CREDIT": NotPromised("it tells of a subscription that is not there"),
    "CREATE": Synced(lambda place: _asked(place, frames.CREATE, text(place.name()) + table())),
    "DELETE": Synced(_delete),
    "CREATE_SUPER_STREAM": Synced(lambda place: _asked(place, frames.CREATE_SUPER_STREAM, _super_stream(place.name()))),
    "DELETE_SUPER_STREAM": Synced(_delete_super_stream),
    "QUERY_PUBLISHER_SEQUENCE": Synced(_sequence),
    "QUERY_OFFSET": NotPromised("an offset that is lost is one that is read again"),
    "DECLARE_PUBLISHER": NotPromised("a publisher lasts as long as its connection"),
    "DELETE_PUBLISHER": NotPromised("a publisher lasts as long as its connection"),
    "SUBSCRIBE": NotPromised("a subscription lasts as long as its connection"),
    "UNSUBSCRIBE": NotPromised("a subscription lasts as long as its connection"),
    "METADATA": _READ,
    "ROUTE": _READ,
    "PARTITIONS": _READ,
    "STREAM_STATS": _READ,
    "PEER_PROPERTIES": _LOGIN,
    "SASL_HANDSHAKE": _LOGIN,
    "SASL_AUTHENTICATE": _LOGIN,
    "OPEN": _LOGIN,
    "CLOSE": _LOGIN,
    "EXCHANGE_COMMAND_VERSIONS": _LOGIN,
}
