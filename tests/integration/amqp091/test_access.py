"""Who may do what over AMQP 0-9-1: virtual hosts, what each method needs, limits, changes while connected."""

import re
from collections.abc import Callable, Iterator

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import (
    AMQPConnectionError,
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
)

from headrace.core.access.permissions import Permission, TopicPermission
from headrace.core.access.users import Limits
from tests.changing_server import ChangingServer


@pytest.fixture(scope="module")
def changing() -> Iterator[ChangingServer]:
    opened = ChangingServer()
    for name in ("ann", "bob"):
        opened.add_user(name)
    yield opened
    opened.close()


def _sync(channel: BlockingChannel) -> None:
    """Hear what went wrong with what was sent before; asking whether an exchange exists needs no permission."""
    channel.exchange_declare("amq.direct", passive=True)


def _do(channel: BlockingChannel, operation: "Operation") -> None:
    operation(channel)
    _sync(channel)


# -- virtual hosts -----------------------------------------------------------------------------------------------------


def test_virtual_hosts_are_worlds_of_their_own(changing: ChangingServer) -> None:
    changing.change(lambda done: changing.hosts.create("eu", done))
    changing.allow("ann", "eu")
    changing.allow("ann")
    here, there = changing.connect("ann").channel(), changing.connect("ann", "eu").channel()
    for channel, body in ((here, b"here"), (there, b"there")):
        channel.queue_declare("worlds")
        channel.exchange_declare("worlds", "fanout")
        channel.queue_bind("worlds", "worlds")
        channel.confirm_delivery()
        channel.basic_publish("worlds", "", body, mandatory=True)
    for channel, body in ((here, b"here"), (there, b"there")):
        assert channel.basic_get("worlds", auto_ack=True)[2] == body
        assert channel.basic_get("worlds", auto_ack=True)[2] is None
    there.queue_delete("worlds")
    assert here.queue_declare("worlds", passive=True).method.message_count == 0


def test_a_host_that_is_not_there_or_not_open_to_the_user_is_530(changing: ChangingServer) -> None:
    changing.change(lambda done: changing.hosts.create("closed", done))
    with pytest.raises(ProbableAccessDeniedError, match=r"530.*vhost nowhere not found"):
        changing.connect("ann", "nowhere")
    with pytest.raises(ProbableAccessDeniedError, match=r"530.*access to vhost 'closed' refused for user 'ann'"):
        changing.connect("ann", "closed")


def test_a_deleted_host_ends_its_connections_and_no_others(changing: ChangingServer) -> None:
    changing.change(lambda done: changing.hosts.create("going", done))
    changing.allow("ann", "going")
    gone, kept = changing.connect("ann", "going"), changing.connect("guest")
    gone.channel().queue_declare("q", durable=True)

    changing.change(lambda done: changing.hosts.delete("going", done))

    with pytest.raises(ConnectionClosedByBroker, match=r"vhost 'going' is deleted"):
        gone.process_data_events(60)
    with pytest.raises(ProbableAccessDeniedError, match="vhost going not found"):
        changing.connect("ann", "going")
    assert kept.channel().is_open
    changing.change(lambda done: changing.hosts.create("going", done))
    changing.allow("ann", "going")
    with pytest.raises(ChannelClosedByBroker, match="404"):
        changing.connect("ann", "going").channel().queue_declare("q", passive=True)


# -- logging in --------------------------------------------------------------------------------------------------------


def test_a_wrong_password_is_403_where_the_client_understands_that(changing: ChangingServer) -> None:
    with pytest.raises(ProbableAuthenticationError, match=r"403.*ACCESS_REFUSED - Login was refused using.*PLAIN"):
        changing.connect("ann", credentials=pika.PlainCredentials("ann", "wrong"))
    with pytest.raises(ProbableAuthenticationError, match="ACCESS_REFUSED"):
        changing.connect("nobody")


def test_others_just_lose_the_connection(changing: ChangingServer) -> None:
    old = {"capabilities": {"authentication_failure_close": False}}
    with pytest.raises(AMQPConnectionError) as ended:
        changing.connect("ann", credentials=pika.PlainCredentials("ann", "wrong"), client_properties=old)
    assert "ACCESS_REFUSED" not in str(ended.value)


def test_a_removed_user_is_disconnected_and_cannot_come_back(changing: ChangingServer) -> None:
    changing.add_user("eve")
    changing.allow("eve")
    connection = changing.connect("eve")

    changing.change(lambda done: changing.access.delete_user("eve", done))

    with pytest.raises(ConnectionClosedByBroker, match="user 'eve' is deleted"):
        connection.process_data_events(60)
    with pytest.raises(ProbableAuthenticationError):
        changing.connect("eve")


# -- what each method needs --------------------------------------------------------------------------------------------

Operation = Callable[[BlockingChannel], object]


def _publish(exchange: str, key: str, headers: dict[str, object] | None = None) -> Operation:
    def publish(channel: BlockingChannel) -> None:
        channel.basic_publish(exchange, key, b"x", pika.BasicProperties(headers=headers))

    return publish


def _consume(queue: str, **arguments: object) -> Operation:
    return lambda channel: channel.basic_consume(queue, lambda *_: None, **arguments)


_COMMIT = {"x-group-id": "g", "x-offset": 0}
_DLX = {"x-dead-letter-exchange": "dlx"}
_AE = {"alternate-exchange": "ae"}
_OPERATIONS: dict[str, tuple[Operation, dict[str, list[str]]]] = {
    "queue.declare": (lambda c: c.queue_declare("new"), {"configure": ["new"]}),
    "queue.declare of what exists": (lambda c: c.queue_declare("q"), {"configure": ["q"]}),
    "queue.declare with dead letters": (
        lambda c: c.queue_declare("new", arguments=_DLX),
        {"configure": ["new"], "write": ["dlx"], "read": ["new"]},
    ),
    "queue.declare with dead letters to the default exchange": (
        lambda c: c.queue_declare("new", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}),
        {"configure": ["new"], "write": ["amq.default"], "read": ["new"]},
    ),
    "queue.declare passive": (lambda c: c.queue_declare("q", passive=True), {}),
    "queue.bind": (lambda c: c.queue_bind("q", "x", "k"), {"write": ["q"], "read": ["x"]}),
    "queue.unbind": (lambda c: c.queue_unbind("q", "x", "k"), {"write": ["q"], "read": ["x"]}),
    "queue.purge": (lambda c: c.queue_purge("q"), {"read": ["q"]}),
    "queue.delete": (lambda c: c.queue_delete("q"), {"configure": ["q"]}),
    "exchange.declare": (lambda c: c.exchange_declare("newx"), {"configure": ["newx"]}),
    "exchange.declare with an alternate": (
        lambda c: c.exchange_declare("newx", arguments=_AE),
        {"configure": ["newx"], "write": ["ae"], "read": ["newx"]},
    ),
    "exchange.declare passive": (lambda c: c.exchange_declare("x", passive=True), {}),
    "exchange.delete": (lambda c: c.exchange_delete("x"), {"configure": ["x"]}),
    "exchange.bind": (lambda c: c.exchange_bind("y", "x"), {"write": ["y"], "read": ["x"]}),
    "exchange.unbind": (lambda c: c.exchange_unbind("y", "x"), {"write": ["y"], "read": ["x"]}),
    "basic.publish": (_publish("x", "k"), {"write": ["x"]}),
    "basic.publish to the default exchange": (_publish("", "q"), {"write": ["amq.default"]}),
    "basic.publish to an address": (_publish("", "$queue/q/k"), {"write": ["amq.default", "q"]}),
    "basic.publish of a commit": (_publish("", "$queue/s/$commit", _COMMIT), {"write": ["amq.default"], "read": ["s"]}),
    "basic.consume": (_consume("q"), {"read": ["q"]}),
    "basic.consume of an address": (_consume("$queue/q/#"), {"read": ["q"]}),
    "basic.consume of an address that is new": (_consume("$queue/fresh"), {"read": ["fresh"]}),
    "basic.get": (lambda c: c.basic_get("q"), {"read": ["q"]}),
    "basic.get of an address": (lambda c: c.basic_get("$queue/q"), {"read": ["q"]}),
    "direct replies": (_consume("amq.rabbitmq.reply-to", auto_ack=True), {}),
}


@pytest.fixture
def things(changing: ChangingServer) -> Iterator[BlockingChannel]:
    """What the operations are about, made anew by guest."""
    channel = changing.connect().channel()
    for queue in ("q", "new", "s", "fresh"):
        channel.queue_delete(queue)
    for exchange in ("x", "y", "newx"):
        channel.exchange_delete(exchange)
    channel.queue_declare("q")
    channel.queue_declare("s", durable=True, arguments={"x-queue-type": "stream"})
    for exchange in ("x", "y"):
        channel.exchange_declare(exchange)
    reader = channel.connection.channel()
    reader.basic_qos(prefetch_count=1)
    reader.basic_consume("s", lambda *_: None, arguments={"x-consumer-group": "g", "x-auto-commit": False})
    yield channel
    channel.connection.close()


def _pattern(names: list[str]) -> str:
    return "^(" + "|".join(re.escape(name) for name in names) + ")$" if names else ""


def _try(changing: ChangingServer, operation: Operation, needs: dict[str, list[str]]) -> None:
    changing.allow("ann", "/", *[_pattern(needs.get(what, [])) for what in ("configure", "write", "read")])
    connection = changing.connect("ann")
    try:
        _do(connection.channel(), operation)
    finally:
        assert connection.channel().is_open, "a refusal ends the channel alone"
        connection.close()


@pytest.mark.parametrize("name", _OPERATIONS)
@pytest.mark.usefixtures("things")
def test_a_method_needs_exactly_its_permissions(changing: ChangingServer, name: str) -> None:
    operation, needs = _OPERATIONS[name]
    for what, names in needs.items():
        for missing in names:
            less = {**needs, what: [kept for kept in names if kept != missing]}
            expected = f"ACCESS_REFUSED - {what} access to (queue|exchange) '{re.escape(missing)}' in vhost '/' refused"
            with pytest.raises(ChannelClosedByBroker, match=f"403.*{expected} for user 'ann'"):
                _try(changing, operation, less)

    _try(changing, operation, needs)


def test_a_name_that_the_server_gives_needs_permission_too(changing: ChangingServer) -> None:
    changing.allow("ann", configure="^mine")
    with pytest.raises(ChannelClosedByBroker, match=r"403.*configure access to queue 'amq\.gen-"):
        changing.connect("ann").channel().queue_declare("")
    changing.allow("ann", configure=r"^amq\.gen-.+")
    assert changing.connect("ann").channel().queue_declare("").method.queue.startswith("amq.gen-")


def test_taking_a_permission_away_counts_for_those_who_are_connected(
    changing: ChangingServer, things: BlockingChannel
) -> None:
    changing.allow("ann")
    connection = changing.connect("ann")
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_publish("", "q", b"allowed")

    changing.allow("ann", write="^other$")

    with pytest.raises(ChannelClosedByBroker, match=r"403.*write access to exchange 'amq\.default'"):
        channel.basic_publish("", "q", b"refused")
    changing.change(lambda done: changing.access.delete_permission("ann", "/", done))
    with pytest.raises(ChannelClosedByBroker, match="403"):
        connection.channel().basic_get("q")
    assert things.queue_declare("q", passive=True).method.message_count == 1


def test_taking_a_permission_away_counts_for_the_address_of_a_queue_that_was_published_to(
    changing: ChangingServer, things: BlockingChannel
) -> None:
    changing.allow("ann")
    channel = changing.connect("ann").channel()
    channel.confirm_delivery()
    channel.basic_publish("", "$queue/q", b"allowed")

    changing.allow("ann", write="^(amq.default|other)$")

    channel.basic_publish("", "other", b"remembers that the exchange may be written")
    with pytest.raises(ChannelClosedByBroker, match=r"403.*write access to queue 'q'"):
        channel.basic_publish("", "$queue/q", b"refused")
    assert things.queue_declare("q", passive=True).method.message_count == 1


def test_topic_permissions_bound_keys_to_publish_and_to_bind(changing: ChangingServer, things: BlockingChannel) -> None:
    changing.allow("ann")
    topic = TopicPermission("ann", "/", "amq.topic", "^{username}\\.", "^public\\.")
    changing.change(lambda done: changing.access.put_topic_permission(topic, done))
    connection = changing.connect("ann")

    channel = connection.channel()
    channel.basic_publish("amq.topic", "ann.1", b"mine")
    channel.basic_publish("amq.direct", "bob.1", b"of an exchange without such permissions")
    channel.queue_bind("q", "amq.topic", "public.#")
    _sync(channel)
    for refused in (
        _publish("amq.topic", "bob.1"),
        _publish("amq.topic", "ann.1", {"CC": ["bob.1"]}),
        _publish("amq.topic", "ann.1", {"BCC": ["bob.1"]}),
        lambda c: c.queue_bind("q", "amq.topic", "private.#"),
    ):
        with pytest.raises(ChannelClosedByBroker, match=r"403.*access to topic '.*' in exchange 'amq\.topic'"):
            _do(connection.channel(), refused)
    changing.change(lambda done: changing.access.delete_topic_permissions("ann", "/", done))
    channel.basic_publish("amq.topic", "bob.1", b"now")
    _sync(channel)
    assert things.is_open


def test_messages_bear_the_name_of_who_logged_in_or_of_nobody(
    changing: ChangingServer, things: BlockingChannel
) -> None:
    changing.allow("ann")
    channel = changing.connect("ann").channel()
    channel.confirm_delivery()
    channel.basic_publish("", "q", b"mine", pika.BasicProperties(user_id="ann"))
    with pytest.raises(ChannelClosedByBroker, match=r"406.*user_id property set to 'guest' but authenticated user was"):
        channel.basic_publish("", "q", b"not mine", pika.BasicProperties(user_id="guest"))

    changing.change(lambda done: changing.access.put_user("ann", None, ["impersonator"], done))
    other = changing.connect("ann").channel()
    other.confirm_delivery()
    other.basic_publish("", "q", b"in the name of", pika.BasicProperties(user_id="guest"))

    changing.change(lambda done: changing.access.put_user("ann", None, [], done))
    assert [things.basic_get("q", auto_ack=True)[1].user_id for _ in range(2)] == ["ann", "guest"]


# -- limits ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def limit(changing: ChangingServer) -> Iterator[Callable[[Limits], None]]:
    """Sets bob's limits, for the length of a test."""
    changing.allow("bob")

    def set_limits(limits: Limits) -> None:
        changing.change(lambda done: changing.access.set_limits("bob", limits, done))

    yield set_limits
    set_limits(Limits())


def test_connections_above_the_users_limit_are_530(changing: ChangingServer, limit: Callable[[Limits], None]) -> None:
    limit(Limits(max_connections=2))
    first, _ = changing.connect("bob"), changing.connect("bob")
    with pytest.raises(ProbableAccessDeniedError, match=r"530.*user connection limit \(2\) is reached"):
        changing.connect("bob")
    first.close()
    assert changing.connect("bob").is_open


def test_channels_above_the_users_limit_are_530(changing: ChangingServer, limit: Callable[[Limits], None]) -> None:
    limit(Limits(max_channels=2))
    one, other = changing.connect("bob"), changing.connect("bob")
    one.channel().close()
    one.channel()
    other.channel()
    with pytest.raises(ConnectionClosedByBroker, match=r"530.*maximum allowed user limit of \(2\)"):
        one.channel()
    assert other.channel().is_open, "the channels of a connection that ended count no more"


def test_a_message_above_the_users_limit_is_311(
    changing: ChangingServer, limit: Callable[[Limits], None], things: BlockingChannel
) -> None:
    limit(Limits(max_message_bytes=1000))
    connection = changing.connect("bob")
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_publish("", "q", b"x" * 1000)
    with pytest.raises(ChannelClosedByBroker, match=r"311.*CONTENT_TOO_LARGE - message size 1001 is larger"):
        channel.basic_publish("", "q", b"x" * 1001)
    assert connection.channel().is_open
    assert things.queue_declare("q", passive=True).method.message_count == 1


def test_a_user_that_publishes_too_fast_is_slowed_and_nobody_else(
    changing: ChangingServer, limit: Callable[[Limits], None], things: BlockingChannel
) -> None:
    limit(Limits(max_message_rate=1))
    things.confirm_delivery()
    connection = changing.connect("bob")
    channel = connection.channel()
    for _ in range(8):  # at once, so that it is not heard for seconds, also on a busy machine
        channel._impl.basic_publish("", "q", b"x")
    while _depth(things) < 8:
        connection.process_data_events(0.01)

    channel.basic_publish("", "q", b"not heard for a while")
    connection.process_data_events(0)
    things.basic_publish("", "q", b"others are heard")
    assert _depth(things) == 9

    while _depth(things) < 10:
        connection.process_data_events(0.1)


def _depth(channel: BlockingChannel) -> int:
    return int(channel.queue_declare("q", passive=True).method.message_count)


def test_no_permission_is_kept_for_a_user_that_is_gone(changing: ChangingServer) -> None:
    changing.add_user("zed")
    changing.allow("zed")
    changing.change(lambda done: changing.access.delete_user("zed", done))
    changing.add_user("zed")
    with pytest.raises(ProbableAccessDeniedError, match="refused for user 'zed'"):
        changing.connect("zed")
    assert Permission("zed", "/", ".*", ".*", ".*") not in changing.ask(changing.access.permissions)
