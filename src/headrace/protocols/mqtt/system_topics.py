"""The topics below `$SYS`: what the broker tells of itself, every few seconds. Names as Mosquitto has them."""

from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from headrace.protocols.mqtt.server import Host

INTERVAL_US: Final = 10_000_000
_ROOT: Final = "$SYS/broker/"


@final
class Counters:
    """What one virtual host has seen of MQTT since the start."""

    __slots__ = ("dropped", "received", "sent")

    def __init__(self) -> None:
        self.received = 0
        self.sent = 0
        self.dropped = 0


@final
class SystemTopics:
    """Says anew what has changed, at an interval."""

    __slots__ = ("_due_us", "_host", "_said", "_started_us", "_version")

    def __init__(self, host: "Host", version: str, now_us: int) -> None:
        self._host = host
        self._version = version
        self._started_us = now_us
        self._due_us = now_us
        self._said: dict[str, str] = {}

    def tick(self, now_us: int) -> None:
        """Say what has changed, if it is time. `now_us` is monotonic."""
        if now_us < self._due_us:
            return
        self._due_us = now_us + INTERVAL_US
        for name, value in self._values(now_us).items():
            if self._said.get(name) != value:
                self._said[name] = value
                self._host.broker.announce(_ROOT + name, value.encode())

    def _values(self, now_us: int) -> dict[str, str]:
        broker, counters = self._host.broker, self._host.counters
        sessions = broker.sessions
        retained = broker.pubsub.retained
        return {
            "version": f"headrace {self._version}",
            "uptime": f"{(now_us - self._started_us) // 1_000_000} seconds",
            "clients/connected": str(sessions.connected),
            "clients/disconnected": str(len(sessions) - sessions.connected),
            "clients/total": str(len(sessions)),
            "subscriptions/count": str(len(broker.pubsub)),
            "retained messages/count": str(retained.stored),
            "store/messages/bytes": str(retained.size_bytes),
            "publish/messages/received": str(counters.received),
            "publish/messages/sent": str(counters.sent),
            "publish/messages/dropped": str(counters.dropped),
        }
