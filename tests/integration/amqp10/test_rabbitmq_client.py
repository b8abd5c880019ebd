"""rabbitmq-amqp-python-client, the client of RabbitMQ 4: declares over /management, publishes, consumes, purges."""

from collections.abc import Iterator

import pytest
from rabbitmq_amqp_python_client import (
    AddressHelper,
    AMQPMessagingHandler,
    ClassicQueueSpecification,
    Connection,
    Converter,
    Environment,
    Event,
    ExchangeSpecification,
    ExchangeToQueueBindingSpecification,
    ExchangeType,
    Message,
    OffsetSpecification,
    OutcomeState,
    QuorumQueueSpecification,
    StreamConsumerOptions,
    StreamSpecification,
    ValidationCodeException,
)

from tests.servers import Server


@pytest.fixture
def client(server: Server) -> Iterator[Connection]:
    environment = Environment(uri=f"amqp://guest:guest@127.0.0.1:{server.port}/")
    connection = environment.connection()
    connection.dial()
    yield connection
    environment.close()


class _Enough(Exception):
    """As many messages as were expected came."""


class _Handler(AMQPMessagingHandler):
    """Accepts what comes until it is enough."""

    def __init__(self, count: int) -> None:
        super().__init__(auto_accept=False, auto_settle=False)
        self._count = count
        self.bodies: list[bytes] = []

    def on_amqp_message(self, event: Event) -> None:
        self.bodies.append(bytes(event.message.body))
        self.delivery_context.accept(event)
        if len(self.bodies) == self._count:
            raise _Enough


def _consumed(client: Connection, address: str, count: int, options: object = None) -> list[bytes]:
    handler = _Handler(count)
    consumer = client.consumer(address, message_handler=handler, consumer_options=options)
    with pytest.raises(_Enough):
        consumer.run()
    consumer.close()
    return handler.bodies


@pytest.mark.parametrize("specification", [ClassicQueueSpecification, QuorumQueueSpecification])
def test_it_declares_binds_publishes_consumes_purges_and_deletes(
    client: Connection, specification: type, name: str
) -> None:
    management = client.management()
    name = name.replace("[", "-").replace("]", "")
    management.declare_exchange(ExchangeSpecification(name=name, exchange_type=ExchangeType.direct))
    management.declare_queue(specification(name=name))
    binding = ExchangeToQueueBindingSpecification(source_exchange=name, destination_queue=name, binding_key="key/1 é")
    path = management.bind(binding)
    publisher = client.publisher(AddressHelper.exchange_address(name, "key/1 é"))
    for number in range(20):
        state = publisher.publish(Message(Converter.string_to_bytes(str(number)))).remote_state
        assert state == OutcomeState.ACCEPTED

    info = management.queue_info(name)
    assert (info.name, int(info.message_count), info.is_durable) == (name, 20, True)
    assert _consumed(client, AddressHelper.queue_address(name), 20) == [str(number).encode() for number in range(20)]
    publisher.publish(Message(Converter.string_to_bytes("one more")))
    assert management.purge_queue(name) == 1
    management.unbind(path)
    publisher.close()
    management.delete_exchange(name)
    management.delete_queue(name)
    with pytest.raises(ValidationCodeException):
        management.queue_info(name)


def test_a_queue_declared_otherwise_is_a_conflict(client: Connection, name: str) -> None:
    management = client.management()
    management.declare_queue(QuorumQueueSpecification(name=name))

    with pytest.raises(ValidationCodeException, match="ErrPreconditionFailed"):
        management.declare_queue(ClassicQueueSpecification(name=name))


def test_a_stream_is_read_from_an_offset(client: Connection, name: str) -> None:
    client.management().declare_queue(StreamSpecification(name=name))
    publisher = client.publisher(AddressHelper.queue_address(name))
    for number in range(10):
        publisher.publish(Message(Converter.string_to_bytes(str(number))))

    first = StreamConsumerOptions(offset_specification=OffsetSpecification.first)
    assert _consumed(client, AddressHelper.queue_address(name), 10, first) == [str(n).encode() for n in range(10)]


def test_a_binding_with_arguments_is_deleted_by_the_path_that_it_is_listed_with(client: Connection, name: str) -> None:
    management = client.management()
    management.declare_queue(ClassicQueueSpecification(name=name))
    for colour in ("red", "blue"):
        body = {"source": "amq.headers", "destination_queue": name, "binding_key": "k/1", "arguments": {"c": colour}}
        management.request(body, "/bindings", "POST", [204])

    def listed() -> list[dict[str, object]]:
        path = f"/bindings?src=amq.headers&dstq={name}&key=k%2F1"
        return list(management.request(None, path, "GET", [200]).body)

    red, blue = sorted(listed(), key=lambda one: one["arguments"] == {"c": "blue"})
    management.unbind(str(red["location"]))

    assert [(one["arguments"], one["location"]) for one in listed()] == [({"c": "blue"}, blue["location"])]
    management.unbind(str(red["location"]))  # one that is not there is no error
    with pytest.raises(ValidationCodeException):
        management.unbind("/bindings/src=amq.headers")
