"""The queues chapter with pika: declarations and their refusals, limits, dead letters, priorities, settlements."""

import time
from collections.abc import Callable

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker, NackError

from tests.servers import Server, drain

_SECONDS = 60.0


def _code_of(call: Callable[[], object]) -> int:
    with pytest.raises((ChannelClosedByBroker, ConnectionClosedByBroker)) as caught:
        call()
    return int(caught.value.reply_code)


def _get(channel: BlockingChannel, queue: str) -> tuple[pika.spec.Basic.GetOk, pika.BasicProperties, bytes]:
    """The next message of a queue, waited for."""
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline:
        method, properties, body = channel.basic_get(queue)
        if method is not None:
            return method, properties, body
        time.sleep(0.02)
    raise AssertionError(f"nothing came to {queue}")


def _count(channel: BlockingChannel, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def test_a_passive_declaration_of_what_is_not_there_is_404(channel: BlockingChannel, name: str) -> None:
    assert _code_of(lambda: channel.queue_declare(name, passive=True)) == 404


def test_a_declaration_that_differs_is_406(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, arguments={"x-max-length": 10})

    assert _code_of(lambda: channel.queue_declare(name, arguments={"x-max-length": 11})) == 406


def test_an_exclusive_queue_is_405_for_others_and_goes_with_its_connection(server: Server, name: str) -> None:
    owner = server.connect()
    owner.channel().queue_declare(name, exclusive=True)
    other = server.connect()

    assert _code_of(lambda: other.channel().queue_declare(name, exclusive=True)) == 405
    owner.close()
    assert _code_of(lambda: other.channel().queue_declare(name, passive=True)) == 404


def test_declaring_a_queue_exclusive_that_is_not_and_the_other_way_round_is_405(
    connection: pika.BlockingConnection, name: str
) -> None:
    connection.channel().queue_declare(name)
    connection.channel().queue_declare(name + "-own", exclusive=True)

    assert _code_of(lambda: connection.channel().queue_declare(name, exclusive=True)) == 405
    assert _code_of(lambda: connection.channel().queue_declare(name + "-own")) == 405


def test_what_is_not_there_is_unbound_already(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name)

    channel.queue_unbind(name, "amq.direct", "never bound")
    channel.queue_unbind(name, name + "-no-exchange", "key")
    channel.queue_unbind(name + "-no-queue", "amq.direct", "key")
    channel.exchange_unbind(name + "-no-exchange", "amq.direct", "key")
    channel.exchange_unbind("amq.direct", name + "-no-exchange", "key")

    assert channel.is_open


def test_reserved_names_are_403(connection: pika.BlockingConnection) -> None:
    assert _code_of(lambda: connection.channel().queue_declare("amq.mine")) == 403
    assert _code_of(lambda: connection.channel().exchange_declare("amq.mine")) == 403
    assert _code_of(lambda: connection.channel().exchange_delete("amq.topic")) == 403


def test_an_unknown_exchange_type_is_503_for_the_connection(channel: BlockingChannel, name: str) -> None:
    assert _code_of(lambda: channel.exchange_declare(name, "x-unknown")) == 503


def test_publishing_to_no_exchange_is_404(channel: BlockingChannel, name: str) -> None:
    channel.confirm_delivery()

    assert _code_of(lambda: channel.basic_publish(name, "", b"")) == 404


def test_an_unknown_delivery_tag_is_406(connection: pika.BlockingConnection, name: str) -> None:
    channel = connection.channel()
    channel.basic_ack(99)

    assert _code_of(lambda: channel.queue_declare(name)) == 406


def test_another_users_id_is_406(channel: BlockingChannel, name: str) -> None:
    channel.confirm_delivery()
    channel.queue_declare(name)

    channel.basic_publish("", name, b"mine", pika.BasicProperties(user_id="guest"))
    with pytest.raises(ChannelClosedByBroker, match="406"):
        channel.basic_publish("", name, b"theirs", pika.BasicProperties(user_id="root"))


def test_a_channel_error_leaves_the_connection_and_its_other_channels(
    connection: pika.BlockingConnection, name: str
) -> None:
    good, bad = connection.channel(), connection.channel()
    assert _code_of(lambda: bad.queue_declare(name, passive=True)) == 404

    good.queue_declare(name)
    good.basic_publish("", name, b"still here")

    assert drain(good, name, 1) == [b"still here"]


def test_if_unused_and_if_empty_are_406_and_purge_and_delete_count(channel: BlockingChannel, name: str) -> None:
    channel.confirm_delivery()
    channel.queue_declare(name)
    for _ in range(3):
        channel.basic_publish("", name, b"x")
    other = channel.connection.channel()
    assert _code_of(lambda: other.queue_delete(name, if_empty=True)) == 406
    assert channel.queue_purge(name).method.message_count == 3
    channel.basic_publish("", name, b"x")
    assert channel.queue_delete(name).method.message_count == 1
    assert channel.queue_delete(name).method.message_count == 0


def test_rejected_messages_go_to_the_dead_letter_exchange_with_their_history(
    channel: BlockingChannel, name: str
) -> None:
    channel.exchange_declare(f"{name}.dlx", "topic")
    channel.queue_declare(f"{name}.dead")
    channel.queue_bind(f"{name}.dead", f"{name}.dlx", "#")
    channel.queue_declare(
        name, arguments={"x-dead-letter-exchange": f"{name}.dlx", "x-dead-letter-routing-key": "gone"}
    )
    sent = pika.BasicProperties(content_type="text/plain", headers={"mine": 7}, priority=3, timestamp=1234)
    channel.basic_publish("", name, b"bad", sent)
    method, _, _ = _get(channel, name)
    channel.basic_reject(method.delivery_tag, requeue=False)

    method, properties, body = _get(channel, f"{name}.dead")

    assert (body, method.exchange, method.routing_key) == (b"bad", f"{name}.dlx", "gone")
    death = properties.headers["x-death"][0]
    assert (death["queue"], death["reason"], death["count"]) == (name, "rejected", 1)
    assert death["routing-keys"] == [name]
    assert properties.headers["x-first-death-queue"] == name
    assert (properties.headers["mine"], properties.priority, properties.timestamp) == (7, 3, 1234)


def test_messages_expire_after_the_shorter_of_both_times(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(f"{name}.dead")
    arguments = {
        "x-message-ttl": 60_000,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": f"{name}.dead",
    }
    channel.queue_declare(name, arguments=arguments)
    channel.basic_publish("", name, b"short", pika.BasicProperties(expiration="50"))

    _, properties, body = _get(channel, f"{name}.dead")

    assert body == b"short"
    assert properties.headers["x-death"][0]["reason"] == "expired"
    assert properties.headers["x-death"][0]["original-expiration"] == "50"
    assert properties.expiration is None


def test_a_full_queue_drops_its_head(channel: BlockingChannel, name: str) -> None:
    channel.confirm_delivery()
    channel.queue_declare(name, arguments={"x-max-length": 2})
    for number in range(5):
        channel.basic_publish("", name, b"%d" % number)

    assert drain(channel, name, 2) == [b"3", b"4"]


def test_a_full_queue_that_rejects_publishes_nacks(channel: BlockingChannel, name: str) -> None:
    channel.confirm_delivery()
    channel.queue_declare(name, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    channel.basic_publish("", name, b"first")

    with pytest.raises(NackError):
        channel.basic_publish("", name, b"second")
    assert drain(channel, name, 1) == [b"first"]


def test_higher_priorities_come_first(channel: BlockingChannel, name: str) -> None:
    channel.confirm_delivery()
    channel.queue_declare(name, arguments={"x-max-priority": 9})
    for priority in (1, 9, 5, 9):
        channel.basic_publish("", name, b"%d" % priority, pika.BasicProperties(priority=priority))

    assert drain(channel, name, 4) == [b"9", b"9", b"5", b"1"]


def test_a_quorum_queue_counts_deliveries_and_gives_up(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(f"{name}.dead")
    channel.queue_declare(
        name,
        durable=True,
        arguments={
            "x-queue-type": "quorum",
            "x-delivery-limit": 2,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": f"{name}.dead",
        },
    )
    channel.basic_publish("", name, b"poison")
    counts = []
    for _ in range(3):
        method, properties, _ = _get(channel, name)
        counts.append((properties.headers or {}).get("x-delivery-count", 0))
        channel.basic_nack(method.delivery_tag, requeue=True)

    _, properties, _ = _get(channel, f"{name}.dead")

    assert counts == [0, 1, 2]
    assert properties.headers["x-death"][0]["reason"] == "delivery_limit"


def test_recover_delivers_again_what_was_not_acknowledged(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name)
    channel.basic_publish("", name, b"again")
    first, _, _ = _get(channel, name)
    channel.basic_recover(requeue=True)
    second, _, body = _get(channel, name)

    assert (first.redelivered, second.redelivered, body) == (False, True, b"again")


def test_a_consumer_that_does_not_acknowledge_in_time_loses_its_channel_with_406(
    server: Server, channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name, durable=True, arguments={"x-consumer-timeout": 500})
    for _ in range(2):
        channel.basic_consume(name, lambda *_: None)
    for body in (b"slow", b"slow too"):  # one for each consumer: both are late, and the channel is closed once
        channel.basic_publish("", name, body)

    with pytest.raises(ChannelClosedByBroker) as caught:
        channel.start_consuming()

    assert caught.value.reply_code == 406
    assert "timed out. Timeout value used: 500 ms" in caught.value.reply_text
    other = server.connect().channel()
    assert sorted([_get(other, name)[2], _get(other, name)[2]]) == [b"slow", b"slow too"]


def test_a_cancelled_consumer_can_still_acknowledge(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name)
    channel.basic_publish("", name, b"work")
    got: list[int] = []
    tag = channel.basic_consume(name, lambda ch, method, props, body: got.append(method.delivery_tag))
    while not got:
        channel.connection.process_data_events(0.05)
    channel.basic_cancel(tag)

    assert channel.basic_get(name) == (None, None, None), "it is not given to another"
    channel.basic_ack(got[0])
    assert _count(channel, name) == 0


def test_consumers_are_told_when_their_queue_goes(server: Server, channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name)
    cancelled: list[str] = []
    channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    tag = channel.basic_consume(name, lambda *arguments: None)

    server.connect().channel().queue_delete(name)
    channel.connection.process_data_events(_SECONDS)

    assert cancelled == [tag]


def test_an_exclusive_consumer_keeps_others_out_with_403(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name)
    channel.basic_consume(name, lambda *arguments: None, exclusive=True)
    other = channel.connection.channel()

    assert _code_of(lambda: other.basic_consume(name, lambda *arguments: None)) == 403


def test_an_auto_delete_queue_goes_with_its_last_consumer(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, auto_delete=True)
    tag = channel.basic_consume(name, lambda *arguments: None)
    channel.basic_cancel(tag)

    assert _code_of(lambda: channel.queue_declare(name, passive=True)) == 404


def test_transactions_happen_at_their_commit_or_not_at_all(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name)
    channel.tx_select()
    channel.basic_publish("", name, b"rolled back")
    channel.tx_rollback()
    channel.basic_publish("", name, b"committed")
    assert _count(channel, name) == 0
    channel.tx_commit()
    assert _count(channel, name) == 1

    method, _, body = _get(channel, name)
    assert body == b"committed"
    channel.basic_ack(method.delivery_tag)
    channel.tx_rollback()
    channel.basic_ack(method.delivery_tag)
    channel.tx_commit()
    assert _count(channel, name) == 0


def test_cc_and_bcc_add_routes_and_bcc_is_not_shown(channel: BlockingChannel, name: str) -> None:
    for part in ("a", "b", "c"):
        channel.queue_declare(f"{name}.{part}")
    headers = {"CC": [f"{name}.b"], "BCC": [f"{name}.c"], "n": 1}
    channel.basic_publish("", f"{name}.a", b"copies", pika.BasicProperties(headers=headers))

    for part in ("a", "b", "c"):
        _, properties, body = _get(channel, f"{name}.{part}")
        assert body == b"copies"
        assert properties.headers == {"CC": [f"{name}.b"], "n": 1}


def test_exchanges_bind_to_exchanges_and_alternates_take_what_is_left(channel: BlockingChannel, name: str) -> None:
    channel.exchange_declare(f"{name}.left", "fanout")
    channel.exchange_declare(f"{name}.in", "topic", arguments={"alternate-exchange": f"{name}.left"})
    channel.exchange_declare(f"{name}.out", "headers")
    channel.exchange_bind(f"{name}.out", f"{name}.in", "go.#")
    channel.queue_declare(f"{name}.matched")
    channel.queue_bind(f"{name}.matched", f"{name}.out", "", {"x-match": "all", "kind": "a"})
    channel.queue_declare(f"{name}.rest")
    channel.queue_bind(f"{name}.rest", f"{name}.left")
    channel.basic_publish(f"{name}.in", "go.on", b"matched", pika.BasicProperties(headers={"kind": "a"}))
    channel.basic_publish(f"{name}.in", "stay", b"left over")

    assert _get(channel, f"{name}.matched")[2] == b"matched"
    assert _get(channel, f"{name}.rest")[2] == b"left over"


def test_large_bodies_are_split_over_frames_and_arrive_whole(server: Server, name: str) -> None:
    channel = server.connect(frame_max=4096).channel()
    channel.queue_declare(name)
    body = bytes(range(256)) * 8192
    channel.basic_publish("", name, body)

    assert drain(channel, name, 1) == [body]
    channel.basic_publish("", name, b"")
    assert drain(channel, name, 1) == [b""]
