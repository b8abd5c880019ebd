"""The protocols whose clients are passed on: how each is looked at, and how it refuses. Nothing is passed on here."""

from headrace.cluster.forwarding import preamble
from headrace.net.handler import Handler
from headrace.net.handover import FindRedirect, Tracker, WireProtocol
from headrace.protocols.amqp091.handover import Amqp091Refusal, Amqp091Tracker
from headrace.protocols.amqp10.handover import Amqp10Refusal, Amqp10Tracker
from headrace.protocols.greeting import AmqpGreeting, is_amqp10
from headrace.protocols.mqtt.handover import MqttRefusal, MqttTracker, version_of
from headrace.version import __version__


def _amqp_tracker(start: bytes) -> Tracker:
    return Amqp10Tracker() if is_amqp10(start) else Amqp091Tracker()


def _amqp_refusal(find_redirect: FindRedirect) -> Handler:
    return AmqpGreeting(lambda: Amqp091Refusal(find_redirect, __version__), lambda: Amqp10Refusal(find_redirect))


def _mqtt_tracker(start: bytes) -> Tracker:
    return MqttTracker(version_of(start))


AMQP = WireProtocol("amqp", _amqp_tracker, _amqp_refusal)
MQTT = WireProtocol("mqtt", _mqtt_tracker, MqttRefusal)
NUMBERS = {AMQP.name: preamble.AMQP, MQTT.name: preamble.MQTT}
"""What the preamble calls them."""
