"""The brokers that can be started here: how each is found, configured and told to listen. Running them: brokers.py.

Settings are the defaults, but for what would keep a broker from showing what it can: how many messages of QoS 1 and 2
may be in flight to a client (the generator acknowledges by the hundred), and limits of queued messages.
"""

import json
import os
import shutil
import socket
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, final

from bench.compare.load import Endpoint, Family
from headrace.process import python

_HERE: Final = "127.0.0.1"
_SYSTEM_PATHS: Final = ("/usr/sbin", "/usr/local/sbin", "/opt/homebrew/sbin")
_IN_FLIGHT: Final = 256


@dataclass(frozen=True, slots=True)
class Command:
    """A way to start a broker."""

    words: list[str]
    environment: dict[str, str] = field(default_factory=dict)


class Peer(ABC):
    """A kind of broker."""

    name: str
    families: tuple[Family, ...]
    ports = 1
    """Number of free ports that it needs."""

    @abstractmethod
    def find(self) -> str | None:
        """The program, where it is installed."""

    @abstractmethod
    def command(self, program: str, folder: Path, ports: list[int]) -> Command:
        """Write what it reads into the folder and say how to start it."""

    @abstractmethod
    def endpoints(self, ports: list[int], folder: Path) -> dict[Family, Endpoint]:
        """Addresses that it listens on once it runs; empty while unknown."""

    def is_ready(self, endpoints: dict[Family, Endpoint]) -> bool:
        """True if it takes connections."""
        return all(is_open(endpoint) for endpoint in endpoints.values())

    def stopped(self, ports: list[int]) -> list[str]:
        """Command to run once it has ended, so that nothing is left."""
        return []


def _which(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *_SYSTEM_PATHS]))


def is_open(endpoint: Endpoint) -> bool:
    """True if somebody listens there."""
    try:
        socket.create_connection((endpoint.host, endpoint.port), 1.0).close()
    except OSError:
        return False
    return True


@final
class Headrace(Peer):
    """This broker, as it is installed: durable, confirming after the sync."""

    name = "headrace"
    families = ("amqp", "amqp10", "mqtt", "mqtt5", "spark")
    ports = 0

    def find(self) -> str | None:
        return sys.executable

    def command(self, program: str, folder: Path, ports: list[int]) -> Command:
        where = ["--data", str(folder / "data"), "--ready-file", str(folder / "ready.json")]
        listeners = [word for name in ("amqp", "mqtt", "http", "ws") for word in (f"--{name}", "0")]
        return Command([*python("-m", "headrace", "serve"), *where, *listeners, "--log-level", "warning"])

    def endpoints(self, ports: list[int], folder: Path) -> dict[Family, Endpoint]:
        """From the file that it writes once it serves."""
        ready = folder / "ready.json"
        if not ready.exists():
            return {}
        found: dict[str, int] = json.loads(ready.read_text())["ports"]
        amqp, mqtt = Endpoint(_HERE, found["amqp"]), Endpoint(_HERE, found["mqtt"])
        return {
            "amqp": amqp,
            "amqp10": amqp,
            "mqtt": mqtt,
            "mqtt5": mqtt,
            "spark": Endpoint(_HERE, found["http"], "guest", "guest"),
        }

    def is_ready(self, endpoints: dict[Family, Endpoint]) -> bool:
        """A connection to the HTTP port would load what is behind it, and change the memory that is measured."""
        return bool(endpoints)


@final
class RabbitMq(Peer):
    """With its plugins for MQTT and AMQP 1.0; a node and an epmd of its own."""

    name = "rabbitmq"
    families = ("amqp", "amqp10", "mqtt", "mqtt5")
    ports = 4

    def find(self) -> str | None:
        plain = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")  # the one in PATH changes the user, and the directories
        return str(plain) if plain.exists() else _which("rabbitmq-server")

    def command(self, program: str, folder: Path, ports: list[int]) -> Command:
        amqp, mqtt, distribution, epmd = ports
        configuration = folder / "rabbitmq.conf"
        configuration.write_text(
            f"listeners.tcp.1 = {_HERE}:{amqp}\nmqtt.listeners.tcp.1 = {_HERE}:{mqtt}\nmqtt.prefetch = {_IN_FLIGHT}\n"
            "log.console = true\nlog.console.level = error\n"
        )
        (folder / "enabled_plugins").write_text("[rabbitmq_mqtt,rabbitmq_amqp1_0].\n")
        (folder / "home").mkdir(exist_ok=True)
        return Command(
            [program],
            {
                "HOME": str(folder / "home"),
                "RABBITMQ_NODENAME": f"bench{amqp}@localhost",
                "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
                "RABBITMQ_LOG_BASE": str(folder / "log"),
                "RABBITMQ_CONFIG_FILE": str(configuration),
                "RABBITMQ_CONF_ENV_FILE": os.devnull,
                "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
                "RABBITMQ_PID_FILE": str(folder / "pid"),
                "RABBITMQ_DIST_PORT": str(distribution),
                "ERL_EPMD_PORT": str(epmd),
                "ERL_EPMD_ADDRESS": _HERE,
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
                "RUNNING_UNDER_SYSTEMD": "true",  # has the script become the broker, and not start it beside itself
            },
        )

    def endpoints(self, ports: list[int], folder: Path) -> dict[Family, Endpoint]:
        old = Endpoint(_HERE, ports[0], queue_address="/amq/queue/{}")
        mqtt = Endpoint(_HERE, ports[1])
        return {"amqp": Endpoint(_HERE, ports[0]), "amqp10": old, "mqtt": mqtt, "mqtt5": mqtt}

    def stopped(self, ports: list[int]) -> list[str]:
        epmd = _which("epmd")
        return [epmd, "-port", str(ports[3]), "-kill"] if epmd else []


@final
class Mosquitto(Peer):
    """Keeps messages in memory and writes them to disk once in a while."""

    name = "mosquitto"
    families = ("mqtt", "mqtt5")

    def find(self) -> str | None:
        return _which("mosquitto")

    def command(self, program: str, folder: Path, ports: list[int]) -> Command:
        (folder / "store").mkdir(exist_ok=True)
        configuration = folder / "mosquitto.conf"
        configuration.write_text(
            f"listener {ports[0]} {_HERE}\nallow_anonymous true\npersistence true\n"
            f"persistence_location {folder / 'store'}/\nmax_inflight_messages {_IN_FLIGHT}\nmax_queued_messages 0\n"
            f"log_type error\nset_tcp_nodelay true\n" + ("user root\n" if os.geteuid() == 0 else "")
        )
        return Command([program, "-c", str(configuration)])

    def endpoints(self, ports: list[int], folder: Path) -> dict[Family, Endpoint]:
        mqtt = Endpoint(_HERE, ports[0])
        return {"mqtt": mqtt, "mqtt5": mqtt}


@final
class Nats(Peer):
    """JetStream with its file store, which acknowledges before the sync."""

    name = "nats"
    families = ("nats",)

    def find(self) -> str | None:
        return _which("nats-server")

    def command(self, program: str, folder: Path, ports: list[int]) -> Command:
        configuration = folder / "nats.conf"
        store = folder / "jetstream"
        configuration.write_text(
            f'listen: "{_HERE}:{ports[0]}"\njetstream {{ store_dir: "{store}", max_file_store: 20G }}\n'
            "max_pending: 1G\n"  # a consumer without acknowledgements is ended when more than that waits for it
        )
        return Command([program, "-c", str(configuration)])

    def endpoints(self, ports: list[int], folder: Path) -> dict[Family, Endpoint]:
        return {"nats": Endpoint(_HERE, ports[0])}


@final
class FluxMq(Peer):
    """Keeps messages in BadgerDB and confirms before the sync. No system has a package: $FLUXMQ names its binary."""

    name = "fluxmq"
    families = ("amqp", "amqp10", "mqtt", "mqtt5")
    ports = 5

    def find(self) -> str | None:
        given = os.environ.get(FLUXMQ, "")
        return shutil.which(given) if given else None

    def command(self, program: str, folder: Path, ports: list[int]) -> Command:
        amqp, amqp10, mqtt, mqtt5, health = [f"{_HERE}:{port}" for port in ports]
        configuration = folder / "fluxmq.yaml"
        settings = {
            "server": {
                "tcp": {"v3": {"addr": mqtt, "protocol": "v3"}, "v5": {"addr": mqtt5, "protocol": "v5"}},
                "amqp": {"plain": {"addr": amqp10}},
                "amqp091": {"plain": {"addr": amqp}},
                "health_enabled": True,
                "health_addr": health,
            },
            "session": {"max_inflight_messages": _IN_FLIGHT},
            "storage": {"type": "badger", "badger_dir": str(folder / "data")},
            "cluster": {"enabled": False},
            "log": {"level": "error"},
        }
        configuration.write_text(json.dumps(settings))  # which YAML reads too
        return Command([program, "--config", str(configuration)])

    def endpoints(self, ports: list[int], folder: Path) -> dict[Family, Endpoint]:
        kinds: tuple[Family, ...] = ("amqp", "amqp10", "mqtt", "mqtt5")
        found = {kind: Endpoint(_HERE, port) for kind, port in zip(kinds, ports, strict=False)}
        found["amqp10"] = replace(found["amqp10"], queue_address="$queue/{}")
        return found


FLUXMQ: Final = "FLUXMQ"
"""The variable of the environment that says where FluxMQ's binary is."""
PEERS: Final[tuple[Peer, ...]] = (Headrace(), RabbitMq(), Mosquitto(), Nats(), FluxMq())


def found_peers() -> list[Peer]:
    """Those that are installed, ours first."""
    return [peer for peer in PEERS if peer.find() is not None]
