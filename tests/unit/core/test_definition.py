"""Definitions of queues: AMQP's arguments, the configuration's keys, equivalence, and its form in storage."""

import json
from dataclasses import asdict
from typing import Any

import pytest

from headrace.core.queue.configured import configured
from headrace.core.queue.definition import (
    CLASSIC,
    DROP_HEAD,
    EPHEMERAL,
    QUORUM,
    REJECT_PUBLISH,
    STREAM,
    QueueDefinition,
    Retention,
    Retry,
    declared,
)
from headrace.errors import PreconditionFailed, Refused

HOUR_MS = 3_600_000


# -- arguments ---------------------------------------------------------------------------------------------------------


def test_arguments_become_limits() -> None:
    definition = declared(
        "orders",
        durable=True,
        arguments={
            "x-message-ttl": 1000,
            "x-expires": 2000,
            "x-max-length": 3,
            "x-max-length-bytes": 4,
            "x-overflow": "reject-publish",
            "x-max-priority": 5,
            "x-dead-letter-exchange": "dlx",
            "x-dead-letter-routing-key": "dead",
            "x-single-active-consumer": True,
            "x-consumer-timeout": 7000,
        },
    )

    assert definition == QueueDefinition(
        "orders",
        expires_ms=2000,
        max_message_bytes=128 << 20,
        max_length=3,
        max_length_bytes=4,
        overflow=REJECT_PUBLISH,
        message_ttl_ms=1000,
        max_priority=5,
        single_active=True,
        lease_ms=7000,
        dead_letter_exchange="dlx",
        dead_letter_key="dead",
        arguments=definition.arguments,
    )


def test_a_classic_queue_without_arguments_has_no_limits() -> None:
    definition = declared("q")

    assert (definition.kind, definition.durable, definition.overflow) == (CLASSIC, False, DROP_HEAD)
    assert (definition.max_length, definition.message_ttl_ms, definition.delivery_limit) == (None, None, None)
    assert definition.lease_ms == 30 * 60_000


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("x-message-ttl", -1),
        ("x-message-ttl", "1000"),
        ("x-message-ttl", True),
        ("x-message-ttl", 1.5),
        ("x-expires", 0),
        ("x-max-length", -1),
        ("x-max-length-bytes", 1 << 60),
        ("x-max-priority", 256),
        ("x-overflow", "drop-tail"),
        ("x-overflow", 1),
        ("x-queue-type", "lazy"),
        ("x-dead-letter-exchange", 5),
        ("x-single-active-consumer", "yes"),
        ("x-delivery-limit", -2),
    ],
)
def test_an_argument_that_makes_no_sense_is_refused_by_name(argument: str, value: object) -> None:
    with pytest.raises(PreconditionFailed, match=f"invalid arg '{argument}' for queue 'q'"):
        declared("q", arguments={argument: value})


def test_a_dead_letter_key_needs_a_dead_letter_exchange() -> None:
    with pytest.raises(PreconditionFailed, match="x-dead-letter-routing-key"):
        declared("q", arguments={"x-dead-letter-routing-key": "k"})


@pytest.mark.parametrize("kind", [QUORUM, STREAM])
@pytest.mark.parametrize(
    ("wrong", "durable", "exclusive", "auto_delete"),
    [("non-durable", False, False, False), ("exclusive-owner", True, True, False), ("auto-delete", True, False, True)],
)
def test_quorum_queues_and_streams_are_durable_and_shared(
    kind: str, wrong: str, durable: bool, exclusive: bool, auto_delete: bool
) -> None:
    with pytest.raises(PreconditionFailed, match=f"invalid property '{wrong}' for queue 'q'"):
        declared("q", durable, exclusive, auto_delete, arguments={"x-queue-type": kind})


def test_a_quorum_queue_has_no_priorities() -> None:
    with pytest.raises(
        PreconditionFailed, match="invalid arg 'x-max-priority' for queue 'q' of queue type rabbit_quorum_queue"
    ):
        declared("q", durable=True, arguments={"x-queue-type": "quorum", "x-max-priority": 3})


@pytest.mark.parametrize(("given", "limit"), [(None, 20), (5, 5), (0, 0), (-1, None)])
def test_a_quorum_queue_has_a_delivery_limit_unless_it_says_otherwise(given: int | None, limit: int | None) -> None:
    arguments: dict[str, object] = {"x-queue-type": "quorum"}
    if given is not None:
        arguments["x-delivery-limit"] = given

    assert declared("q", durable=True, arguments=arguments).delivery_limit == limit


@pytest.mark.parametrize("argument", ["x-delivery-limit", "x-max-age", "x-quorum-initial-group-size"])
def test_a_classic_queue_refuses_arguments_of_other_types(argument: str) -> None:
    with pytest.raises(PreconditionFailed, match=f"'{argument}' for queue 'q' in vhost '/' of queue type rabbit_class"):
        declared("q", arguments={argument: 1}, host="/")


@pytest.mark.parametrize(
    ("argument", "value"),
    [("x-queue-mode", "bogus"), ("x-queue-version", 3), ("x-message-ttl", 1 << 33), ("x-expires", 1 << 33)],
)
def test_a_classic_queue_refuses_values_that_rabbitmq_refuses(argument: str, value: object) -> None:
    with pytest.raises(PreconditionFailed, match=f"invalid arg '{argument}' for queue 'q' in vhost '/'"):
        declared("q", arguments={argument: value}, host="/")


def test_the_limits_of_a_stream_are_its_retention() -> None:
    arguments = {"x-queue-type": "stream", "x-max-age": "7D", "x-max-length-bytes": 100, "x-max-length": 9}

    definition = declared("s", durable=True, arguments=arguments)

    assert definition.retention == Retention(7 * 24 * HOUR_MS, 100, 9)
    assert (definition.max_length, definition.max_length_bytes) == (None, None)


@pytest.mark.parametrize(
    ("argument", "value"),
    [("x-message-ttl", 1), ("x-dead-letter-exchange", "dlx"), ("x-expires", 1), ("x-delivery-limit", 1)],
)
def test_a_stream_refuses_what_only_work_queues_have(argument: str, value: object) -> None:
    with pytest.raises(
        PreconditionFailed, match=f"invalid arg '{argument}' for queue 's' of queue type rabbit_stream_queue"
    ):
        declared("s", durable=True, arguments={"x-queue-type": "stream", argument: value})


def test_a_bad_age_of_a_stream_is_refused_by_name() -> None:
    with pytest.raises(PreconditionFailed, match="x-max-age"):
        declared("s", durable=True, arguments={"x-queue-type": "stream", "x-max-age": "7 days"})


@pytest.mark.parametrize(
    ("definition", "is_stored"),
    [
        (QueueDefinition("q"), True),
        (QueueDefinition("q", durable=False), False),
        (QueueDefinition("q", exclusive=True), False),
        (QueueDefinition("q", EPHEMERAL), False),
    ],
)
def test_only_durable_shared_queues_are_stored(definition: QueueDefinition, is_stored: bool) -> None:
    assert definition.is_stored is is_stored


# -- equivalence -------------------------------------------------------------------------------------------------------


def test_the_same_declaration_is_equivalent() -> None:
    arguments = {"x-max-length": 3, "x-queue-type": "classic"}

    declared("q", arguments=arguments).check_equivalent(declared("q", arguments={"x-max-length": 3}))


@pytest.mark.parametrize(
    ("argument", "options"),
    [
        ("durable", {"durable": True}),
        ("exclusive", {"exclusive": True}),
        ("auto_delete", {"auto_delete": True}),
        ("x-queue-type", {"durable": False, "arguments": {"x-queue-type": "ephemeral"}}),
        ("x-max-length", {"arguments": {"x-max-length": 3}}),
        ("x-message-ttl", {"arguments": {"x-message-ttl": 0}}),
        ("x-dead-letter-exchange", {"arguments": {"x-dead-letter-exchange": ""}}),
    ],
)
def test_a_declaration_that_differs_is_refused_by_argument(argument: str, options: dict[str, Any]) -> None:
    with pytest.raises(PreconditionFailed, match=f"inequivalent arg '{argument}' for queue 'q'"):
        declared("q").check_equivalent(declared("q", **options))


def test_a_queue_of_another_type_is_told_with_both_types() -> None:
    kept = declared("q", durable=True, arguments={"x-queue-type": "quorum"})

    with pytest.raises(PreconditionFailed, match="received none but current is the value 'quorum' of type 'longstr'"):
        kept.check_equivalent(declared("q", durable=True))
    with pytest.raises(PreconditionFailed, match="received 'classic' but current is 'quorum'"):
        kept.check_equivalent(declared("q", durable=True, arguments={"x-queue-type": "classic"}))
    with pytest.raises(PreconditionFailed, match="received none but current is the value 'stream' of type 'longstr'"):
        QueueDefinition("q", STREAM).check_equivalent(declared("q", durable=True))


@pytest.mark.parametrize("names", [("x-delivery-limit", "x-message-ttl"), ("x-expires", "x-max-length")])
def test_of_several_differences_that_is_told_which_comes_first_in_rabbitmq(names: tuple[str, str]) -> None:
    plain = declared("q", durable=True, arguments={"x-queue-type": "quorum"})
    other = {"x-queue-type": "quorum", **dict.fromkeys(reversed(names), 5)}

    with pytest.raises(PreconditionFailed, match=f"inequivalent arg '{names[0]}'"):
        plain.check_equivalent(declared("q", durable=True, arguments=other))


def test_arguments_that_mean_nothing_here_do_not_make_a_difference() -> None:
    declared("q").check_equivalent(declared("q", arguments={"x-ha-policy": "all"}))


# -- storage -----------------------------------------------------------------------------------------------------------


def test_a_definition_comes_back_from_json_as_it_was() -> None:
    definition = QueueDefinition(
        "q",
        QUORUM,
        topics=("$queue/q/#", "a/+"),
        capture=True,
        filter="a = 1",
        retry=Retry(3, 1, 2, 1.5),
        retention=Retention(1, 2, 3),
        ack_durability="buffered",
        replication={"enabled": True},
        arguments={"x-bytes": b"\0", "x-table": {"a": [1]}},
    )

    assert QueueDefinition.from_json(json.loads(json.dumps(definition.to_json()))) == definition


def test_members_that_a_later_version_wrote_are_ignored() -> None:
    values = QueueDefinition("q", retry=Retry()).to_json()
    values["new"] = 1
    values["retry"] = {**asdict(Retry()), "new": 1}
    values["retention"] = {"max_age_ms": 5, "new": 1}

    read = QueueDefinition.from_json(values)

    assert (read.name, read.retry, read.retention.max_age_ms) == ("q", Retry(), 5)


# -- configuration -----------------------------------------------------------------------------------------------------


def test_a_configured_queue_has_fluxmqs_defaults() -> None:
    assert configured({"name": "orders"}) == QueueDefinition(
        "orders",
        max_message_bytes=10 << 20,
        max_length=100_000,
        overflow=REJECT_PUBLISH,
        message_ttl_ms=168 * HOUR_MS,
        lease_ms=30_000,
        retry=Retry(10, 5_000, 300_000, 2.0),
        dead_letter_queue="$dlq/orders",
    )


def test_every_key_of_a_configured_queue_counts() -> None:
    definition = configured(
        {
            "name": "orders",
            "topics": ["$queue/orders/#", "orders/#"],
            "capture": True,
            "reserved": True,
            "type": "classic",
            "primary_group": "billing",
            "ack_durability": "buffered",
            "filter": "region = 'eu'",
            "visibility_timeout": "1m",
            "expires": "1h",
            "history": "24h",
            "max_priority": 9,
            "single_active_consumer": True,
            "overflow": "drop-head",
            "retention": {"max_age": "1h", "max_length_bytes": 5, "max_length_messages": 6},
            "limits": {"max_message_size": 7, "max_depth": 8, "max_depth_bytes": 9, "message_ttl": "30m"},
            "retry": {"max_retries": 1, "initial_backoff": "500ms", "max_backoff": "2s", "multiplier": 3},
            "dlq": {"enabled": True, "topic": "$dlq/all"},
            "replication": {
                "enabled": True,
                "group": "default",
                "mode": "async",
                "ack_timeout": "2s",
                "replication_factor": 5,
                "min_in_sync_replicas": 3,
            },
        }
    )

    assert definition == QueueDefinition(
        "orders",
        topics=("$queue/orders/#", "orders/#"),
        capture=True,
        reserved=True,
        primary_group="billing",
        ack_durability="buffered",
        filter="region = 'eu'",
        lease_ms=60_000,
        expires_ms=HOUR_MS,
        history_ms=24 * HOUR_MS,
        max_priority=9,
        single_active=True,
        overflow=DROP_HEAD,
        retention=Retention(HOUR_MS, 5, 6),
        max_message_bytes=7,
        max_length=8,
        max_length_bytes=9,
        message_ttl_ms=1_800_000,
        retry=Retry(1, 500, 2_000, 3.0),
        dead_letter_queue="$dlq/all",
        replication={
            "enabled": True,
            "group": "default",
            "mode": "async",
            "ack_timeout_ms": 2_000,
            "replication_factor": 5,
            "min_in_sync_replicas": 3,
        },
    )


def test_zero_switches_a_configured_limit_off() -> None:
    limits = {"max_depth": 0, "message_ttl": "0", "max_message_size": 0}

    definition = configured({"name": "q", "limits": limits})

    assert (definition.max_length, definition.message_ttl_ms) == (None, None)
    assert definition.max_message_bytes > 1 << 40


def test_dead_letters_can_be_switched_off() -> None:
    assert not configured({"name": "q", "dlq": {"enabled": False, "topic": "$dlq/q"}}).has_dead_letters


def test_a_configured_stream_has_retention_and_no_other_limits() -> None:
    definition = configured({"name": "s", "type": "stream", "retention": {"max_age": "7D"}})

    assert definition.retention == Retention(7 * 24 * HOUR_MS)
    assert (definition.max_length, definition.message_ttl_ms, definition.retry) == (None, None, None)
    assert not definition.has_dead_letters


def test_limits_of_a_configured_stream_are_retention_where_that_says_nothing() -> None:
    limits = {"max_depth": 5, "message_ttl": "1h"}

    definition = configured({"name": "s", "type": "stream", "limits": limits, "retention": {"max_age": "2h"}})

    assert definition.retention == Retention(2 * HOUR_MS, 0, 5)
    assert definition.message_ttl_ms == HOUR_MS


def test_a_configured_ephemeral_queue_is_not_stored() -> None:
    definition = configured({"name": "e", "type": "ephemeral"})

    assert not definition.is_stored
    assert not definition.has_dead_letters


@pytest.mark.parametrize(
    ("values", "where"),
    [
        ({}, "'name'"),
        ({"name": ""}, "'name'"),
        ({"name": 5}, "'name'"),
        ({"name": "x" * 256}, "'name'"),
        ({"name": "q", "topics": "a"}, "'topics'"),
        ({"name": "q", "topics": [5]}, "'topics'"),
        ({"name": "q", "topics": ["a/#/b"]}, "'topics'"),
        ({"name": "q", "type": "lazy"}, "'type'"),
        ({"name": "q", "reserved": "yes"}, "'reserved'"),
        ({"name": "q", "ack_durability": "none"}, "'ack_durability'"),
        ({"name": "q", "filter": "a ="}, "'filter'"),
        ({"name": "q", "limits": 5}, "'limits'"),
        ({"name": "q", "limits": {"max_depth": -1}}, "limits: 'max_depth'"),
        ({"name": "q", "limits": {"max_depth": "many"}}, "limits: 'max_depth'"),
        ({"name": "q", "limits": {"message_ttl": "soon"}}, "limits: 'message_ttl'"),
        ({"name": "q", "limits": {"depth": 5}}, "limits: there is no key 'depth'"),
        ({"name": "q", "retry": {"multiplier": 0.5}}, "retry: 'multiplier'"),
        ({"name": "q", "dlq": {"enabled": 1}}, "dlq: 'enabled'"),
        ({"name": "q", "replication": {"mode": "later"}}, "replication: 'mode'"),
        ({"name": "q", "replication": {"group": "g/h"}}, "replication: 'group'"),
        ({"name": "q", "replication": {"group": "cluster"}}, "replication: 'group'"),
        ({"name": "q", "colour": "red"}, "there is no key 'colour'"),
    ],
)
def test_a_bad_key_of_a_configured_queue_is_named(values: dict[str, object], where: str) -> None:
    with pytest.raises(Refused, match=where):
        configured(values)


def test_a_filter_expression_can_be_an_argument() -> None:
    expression = "type = 'invoice' AND amount > 100"
    definition = declared("invoices", arguments={"x-filter": expression})

    assert definition.filter == expression
    with pytest.raises(PreconditionFailed, match="x-filter"):
        definition.check_equivalent(declared("invoices"))


def test_a_filter_expression_that_cannot_be_read_is_refused_in_words() -> None:
    with pytest.raises(PreconditionFailed, match="invalid arg 'x-filter' for queue 'invoices'"):
        declared("invoices", arguments={"x-filter": "amount >"})
