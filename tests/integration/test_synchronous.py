"""The broker for programs without an event loop: threads that call it, waits with limits, errors where they belong."""

import asyncio
import threading
import time
from pathlib import Path

import pytest

import headrace
from headrace.core.queue.definition import _ARGUMENT_TABLE, _STREAM_TABLE
from headrace.errors import NotFound, Refused, Unavailable


def test_what_is_published_is_consumed_and_there_after_reopening(tmp_path: Path) -> None:
    with headrace.open_sync(tmp_path) as broker:
        broker.declare("orders")
        for number in range(3):
            assert broker.publish("orders", b"%d" % number, headers={"number": number}, content_type="text/plain") == 1
        with broker.consume("orders") as orders:
            first = orders.get(timeout=5)
            assert (first.payload, first.headers["number"], first.attempts) == (b"0", 0, 1)
            assert (first.topic, first.offset, first.properties.content_type) == ("orders", 0, "text/plain")
            first.ack()
            assert next(iter(orders)).payload == b"1"

    with headrace.open_sync(tmp_path) as broker:
        assert broker.messages("orders") == 2


def test_a_wait_ends_in_time_and_the_next_one_loses_nothing() -> None:
    with headrace.open_sync(None) as broker:
        broker.declare("orders")
        with broker.consume("orders") as orders:
            began = time.monotonic()
            with pytest.raises(TimeoutError):
                orders.get(timeout=0.05)
            assert time.monotonic() - began < 5
            broker.publish("orders", b"late")
            assert orders.get(timeout=5).payload == b"late"


def test_a_wait_of_an_event_loop_that_ends_in_time_loses_nothing_either() -> None:
    async def main() -> None:
        async with headrace.open(None) as broker:
            await broker.declare("orders")
            async with broker.consume("orders") as orders:
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(orders), 0.01)
                await broker.publish("orders", b"late")
                assert (await asyncio.wait_for(anext(orders), 5)).payload == b"late"

    asyncio.run(main())


def test_every_way_to_settle_a_message() -> None:
    with headrace.open_sync(None) as broker:
        broker.declare(headrace.QueueDefinition("orders", dead_letter_queue="$dlq/orders"))
        broker.publish("orders", b"1")
        with broker.consume("orders") as orders:
            orders.get(timeout=5).nack()
            again = orders.get(timeout=5)
            assert again.attempts == 2
            assert broker.messages("orders") == 0  # the consumer holds it
            again.renew(60)
            again.release()
            orders.get(timeout=5).reject()
        assert broker.messages("orders") == 0
        assert broker.messages("$dlq/orders") == 1


def test_a_transaction_happens_at_its_end_or_not_at_all() -> None:
    with headrace.open_sync(None) as broker:
        broker.declare("payments")
        broker.declare("receipts")
        broker.publish("payments", b"12.50")
        with broker.consume("payments") as payments:
            payment = payments.get(timeout=5)
            with pytest.raises(ZeroDivisionError), broker.transaction() as tx:
                tx.publish("receipts", b"%d" % (1 // 0))
            assert broker.messages("receipts") == 0
            with broker.transaction() as tx:
                tx.publish("receipts", b"paid")
                tx.ack(payment)
        assert (broker.messages("payments"), broker.messages("receipts")) == (0, 1)


def test_threads_publish_at_once() -> None:
    with headrace.open_sync(None) as broker:
        broker.declare_exchange("shop", "topic")
        broker.declare("orders")
        broker.bind("shop", "orders", "order.#")

        def publish() -> None:
            for _ in range(50):
                broker.publish("order.new", b"x", exchange="shop")

        threads = [threading.Thread(target=publish) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert broker.messages("orders") == 200
        assert broker.delete("orders") == 200


def test_errors_come_to_the_caller(tmp_path: Path) -> None:
    broker = headrace.open_sync(tmp_path)
    with pytest.raises(NotFound):
        broker.messages("nothing")
    with pytest.raises(NotFound), broker.consume("nothing"):
        pass
    with pytest.raises(Unavailable, match="in use"):
        headrace.open_sync(tmp_path)
    broker.declare("orders")
    broker.publish("orders", b"1")
    with broker.consume("orders") as orders:
        order = orders.get(timeout=5)
        order.ack()
        with pytest.raises(Refused):
            order.ack()
    broker.close()
    broker.close()
    with pytest.raises(Unavailable, match="closed"):
        broker.publish("orders", b"2")


def test_an_argument_with_a_wrong_name_is_an_error_that_names_the_right_one() -> None:
    with headrace.open_sync(None) as broker:
        # mypy refuses both as well: an ignore that is not needed would be an error of scripts/check
        with pytest.raises(TypeError, match=r"no argument 'max_lenght'; did you mean 'max_length'\?"):
            broker.declare("orders", max_lenght=3)  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="no argument 'colour'; there are queue_type, expires"):
            broker.declare("orders", colour=3)  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="a definition or arguments, not both: max_length"):
            broker.declare(headrace.QueueDefinition("orders"), max_length=3)
        with pytest.raises(NotFound):
            broker.messages("orders")


def test_every_argument_of_a_queue_is_one_of_declare() -> None:
    known = {name.removeprefix("x-").replace("-", "_") for name in (*_ARGUMENT_TABLE.keys, *_STREAM_TABLE.keys)}

    assert set(headrace.QueueArguments.__annotations__) == known


def test_the_package_exports_what_programs_name() -> None:
    found = {name: getattr(headrace, name) for name in headrace.__all__}

    assert {"Broker", "Queue", "SyncBroker", "Received", "Transaction", "open", "open_sync"} <= set(found)
    with headrace.open_sync(None) as broker:
        assert isinstance(broker, headrace.SyncBroker)
        assert isinstance(broker.declare("orders"), headrace.Queue)
    with pytest.raises(AttributeError, match="has no attribute 'Brokr'"):
        headrace.Brokr  # noqa: B018  # type: ignore[attr-defined]
