"""A device that publishes over CoAP."""

import random

from tests.coap_client import Device
from tests.crash.jobs.job import Opened, Step, channel_of, declare, payload_of
from tests.crash.ledger import Ledger
from tests.servers import Server

_MOST_BYTES = 1000


def publishing(ledger: Ledger, server: Server, chance: random.Random, opened: Opened) -> Step:
    """Messages whose publishes are answered."""
    declare(ledger, channel_of(server, opened), "sensed")
    device = Device(server.ports["coap"])
    opened.callback(device.close)

    def step(count: int) -> None:
        payload = payload_of(chance, count)[:_MOST_BYTES]
        with ledger.publishing(payload, "sensed"):
            device.publish("sensed", "x", payload)

    return step
