"""The protocols whose clients are passed on: how each is looked at, and how it refuses. Nothing is passed on here."""

from functools import partial

from headrace.cluster.forwarding import preamble
from headrace.net.handover import WireProtocol
from headrace.protocols import refusal, tracker

AMQP = WireProtocol("amqp", partial(tracker, "amqp"), partial(refusal, "amqp"))
MQTT = WireProtocol("mqtt", partial(tracker, "mqtt"), partial(refusal, "mqtt"))
NUMBERS = {AMQP.name: preamble.AMQP, MQTT.name: preamble.MQTT}
"""What the preamble calls them."""
