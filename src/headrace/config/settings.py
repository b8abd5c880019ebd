"""Settings: one model per room, with defaults and the meaning of each. Queues have a table in core.

The reader of files, the JSON schema and the reference page are made from these models.
"""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

from headrace.config.kinds import (
    BY_CERTIFICATE,
    MAX_NUMBER,
    Address,
    Choice,
    Duration,
    File,
    Flag,
    Name,
    Number,
    Object,
    Port,
    Size,
    Text,
)
from headrace.config.replication import MAIN, GroupName
from headrace.config.table import Key, Table, Tables, option, table_of

DEFAULT_FILE: Final = Path("headrace.yaml")
REFUSE: Final = "refuse"
DROP: Final = "drop"
DROP_HEAD: Final = "drop-head"
REJECT_PUBLISH: Final = "reject-publish"
DEBUG: Final = "debug"
TEXT_FORMAT: Final = "text"
JSON_FORMAT: Final = "json"
_MIB: Final = 1 << 20
_MOST_BYTES: Final = 1 << 40


@dataclass(frozen=True)
class ListenerSettings:
    """Ports for clients; 0 is any free port. TLS listeners need a certificate."""

    host: str = option("127.0.0.1", Text(), "Address to listen on; `0.0.0.0` for all of this machine.")
    amqp: int | None = option(5672, Port(), "AMQP 0-9-1 and AMQP 1.0.")
    amqps: int | None = option(BY_CERTIFICATE, Port(), "AMQP with TLS; 5671 with a certificate.")
    mqtt: int | None = option(1883, Port(), "MQTT 3.1, 3.1.1 and 5.0.")
    mqtts: int | None = option(BY_CERTIFICATE, Port(), "MQTT with TLS; 8883 with a certificate.")
    stream: int | None = option(None, Port(), "RabbitMQ's stream protocol, usually 5552.")
    streams: int | None = option(None, Port(), "The same with TLS, usually 5551; needs a certificate.")
    stomp: int | None = option(None, Port(), "STOMP 1.0, 1.1 and 1.2; RabbitMQ has it on 61613.")
    stomps: int | None = option(None, Port(), "STOMP with TLS; RabbitMQ has it on 61614.")
    ws: int | None = option(8083, Port(), "MQTT over WebSocket; also at `/mqtt` of the HTTP port.")
    http: int | None = option(15672, Port(), "The admin API, the dashboard and metrics.")
    https: int | None = option(BY_CERTIFICATE, Port(), "The same with TLS; 15671 with a certificate.")
    coap: int | None = option(None, Port(), "CoAP, over UDP.")


TLS_PORTS: Final = {"amqps": 5671, "mqtts": 8883, "streams": 5551, "https": 15671}


@dataclass(frozen=True)
class TlsSettings:
    """Certificate of all TLS listeners, in PEM. A reload reads the files again."""

    certificate: Path | None = option(None, File(), "Certificate with its chain.", True)
    key: Path | None = option(None, File(), "Private key of the certificate, without a password.", True)
    authority: Path | None = option(
        None, File(), "Authorities; only clients with a certificate that they signed may connect.", True
    )


@dataclass(frozen=True)
class JwtSettings:
    """Logins by JSON web tokens of another service: as bearer over HTTP, as the password elsewhere."""

    keys: Path | None = option(
        None,
        File(),
        "Public keys of the service, as a JWKS file; a reload reads it again. Without it tokens are refused.",
        True,
    )
    issuer: str = option("", Text(), "Issuer that a token must name (`iss`).", True)
    audience: str = option("", Text(), "Audience that a token must name (`aud`), and prefix of its scopes.", True)
    user_claim: str = option("sub", Text(), "Claim that names the user.", True)
    scope_claim: str = option(
        "", Text(), "Claim with permissions; without it, the stored permissions of the user count.", True
    )
    leeway: int = option(10_000, Duration(), "Tolerated difference between both clocks.", True)


@dataclass(frozen=True)
class StorageSettings:
    """Storage of messages: the place and its settings."""

    data: Path = option(Path("data"), File(), "Data directory.")
    memory: bool = option(False, Flag(), "Store everything in memory; a stop loses it.")
    store: str = option(
        "", Text(), "Object store for everything: s3://bucket/prefix, gs://, az://, file:///dir or memory://."
    )
    flush_interval: int = option(
        20, Duration(1), "Time for which commits are collected before they are written to an object store."
    )
    store_timeout: int = option(
        30_000, Duration(100), "Time after which publishers are refused if an object store does not answer."
    )
    done_retention: int = option(
        3_600_000, Duration(), "Time for which an object store keeps settled messages; 0 for ever."
    )
    tail_bytes: int = option(
        24 * _MIB, Size(_MIB, _MOST_BYTES), "New messages held in memory before they go to their segments."
    )
    cache_bytes: int = option(8 * _MIB, Size(0, _MOST_BYTES), "Cache for blocks of segments.")
    segment_bytes: int = option(
        64 * _MIB, Size(_MIB, _MOST_BYTES), "Size of a segment; retention frees whole segments."
    )
    checkpoint_bytes: int = option(64 * _MIB, Size(16 * _MIB, _MOST_BYTES), "Most that a start replays of the journal.")


FORWARD: Final = "forward"
REJECT: Final = "reject"
LOCAL_REFUSE: Final = "local-refuse"
REPLICATE: Final = "replicate"
RAFT: Final = "raft"
"""Table within `cluster` in which FluxMQ has the keys below."""
_OF_RAFT: Final = ("write_policy", "distribution_mode")


@dataclass(frozen=True)
class ClusterSettings:
    """Brokers over one object store, of which one in each replication group serves. Each needs its own name."""

    node: str = option("", Text(), "Name of this broker; a broker with a name is part of a cluster.")
    group: str = option(
        MAIN, GroupName(), "Replication group that this broker serves; each has a database in the store."
    )
    listen: str = option("127.0.0.1:25672", Address(), "Address for the other nodes, as host:port.")
    advertise: str = option(
        "", Text(), "Host name or address of this machine for nodes and clients; by default that of `listen`."
    )
    lease: int = option(
        10_000, Duration(500), "Time for which a silent owner keeps the store; a takeover takes no longer."
    )
    write_policy: str = option(
        FORWARD,
        Choice(FORWARD, REJECT, LOCAL_REFUSE),
        "A node that is not the owner forwards clients, tells them the owner's address, or refuses them.",
    )
    distribution_mode: str = option(
        REPLICATE,
        Choice(FORWARD, REPLICATE),
        "Accepted without effect: all nodes share the store, and clients of any node get deliveries.",
    )


@dataclass(frozen=True)
class LogSettings:
    """Log of the broker on stderr, one line per event."""

    level: str = option("info", Choice(DEBUG, "info", "warning", "error"), "Least level of a line.", True)
    format: str = option(TEXT_FORMAT, Choice(TEXT_FORMAT, JSON_FORMAT), "Form for people, or for programs.", True)


@dataclass(frozen=True)
class LimitSettings:
    """Bounds on memory and time."""

    unwritten_bytes: int = option(
        64 * _MIB, Size(_MIB, _MOST_BYTES), "Bytes on their way to the disk before publishers have to wait.", True
    )
    memory_bytes: int = option(
        1024 * _MIB,
        Size(_MIB, _MOST_BYTES),
        "Bytes that queues in memory hold before publishers wait; a quarter is for unfinished messages.",
        True,
    )
    stop: int = option(
        45_000,
        Duration(1),
        "Longest stop; then the process exits as if killed, which loses nothing confirmed.",
        True,
    )


@dataclass(frozen=True)
class MqttSettings:
    """Bounds on MQTT clients and their sessions."""

    max_packet_bytes: int = option(64 * _MIB, Size(1024, 256 * _MIB), "Largest packet that a client may send.")
    receive_maximum: int = option(65_535, Number(1, 65_535), "Unconfirmed messages above QoS 0 of a client.")
    topic_alias_maximum: int = option(256, Number(0, 65_535), "Topic aliases of a client in either direction.")
    max_keep_alive: int = option(0, Duration(), "Longest keep alive for clients of version 5; 0 for any.")
    max_session_expiry: int = option(
        0, Duration(), "Longest life of a session without a connection; 0 for as long as the client asks."
    )
    max_sessions: int = option(250_000, Number(1), "Sessions of a virtual host, connected or not.")
    max_subscriptions: int = option(10_000, Number(1), "Topic filters of a session.")
    session_messages: int = option(100_000, Number(1), "Messages that wait for a persistent session.")
    session_bytes: int = option(256 * _MIB, Size(1, _MOST_BYTES), "Bytes of these messages.")
    session_overflow: str = option(
        DROP_HEAD,
        Choice(DROP_HEAD, REJECT_PUBLISH),
        "Persistent session that is full: drop the oldest messages, or refuse publishers.",
    )
    waiting_messages: int = option(
        10_000, Number(1), "Messages that wait in memory for a slow client; beyond it, the oldest are dropped."
    )
    waiting_bytes: int = option(16 * _MIB, Size(1, _MOST_BYTES), "Bytes of these messages.")
    prefetch: int = option(1000, Number(1, 32_767), "Unsettled messages that a client may hold.")
    retained_messages: int = option(1_000_000, Number(0), "Retained messages of a virtual host; more are refused.")
    retained_bytes: int = option(256 * _MIB, Size(0, _MOST_BYTES), "Bytes of these messages.")


@dataclass(frozen=True)
class QueueManagerSettings:
    """Settings of all queues."""

    shrink: str = option(
        REFUSE,
        Choice(REFUSE, DROP),
        "New limits of a queue that would drop stored messages: refuse the change, or drop them.",
        True,
    )
    auto_commit_interval: int = option(
        5_000, Duration(1), "Interval at which the progress of auto-committing stream readers is stored.", True
    )


@dataclass(frozen=True)
class Settings:
    """Everything but the queues."""

    listeners: ListenerSettings = option(ListenerSettings(), ListenerSettings)
    tls: TlsSettings = option(TlsSettings(), TlsSettings)
    jwt: JwtSettings = option(JwtSettings(), JwtSettings)
    storage: StorageSettings = option(StorageSettings(), StorageSettings)
    cluster: ClusterSettings = option(ClusterSettings(), ClusterSettings)
    log: LogSettings = option(LogSettings(), LogSettings)
    limits: LimitSettings = option(LimitSettings(), LimitSettings)
    mqtt: MqttSettings = option(MqttSettings(), MqttSettings)
    queue_manager: QueueManagerSettings = option(QueueManagerSettings(), QueueManagerSettings)


QUEUES: Final = "queues"
EXCHANGES: Final = "exchanges"
ALL: Final = "all"
APPLY_TO: Final = (QUEUES, "classic_queues", "quorum_queues", "streams", EXCHANGES, ALL)
"""Things that a policy may be for."""
_MAX_NAME_BYTES: Final = 255
_POLICY: Final = Table(
    Key("vhost", Name(_MAX_NAME_BYTES), "/", "Virtual host of the policy; created if missing."),
    Key("name", Name(_MAX_NAME_BYTES), None, "Name of the policy."),
    Key("pattern", Text(), "", "Regular expression that names must match anywhere."),
    Key("apply_to", Choice(*APPLY_TO), ALL, "Things that the policy is for."),
    Key(
        "priority",
        Number(-MAX_NUMBER, expected="must be a whole number"),
        0,
        "Of those that match, the highest counts.",
    ),
    Key("operator", Flag(), False, "True for an operator policy: of its limits and others, the stricter counts."),
    Key("definition", Object(), None, "Settings by RabbitMQ's names, such as `message-ttl: 60000`."),
    help="Policies that the broker creates, or replaces, at a start and at a reload.",
    required=("name", "pattern", "definition"),
)

SECTIONS: Final[dict[str, type]] = {part.name: type(part.default) for part in fields(Settings)}


def root(queues: Table) -> Table:
    """Return the table of a whole file; `queues` is the table of one queue."""
    sections = {name: Key(name, table_of(model), None, model.__doc__ or "") for name, model in SECTIONS.items()}
    cluster = table_of(ClusterSettings)
    again = [Key(name, cluster.keys[name].kind, None, f"The same as `{name}`.") for name in _OF_RAFT]
    with_raft = Table(*cluster.keys.values(), Key(RAFT, Table(*again), None, ""), help=cluster.help)
    sections["cluster"] = Key("cluster", with_raft, None, cluster.help)
    policies = Key("policies", Tables(_POLICY), None, _POLICY.help, is_live=True)
    return Table(*sections.values(), Key("queues", Tables(queues), None, queues.help, is_live=True), policies)
