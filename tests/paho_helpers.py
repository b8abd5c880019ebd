"""paho-mqtt clients for tests: wait for what must come, keep what came."""

import threading
import time
from collections.abc import Callable
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

SECONDS = 60.0


def wait_for(condition: Callable[[], bool], seconds: float = SECONDS) -> None:
    """Returns once it is so; fails when that takes too long."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def said(kind: int, user: list[tuple[str, str]] | None = None, **values: object) -> Properties:
    """Properties of MQTT 5 for a packet of this kind."""
    properties = Properties(kind)
    if user:
        properties.UserProperty = user
    for name, value in values.items():
        setattr(properties, name, value)
    return properties


def told(message: paho.MQTTMessage) -> dict[str, str]:
    """The user properties of a message."""
    return dict(message.properties.UserProperty)  # type: ignore[union-attr]


class _PatientClient(paho.Client):
    """Connects again when it is allowed to: each attempt in vain makes paho forget that a message was released, so that
    it publishes it once more."""

    gate: threading.Event | None = None

    def reconnect(self) -> MQTTErrorCode:
        if self.gate is not None:
            self.gate.wait(SECONDS)
        return super().reconnect()


class Paho:
    """One client, connected from the start."""

    def __init__(
        self, port: int, client_id: str, version: int = 5, clean: bool = True, expiry_s: int = 0, **options: Any
    ) -> None:
        protocol = {4: paho.MQTTv311, 5: paho.MQTTv5, 3: paho.MQTTv31}[version]
        self.version = version
        more = {"transport": options.pop("transport", "tcp"), **({} if version == 5 else {"clean_session": clean})}
        self._over: threading.Event | None = options.pop("over", None)
        """Set when the server is to be killed: nobody waits for an answer then, and nobody connects again."""
        more["reconnect_on_failure"] = self._over is None
        self.client = _PatientClient(CallbackAPIVersion.VERSION2, client_id, protocol=protocol, **more)
        self.client.gate = options.pop("gate", None)
        self.client.max_inflight_messages_set(options.pop("inflight", 20))
        self.messages: list[paho.MQTTMessage] = []
        self.acked: dict[int, Any] = {}
        self.connected = threading.Event()
        self.connections = 0
        self.present = False
        self._granted: dict[int, list[Any]] = {}
        kept = self.messages
        self.client.on_message = options.pop("on_message", lambda client, data, message: kept.append(message))
        self.client.on_connect = self._on_connect
        self.client.on_publish = lambda client, data, mid, reason, properties: self.acked.update({mid: reason})
        self.client.on_subscribe = lambda client, data, mid, reasons, properties: self._granted.update({mid: reasons})
        if (user_name := options.pop("user_name", None)) is not None:
            self.client.username_pw_set(user_name)
        will = options.pop("will", None)
        if will is not None:
            self.client.will_set(*will)
        if version == 5:
            connect = said(PacketTypes.CONNECT, SessionExpiryInterval=expiry_s)
            self.client.connect("127.0.0.1", port, 60, clean_start=clean, properties=connect)
        else:
            self.client.connect("127.0.0.1", port, 60)
        self.client.loop_start()
        self.wait_for(self.connected.is_set)

    def _on_connect(self, client: paho.Client, data: object, flags: Any, reason: Any, properties: object) -> None:
        assert not reason.is_failure, reason
        self.present = flags.session_present
        self.connections += 1
        self.connected.set()

    def subscribe(
        self, pattern: str, qos: int = 1, user: list[tuple[str, str]] | None = None, **asked: Any
    ) -> list[Any]:
        if self.version == 5:
            options = SubscribeOptions(qos, **asked)
            _, mid = self.client.subscribe(pattern, options=options, properties=said(PacketTypes.SUBSCRIBE, user))
        else:
            _, mid = self.client.subscribe(pattern, qos)
        assert mid is not None
        self.wait_for(lambda: mid in self._granted)
        return self._granted[mid]

    def publish(self, topic: str, payload: str | bytes, qos: int = 1, retain: bool = False, **options: Any) -> int:
        properties = said(PacketTypes.PUBLISH, **options) if options else None
        return self.client.publish(topic, payload, qos, retain, properties).mid

    def sure(self, topic: str, payload: str | bytes, qos: int = 1, retain: bool = False, **options: Any) -> Any:
        """Publish and wait for the answer, which is returned."""
        mid = self.publish(topic, payload, qos, retain, **options)
        self.wait_for(lambda: mid in self.acked)
        return self.acked[mid]

    def wait(self, count: int) -> list[bytes]:
        """The payloads of so many messages."""
        wait_for(lambda: len(self.messages) >= count)
        return [bytes(message.payload) for message in self.messages]

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Returns once it is so. Raises ConnectionError when it is not, and the server is to be killed."""
        wait_for(lambda: condition() or (self._over is not None and self._over.is_set()))
        if not condition():
            self.drop()
            raise ConnectionError("the server is gone")

    def close(self) -> None:
        """Say goodbye."""
        self.client.disconnect()
        self.client.loop_stop()

    def drop(self) -> None:
        """Break the connection without a word."""
        socket = self.client.socket()
        self.client._thread_terminate = True
        if socket is not None:
            socket.close()
        self.client.loop_stop()
