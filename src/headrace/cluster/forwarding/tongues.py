"""The protocols whose clients are passed on: how each is looked at, and how it refuses. Nothing is passed on here."""

from headrace.cluster.forwarding import preamble
from headrace.net.handler import Handler
from headrace.net.passing import Tongue, Tracker, Whither
from headrace.protocols.amqp091.passing import Amqp091Refusal, Amqp091Tracker
from headrace.protocols.amqp10.passing import Amqp10Refusal, Amqp10Tracker
from headrace.protocols.greeting import AmqpGreeting, is_amqp10
from headrace.protocols.mqtt.passing import MqttRefusal, MqttTracker, version_of
from headrace.version import __version__


def _amqp_tracker(start: bytes) -> Tracker:
    return Amqp10Tracker() if is_amqp10(start) else Amqp091Tracker()


def _amqp_refusal(whither: Whither) -> Handler:
    return AmqpGreeting(lambda: Amqp091Refusal(whither, __version__), lambda: Amqp10Refusal(whither))


def _mqtt_tracker(start: bytes) -> Tracker:
    return MqttTracker(version_of(start))


AMQP = Tongue("amqp", _amqp_tracker, _amqp_refusal)
MQTT = Tongue("mqtt", _mqtt_tracker, MqttRefusal)
NUMBERS = {AMQP.name: preamble.AMQP, MQTT.name: preamble.MQTT}
"""What the preamble calls them."""
