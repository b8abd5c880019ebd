"""The protocols that can be measured."""

from headrace.bench.amqp import AmqpDriver
from headrace.bench.amqp10 import Amqp10Driver
from headrace.bench.family import FamilyDriver
from headrace.bench.load import Family
from headrace.bench.mqtt import MqttDriver
from headrace.bench.nats import NatsDriver


def driver_of(family: Family) -> FamilyDriver:
    """Raises KeyError for what is not measured over a wire."""
    drivers: dict[Family, type[FamilyDriver]] = {
        "amqp": AmqpDriver,
        "amqp10": Amqp10Driver,
        "mqtt": MqttDriver,
        "nats": NatsDriver,
    }
    return drivers[family]()
