"""The broker while it serves: hosts, users, protocols and pages over one engine. No sockets and signals: see app.py."""

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final, final

from headrace.admin.listener import Speaker
from headrace.admin.site import Site
from headrace.clock import Clock
from headrace.config.configuration import Configuration
from headrace.config.settings import Settings
from headrace.core.access.access import Access
from headrace.core.access.logins import Background
from headrace.core.broker import Broker
from headrace.core.flow import Flow
from headrace.core.hosts import Hosts
from headrace.core.properties import Codecs
from headrace.core.pubsub.session import Bounds
from headrace.errors import Unavailable
from headrace.model import AMQP091, AMQP10, MQTT5
from headrace.net.connection import Wire
from headrace.net.datagrams import DatagramHandler
from headrace.net.handler import Handler
from headrace.net.tls import Tls
from headrace.protocols.amqp091.connection import Connection as Amqp091Connection
from headrace.protocols.amqp091.handshake import Server as Amqp091Server
from headrace.protocols.amqp091.properties import Amqp091Codec
from headrace.protocols.amqp10.connection import Connection as Amqp10Connection
from headrace.protocols.amqp10.properties import Amqp10Codec
from headrace.protocols.amqp10.server import Server as Amqp10Server
from headrace.protocols.greeting import AmqpGreeting
from headrace.protocols.mqtt.connection import Connection as MqttConnection
from headrace.protocols.mqtt.properties import Mqtt5Codec
from headrace.protocols.mqtt.server import Server as MqttServer
from headrace.reloading import Reloaded, Reloading, limit
from headrace.storage.api import Engine
from headrace.storage.local.staging import EXPIRE_SECONDS, StagingArea
from headrace.tokens import read_tokens
from headrace.version import __version__

if TYPE_CHECKING:
    from headrace.admin.listener import Contribute

AMQP: Final = "amqp"
MQTT: Final = "mqtt"
WEB_SOCKET: Final = "ws"
WS_PATHS: Final = ("/", "/mqtt")
WS_SUBPROTOCOLS: Final = ("mqtt", "mqttv3.1")
_SLOW_US: Final = 5_000_000
"""Longest time that storage may take, or publishers wait, while the broker counts as ready."""
_SWEEP_US: Final = 600 * 1_000_000
"""Time between two searches for files that dead jobs left behind."""
_QUIET_US: Final = 1_500_000
"""Time without trouble after which the broker is ready again; failed writes are tried again every second."""
_log: Final = logging.getLogger("headrace")


@final
@dataclass(frozen=True)
class Environment:
    """The parts of the process that stay while brokers come and go."""

    configuration: Configuration
    again: Callable[[], Configuration]
    """Reads the configuration again. Raises Refused."""
    clock: Clock
    background: Background
    soon: Callable[[Callable[[], None]], None]
    """Schedules a call at the end of this turn of the event loop."""
    tls: Tls | None
    wires: Callable[[], list[Wire]]
    ports: Callable[[], dict[str, int]]
    stopping: Callable[[], str]
    """Returns a sentence that says why the broker takes no messages, or ""."""
    staging: StagingArea


@final
class Readiness:
    """The reason why the broker takes no messages; logs one line when it begins and one when it ends."""

    def __init__(self, look: Callable[[], str], clock: Clock) -> None:
        self._look = look
        """Returns a sentence that says why nothing can be published, or ""."""
        self._clock = clock
        self._reason = ""
        self._seen_us = 0
        """The last time when the reason was true."""

    def reason(self) -> str:
        """Return why nothing can be published, now or within the last moments; "" while it can."""
        self.tick()
        return self._reason

    def tick(self) -> None:
        """Check for a change."""
        reason, now_us = self._look(), self._clock.monotonic_us()
        if reason:
            if not self._reason:
                _log.error("not ready, publishers are refused or wait: %s", reason)
            self._reason, self._seen_us = reason, now_us
        elif self._reason and now_us - self._seen_us >= _QUIET_US:
            _log.warning("ready again, publishing goes on; it was not because: %s", self._reason)
            self._reason = ""


@final
class Service:
    """Hosts, users, protocols and pages over one engine, from its opening to its end."""

    def __init__(self, engine: Engine, environment: Environment) -> None:
        """Raises Refused when its queues cannot become as configured."""
        self.engine = engine
        self._environment = environment
        self._clock = environment.clock
        self._reloading: Reloading | None = None
        self._sweep_due_us = 0
        self._flow = Flow()
        self._blocked_us = 0
        """Monotonic time since when publishers wait; 0 while they do not."""
        self._readiness = Readiness(self._look, self._clock)
        configuration = environment.configuration
        tokens = read_tokens(configuration.settings.jwt)
        self._hosts = self._open_hosts(configuration.settings)
        self._access = Access(engine, self._clock, environment.background, self._hosts)
        self._access.use_tokens(tokens)
        self._reloading = Reloading(configuration, environment.again, self._hosts, self._access, environment.tls)
        self._reloading.start()
        self._amqp091 = Amqp091Server(self._hosts, self._access, __version__)
        self._amqp10 = Amqp10Server(self._hosts, self._access, self._clock, __version__)
        self._mqtt = MqttServer(self._hosts, self._access, self._clock, __version__, configuration.settings.mqtt)
        self.site = self._open_site()

    def _open_hosts(self, settings: Settings) -> Hosts:
        codecs, flow = Codecs(), self._flow
        codecs.add(AMQP091, Amqp091Codec())
        codecs.add(AMQP10, Amqp10Codec())
        codecs.add(MQTT5, Mqtt5Codec())

        def broker(name: str) -> Broker:
            current = settings if self._reloading is None else self._reloading.settings
            found = Broker(
                self.engine,
                self._clock,
                self._environment.soon,
                name,
                codecs,
                flow,
                Bounds(current.mqtt, current.limits.memory_bytes),
                current.cluster.group,
            )
            limit(found, current)
            return found

        return Hosts(self.engine, broker)

    def _open_site(self) -> Site:
        around = self._environment
        site = Site(
            self._hosts,
            self._access,
            around.wires,
            around.ports,
            self.trouble,
            self._clock,
            __version__,
            around.staging,
        )
        site.reload = lambda: asdict(self.reload())
        return site

    # -- connections -------------------------------------------------------------------------------------------------

    def handler(self, protocol: str) -> Handler:
        """Return the handler of a new connection of one protocol."""
        if protocol == AMQP:
            return AmqpGreeting(
                lambda: Amqp091Connection(self._amqp091, self._clock),
                lambda: Amqp10Connection(self._amqp10, self._clock),
            )
        if protocol == WEB_SOCKET:
            return web_socket(MqttConnection(self._mqtt), self._mqtt.max_packet_bytes)
        assert protocol == MQTT
        return MqttConnection(self._mqtt)

    def speaker(self, contributions: "list[Contribute]") -> Speaker:
        """Return the handler of HTTP requests; the first call loads its modules."""
        from headrace.admin.stack import Stack

        return Stack.of_site(self.site, contributions)

    def coap(self) -> DatagramHandler:
        """Return the handler of CoAP. Raises Unavailable where aiocoap is not installed."""
        try:
            from headrace.protocols.coap.endpoint import Endpoint
        except ImportError as error:
            raise Unavailable(f"--coap needs aiocoap ({error}): pip install 'headrace[coap]'") from error
        return Endpoint(self._hosts, self._access, self._clock)

    # -- upkeep ------------------------------------------------------------------------------------------------------

    @property
    def settings(self) -> Settings:
        """The settings in use."""
        assert self._reloading is not None
        return self._reloading.settings

    def reload(self) -> Reloaded:
        """Apply the configuration as it is now, or raise Refused or Unavailable and change nothing."""
        assert self._reloading is not None
        return self._reloading.reload()

    def tick(self) -> None:
        """Run the periodic work of all parts."""
        for broker in self._hosts.brokers():
            broker.tick()
        self._amqp10.tick()
        self._mqtt.tick()
        self._access.tick()
        self._readiness.tick()
        self._sweep()

    def _sweep(self) -> None:
        """Remove files that dead jobs left behind, once per interval."""
        now_us = self._clock.now_us()
        if now_us >= self._sweep_due_us:
            self._sweep_due_us = now_us + _SWEEP_US
            staging, before_s = self._environment.staging, now_us / 1_000_000 - EXPIRE_SECONDS
            if staging.is_used:
                self._environment.background.run(lambda: staging.sweep(before_s), lambda _: None)

    def trouble(self) -> str:
        """Return why nothing can be published now; "" while it can."""
        return self._environment.stopping() or self._readiness.reason()

    def _look(self) -> str:
        """Return why nothing can be published at this moment."""
        trouble = self.engine.trouble
        if trouble:
            return trouble
        now_us, sent_us = self._clock.monotonic_us(), 0
        for broker in self._hosts.brokers():
            if broker.is_held_up:
                return f"what is published to virtual host {broker.topology.host!r} cannot be stored now"
            sent_us = min([each for each in (sent_us, broker.sent_us) if each], default=0)
        if sent_us and now_us - sent_us > _SLOW_US:
            seconds = (now_us - sent_us) / 1_000_000
            return f"what was sent to storage {seconds:.0f} s ago is not stored yet: it is too slow, or hangs"
        return self._look_at_flow(now_us)

    def _look_at_flow(self, now_us: int) -> str:
        flow = self._flow
        if not flow.blocked:
            self._blocked_us = 0
            return ""
        self._blocked_us = self._blocked_us or now_us
        if flow.is_out_of_memory:
            return (
                f"queues that are not stored have filled {flow.memory_high_bytes:,} bytes of memory, and publishers "
                f"wait until they are consumed; more is limits.memory_bytes in the configuration"
            )
        if now_us - self._blocked_us > _SLOW_US:
            return "publishers wait: more comes than storage takes"
        return ""

    def drain(self) -> None:
        """Commit the last messages."""
        for broker in self._hosts.brokers():
            broker.drain()


def web_socket(handler: Handler, max_packet_bytes: int) -> Handler:
    """Wrap a handler in a WebSocket; the first client loads its modules."""
    from headrace.net.websocket import WebSocket

    return WebSocket(handler, WS_SUBPROTOCOLS, WS_PATHS, max_packet_bytes)
