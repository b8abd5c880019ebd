"""The scenarios that there are. What a scenario is, is in load.py; those of `--scale` are in scaling.py."""

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Final

from bench.compare.load import Load, Scenario, Step
from headrace.errors import Refused

_KIB: Final = 1024
FLOW: Final = Load("amqp", at_once=128, window=4096, ahead=8192)
"""Messages through one queue, as fast as it goes, with a window that no broker waits for."""
_NATS_FLOW: Final = Load("nats", at_once=128, window=4096, ahead=8192, ack_every=1)
_FAN_OUT: Final = 100
_FAN_IN: Final = 8
_MILLION: Final = 1_000_000


def _flow(name: str, title: str, *loads: Load, is_main: bool = False, is_fresh: bool = False) -> Scenario:
    return Scenario(name, loads, (Step(name, title, "flow"),), is_main, is_fresh=is_fresh)


def warmed(scenario: Scenario, messages: int) -> Scenario:
    """The same after messages that are not counted: the first through a queue or a binding cost more than others."""
    warm = Step(f"{scenario.name}-warm", "before it is measured", "flow", messages, is_row=False)
    return replace(scenario, steps=(warm, *scenario.steps))


def _backlog(name: str, title: str, messages: int, *loads: Load) -> Scenario:
    """Publish first, then take everything; the memory between the two is that of the backlog."""
    steps = (
        Step(f"{name}-publish", f"{title}: publish, confirmed", "publish", messages),
        Step(f"{name}-drain", f"{title}: drain", "drain"),
    )
    return Scenario(name, loads, steps, is_fresh=messages > 0)


def _realistic() -> list[Scenario]:
    """Messages as applications send them: the first table. All are persistent, confirmed and acknowledged."""
    mixed = Load("amqp", shape="mixed", window=512, ack_every=1)
    ids = replace(mixed, shape="ids", size=200)
    topic = replace(ids, exchange="topic", bindings=10, keys=1000)
    one = replace(mixed, window=1, ahead=64, naps=False)
    few = replace(one, window=16, at_once=1)
    four = replace(mixed, publishers=4, consumers=4, window=64, at_once=16, prefetch=256, ack_every=50, naps=False)
    large = Load("amqp", shape="ids", size=64 * _KIB, at_once=4, window=32, ahead=128, ack_every=1)
    mqtt = Load("mqtt5", shape="mixed", publishers=100, consumers=10, at_once=4, window=16)
    amqp10 = replace(mixed, family="amqp10")
    return [
        _real("amqp-mixed", "AMQP: ids, headers, 24 B to 8 KiB, window 512, ack each", *_both(mixed)),
        _real("amqp-ids", "AMQP: own ids, 200 B, window 512, ack each", *_both(ids)),
        _real("amqp-topic", "AMQP: own ids, topic exchange, 1,000 keys", *_both(topic)),
        _real("amqp-window-1", "AMQP mixed, window 1: each waits for its confirm", *_both(one)),
        _real("amqp-window-16", "AMQP mixed, window 16", *_both(few)),
        _real("amqp-4x4", "AMQP mixed, 4 x 4 on one queue, window 64, ack 50", four),
        _real("amqp-64k", "AMQP: own ids, 64 KiB, window 32, ack each", *_both(large)),
        _real("mqtt-mixed", "MQTT 5 QoS 1: 100 publishers with own topics and properties, 10 by wildcard", mqtt),
        _real("amqp10-mixed", "AMQP 1.0: own properties, 24 B to 8 KiB, accept each", amqp10),
        *_clients(mixed),
    ]


def _clients(mixed: Load) -> list[Scenario]:
    """The same with libraries that applications use."""
    pika = replace(mixed, client="pika", window=1, prefetch=100)
    aio_pika = replace(mixed, client="aio-pika", window=64, prefetch=100)
    celery = Load("amqp", client="celery", window=1, ack_every=1)
    perftest = Load("amqp", client="perftest", size=200, window=500, prefetch=500, ack_every=1)
    return [
        _real("client-pika", "pika: mixed, publish and wait for each confirm, basic_consume", pika),
        _real("client-aio-pika", "aio-pika: mixed, 64 publishes at a time", aio_pika),
        _real("client-celery", "Celery: small tasks without results", celery),
        _real("client-perftest", "RabbitMQ PerfTest: 200 B, confirm 500, ack each", perftest),
    ]


def _both(load: Load) -> tuple[Load, Load]:
    """The load, and the same for NATS, where every message is acknowledged."""
    return load, replace(load, family="nats", exchange="", ack_every=1)


def _real(name: str, title: str, *loads: Load) -> Scenario:
    return Scenario(name, loads, (Step(name, title, "flow"),), is_main=True)


def _amqp() -> list[Scenario]:
    stream = Load("amqp", is_stream=True, at_once=128, window=4096, prefetch=2000)
    nats_stream = Load("nats", at_once=128, window=4096, prefetch=2000, ack_every=0)
    four = Load("amqp", publishers=4, consumers=4, window=256, prefetch=256, ack_every=50)
    fan_out = Load("amqp", exchange="fanout", queues=10, consumers=10, ahead=1024)
    like_ids = Load("amqp", size=200, window=512, ack_every=1)
    return [
        _real("amqp-alike", "AMQP: 200 B, window 512, ack each", *_both(like_ids)),
        _backlog("amqp-queue", "AMQP queue", 0, FLOW, _NATS_FLOW),
        _flow("amqp-end-to-end", "AMQP end to end, 1 x 1", FLOW, _NATS_FLOW, is_main=True),
        _flow("amqp-end-to-end-4x4", "AMQP end to end, 4 x 4 on one queue", four),
        _backlog("amqp-stream", "AMQP stream", 0, stream, nats_stream),
        _flow("amqp-fan-out", "AMQP fan-out, 1 to 10 queues", fan_out),
        _flow(
            "amqp-latency",
            "AMQP end to end at 1,000/s, ack each",
            Load("amqp", rate=1000, ack_every=1),
            Load("nats", rate=1000, ack_every=1),
        ),
        _flow("amqp-end-to-end-1k", "AMQP end to end, 1 KiB", *_sized(_KIB, 64, 1024)),
        _flow("amqp-end-to-end-64k", "AMQP end to end, 64 KiB", *_sized(64 * _KIB, 4, 32)),
    ]


def _sized(size: int, at_once: int, window: int) -> tuple[Load, Load]:
    ahead = 4 * window
    return (
        Load("amqp", size=size, at_once=at_once, window=window, ahead=ahead),
        Load("nats", size=size, at_once=at_once, window=window, ahead=ahead, ack_every=1),
    )


def _mqtt() -> list[Scenario]:
    found: list[Scenario] = []
    for qos in (0, 1, 2):
        fan_in = Load("mqtt", qos=qos, publishers=_FAN_IN, window=256)
        fan_out = Load("mqtt", qos=qos, consumers=_FAN_OUT, window=256, ahead=1024)
        found += [
            _flow(f"mqtt-qos{qos}-fan-in", f"MQTT QoS {qos}, {_FAN_IN} to 1", fan_in, is_main=qos == 1),
            _flow(f"mqtt-qos{qos}-fan-out", f"MQTT QoS {qos}, 1 to {_FAN_OUT}", fan_out),
        ]
    return found


def _large() -> list[Scenario]:
    many_queues = Load("amqp", queues=1000, window=2048, ahead=8192)
    many = Load("amqp", publishers=1000, at_once=4, window=8, ahead=16384)
    filling = Load("amqp", at_once=256, window=8192, ack_every=1)
    nats = Load("nats", at_once=256, window=8192, ack_every=1)
    mixed = Load("amqp", shape="mixed", window=512, ack_every=1)
    return [
        warmed(_flow("queues-1000", "AMQP end to end over 1,000 queues", many_queues, is_fresh=True), 4000),
        _flow("connections-1000", "AMQP, 1,000 publishers to 1", many, is_fresh=True),
        _flow(
            "mqtt-connections-1000",
            "MQTT QoS 1, 1,000 publishers to 1",
            Load("mqtt", publishers=1000, at_once=4, window=8, ahead=16384),
            is_fresh=True,
        ),
        _backlog("backlog-1m-mixed", "AMQP mixed, backlog of 1 M, ack each", _MILLION, *_both(mixed)),
        _backlog("backlog-1m", "AMQP backlog of 1 M, ack each", _MILLION, filling, nats),
        _backlog("backlog-10m", "AMQP backlog of 10 M, ack each", 10 * _MILLION, filling, nats),
    ]


def _others() -> list[Scenario]:
    spark = (
        Step("spark-write", "Spark, rows written to a queue", "publish"),
        Step("spark-read", "Spark, rows read from a queue", "drain"),
    )
    return [
        _backlog("amqp10-queue", "AMQP 1.0 queue", 0, Load("amqp10")),
        Scenario("spark", (Load("spark", size=200),), spark, is_fresh=True),
    ]


def scenarios() -> list[Scenario]:
    """All of them, in the order in which they are run and shown: identical messages last, and called so."""
    found = [*_realistic(), *_amqp(), *_mqtt(), *_others(), *_large()]
    return [each for each in found if not _is_alike(each)] + [_called_alike(each) for each in found if _is_alike(each)]


def _is_alike(scenario: Scenario) -> bool:
    load = scenario.loads[0]
    return not load.shape and not load.client and load.family != "spark"


def _called_alike(scenario: Scenario) -> Scenario:
    steps = [replace(step, title=f"identical messages: {step.title}") for step in scenario.steps]
    return replace(scenario, steps=tuple(steps))


def choose(known: Sequence[Scenario], patterns: Sequence[str]) -> list[Scenario]:
    """Those that are named, by their names or those of their rows, with * for any letters.

    Raises Refused for a name that fits none.
    """
    for pattern in patterns:
        if not any(_is_named(scenario, pattern) for scenario in known):
            raise Refused(f"there is no scenario {pattern!r}; `python -m bench.compare --list` names them")
    return [scenario for scenario in known if any(_is_named(scenario, pattern) for pattern in patterns)]


def _is_named(scenario: Scenario, pattern: str) -> bool:
    return any(fnmatchcase(name, pattern) for name in (scenario.name, *[step.name for step in scenario.steps]))
