"""The protocols that can be measured."""

from bench.compare.amqp import AmqpDriver
from bench.compare.amqp10 import Amqp10Driver
from bench.compare.family import FamilyDriver
from bench.compare.load import Family
from bench.compare.mqtt import MqttDriver
from bench.compare.nats import NatsDriver


def driver_of(family: Family) -> FamilyDriver:
    """Raises KeyError for what is not measured over a wire."""
    drivers: dict[Family, type[FamilyDriver]] = {
        "amqp": AmqpDriver,
        "amqp10": Amqp10Driver,
        "mqtt": MqttDriver,
        "mqtt5": MqttDriver,
        "nats": NatsDriver,
    }
    return drivers[family]()
