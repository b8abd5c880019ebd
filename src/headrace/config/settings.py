"""What can be set, one model per room, with defaults and what each setting does. Queues have a table in core.

The tables that files are checked against, the schema and the reference page are all made from these classes.
"""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, TypeVar

from headrace.config.kinds import BY_CERTIFICATE, Address, Choice, Duration, File, Flag, Kind, Number, Port, Size, Text
from headrace.config.replication import MAIN, GroupName
from headrace.config.table import Key, Table, Tables

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
_T = TypeVar("_T")


def _setting(default: _T, kind: Kind, text: str, is_live: bool = False) -> _T:
    return field(default=default, metadata={"kind": kind, "help": text, "is_live": is_live})


@dataclass(frozen=True)
class ListenerSettings:
    """Where clients are served. 0 stands for any free port. Without a certificate there are no TLS listeners."""

    host: str = _setting("127.0.0.1", Text(), "The address to listen on; `0.0.0.0` for all of this machine.")
    amqp: int | None = _setting(5672, Port(), "AMQP 0-9-1 and AMQP 1.0.")
    amqps: int | None = _setting(BY_CERTIFICATE, Port(), "AMQP with TLS; 5671 with a certificate.")
    mqtt: int | None = _setting(1883, Port(), "MQTT 3.1, 3.1.1 and 5.0.")
    mqtts: int | None = _setting(BY_CERTIFICATE, Port(), "MQTT with TLS; 8883 with a certificate.")
    ws: int | None = _setting(8083, Port(), "MQTT over WebSocket; it is also at `/mqtt` of the HTTP port.")
    http: int | None = _setting(15672, Port(), "The admin API, the dashboard and metrics.")
    https: int | None = _setting(BY_CERTIFICATE, Port(), "The same with TLS; 15671 with a certificate.")
    coap: int | None = _setting(None, Port(), "CoAP, over UDP.")


TLS_PORTS: Final = {"amqps": 5671, "mqtts": 8883, "https": 15671}


@dataclass(frozen=True)
class TlsSettings:
    """The certificate of all TLS listeners, in PEM. The files are read again at a reload."""

    certificate: Path | None = _setting(None, File(), "The certificate, with its chain.", True)
    key: Path | None = _setting(None, File(), "The certificate's private key, without a password.", True)
    authority: Path | None = _setting(
        None, File(), "Let only clients in whose certificates these authorities have signed.", True
    )


@dataclass(frozen=True)
class JwtSettings:
    """Logins by JSON web tokens that another service signs: as bearer over HTTP, as the password elsewhere."""

    keys: Path | None = _setting(
        None, File(), "Its public keys, as a JWKS file; read again at a reload. Without it no token is taken.", True
    )
    issuer: str = _setting("", Text(), "Who must have signed (`iss`).", True)
    audience: str = _setting("", Text(), "For whom a token must be meant (`aud`), and how its scopes begin.", True)
    user_claim: str = _setting("sub", Text(), "The claim that names the user.", True)
    scope_claim: str = _setting(
        "", Text(), "The claim with permissions; without one the user's own count, as they are stored.", True
    )
    leeway: int = _setting(10_000, Duration(), "By how much the clocks of both may differ.", True)


@dataclass(frozen=True)
class StorageSettings:
    """What is kept, and where."""

    data: Path = _setting(Path("data"), File(), "The data directory.")
    memory: bool = _setting(False, Flag(), "Keep everything in memory; it is gone at the end.")
    store: str = _setting(
        "", Text(), "Keep everything in an object store: s3://bucket/prefix, gs://, az://, file:///dir or memory://."
    )
    flush_interval: int = _setting(
        20, Duration(1), "How long an object store lets commits come together before it writes them."
    )
    store_timeout: int = _setting(
        30_000, Duration(100), "How long an object store may take before publishers are told that it is away."
    )
    done_retention: int = _setting(
        3_600_000, Duration(), "How long an object store remembers settled messages, 0 for ever."
    )
    tail_bytes: int = _setting(
        24 * _MIB, Size(_MIB, _MOST_BYTES), "New messages that stay in memory before they go to their segments."
    )
    cache_bytes: int = _setting(8 * _MIB, Size(0, _MOST_BYTES), "Blocks of segments that stay in memory once read.")
    segment_bytes: int = _setting(
        64 * _MIB, Size(_MIB, _MOST_BYTES), "How large a segment gets; retention frees whole segments."
    )
    checkpoint_bytes: int = _setting(
        64 * _MIB, Size(16 * _MIB, _MOST_BYTES), "How much of the journal is replayed at a start, at most."
    )


FORWARD: Final = "forward"
REJECT: Final = "reject"
LOCAL_REFUSE: Final = "local-refuse"
REPLICATE: Final = "replicate"
RAFT: Final = "raft"
"""The table within `cluster` in which FluxMQ has the keys below."""
_OF_RAFT: Final = ("write_policy", "distribution_mode")


@dataclass(frozen=True)
class ClusterSettings:
    """Several brokers over one object store, of which one in each group serves. Each needs a name of its own."""

    node: str = _setting("", Text(), "What this broker is called; with a name it is part of a cluster.")
    group: str = _setting(
        MAIN, GroupName(), "The replication group that this broker serves: a database of its own in the store."
    )
    listen: str = _setting("127.0.0.1:25672", Address(), "Where the other nodes reach this one, as host:port.")
    advertise: str = _setting(
        "", Text(), "The host name or address under which nodes and clients reach this machine; that of `listen`."
    )
    lease: int = _setting(
        10_000, Duration(500), "How long an owner that is silent keeps the store, and a takeover takes at most."
    )
    write_policy: str = _setting(
        FORWARD,
        Choice(FORWARD, REJECT, LOCAL_REFUSE),
        "What a node that is not the owner does with clients: hand them on, tell them where the owner is, or refuse.",
    )
    distribution_mode: str = _setting(
        REPLICATE,
        Choice(FORWARD, REPLICATE),
        "Kept: either way the log is in the store that all nodes share, and clients of any node get deliveries.",
    )


@dataclass(frozen=True)
class LogSettings:
    """What the broker says about itself on stderr, one line per event."""

    level: str = _setting("info", Choice(DEBUG, "info", "warning", "error"), "What is said at least.", True)
    format: str = _setting(TEXT_FORMAT, Choice(TEXT_FORMAT, JSON_FORMAT), "For people, or for programs.", True)


@dataclass(frozen=True)
class LimitSettings:
    """How much the broker takes on."""

    unwritten_bytes: int = _setting(
        64 * _MIB, Size(_MIB, _MOST_BYTES), "What is on its way to the disk before publishers have to wait.", True
    )
    memory_bytes: int = _setting(
        1024 * _MIB,
        Size(_MIB, _MOST_BYTES),
        "What queues in memory hold before publishers wait; a quarter of it is for unfinished messages.",
        True,
    )
    stop: int = _setting(
        45_000,
        Duration(1),
        "How long a stop may take in all; then it ends as a kill would, which loses nothing that was confirmed.",
        True,
    )


@dataclass(frozen=True)
class MqttSettings:
    """How much MQTT clients may ask for, and how much is kept for them."""

    max_packet_bytes: int = _setting(64 * _MIB, Size(1024, 256 * _MIB), "The largest packet that a client may send.")
    receive_maximum: int = _setting(
        65_535, Number(1, 65_535), "Messages above QoS 0 that a client may have on the way to the broker."
    )
    topic_alias_maximum: int = _setting(
        256, Number(0, 65_535), "Topic aliases that are kept for a client, in either direction."
    )
    max_keep_alive: int = _setting(
        0, Duration(), "Clients of version 5 that would be silent for longer are told this keep alive; 0 for any."
    )
    max_session_expiry: int = _setting(
        0, Duration(), "How long a session is kept without a connection at most; 0 for as long as the client asks."
    )
    max_sessions: int = _setting(250_000, Number(1), "Sessions in one virtual host, connected or not.")
    max_subscriptions: int = _setting(10_000, Number(1), "Topic filters of one session.")
    session_messages: int = _setting(100_000, Number(1), "Messages that wait for one session that is kept.")
    session_bytes: int = _setting(256 * _MIB, Size(1, _MOST_BYTES), "How large they are together.")
    session_overflow: str = _setting(
        DROP_HEAD,
        Choice(DROP_HEAD, REJECT_PUBLISH),
        "When no more may wait for a session that is kept: the oldest go, or publishers are refused.",
    )
    waiting_messages: int = _setting(
        10_000, Number(1), "Messages that wait in memory for a client that does not keep up; then the oldest go."
    )
    waiting_bytes: int = _setting(16 * _MIB, Size(1, _MOST_BYTES), "How large they are together.")
    prefetch: int = _setting(
        1000, Number(1, 32_767), "Messages of a queue, or that waited for it, which a client may hold at once."
    )
    retained_messages: int = _setting(
        1_000_000, Number(0), "Topics of one virtual host with a retained message; then new ones are refused."
    )
    retained_bytes: int = _setting(256 * _MIB, Size(0, _MOST_BYTES), "How large those messages are together.")


@dataclass(frozen=True)
class QueueManagerSettings:
    """What counts for all queues."""

    shrink: str = _setting(
        REFUSE,
        Choice(REFUSE, DROP),
        "When the limits of a queue become so small that stored messages would go: refuse the change, or drop them.",
        True,
    )
    auto_commit_interval: int = _setting(
        5_000, Duration(1), "How often the progress of stream readers that commit by themselves is stored.", True
    )


@dataclass(frozen=True)
class Settings:
    """Everything but the queues."""

    listeners: ListenerSettings = ListenerSettings()
    tls: TlsSettings = TlsSettings()
    jwt: JwtSettings = JwtSettings()
    storage: StorageSettings = StorageSettings()
    cluster: ClusterSettings = ClusterSettings()
    log: LogSettings = LogSettings()
    limits: LimitSettings = LimitSettings()
    mqtt: MqttSettings = MqttSettings()
    queue_manager: QueueManagerSettings = QueueManagerSettings()


SECTIONS: Final[dict[str, type]] = {part.name: type(part.default) for part in fields(Settings)}


def root(queues: Table) -> Table:
    """The table of a whole file; `queues` is that of one queue."""
    sections = [Key(name, _table(kind), None, kind.__doc__ or "") for name, kind in SECTIONS.items()]
    cluster = _table(ClusterSettings)
    again = [Key(name, cluster.keys[name].kind, None, f"The same as `{name}`.") for name in _OF_RAFT]
    cluster.keys[RAFT] = Key(RAFT, Table(*again), None, "")
    sections = [Key(key.name, cluster, None, key.help) if key.name == "cluster" else key for key in sections]
    return Table(*sections, Key("queues", Tables(queues), None, queues.help, is_live=True))


def build(values: dict[str, Any]) -> Settings:
    """The settings of values that were read by `root`."""
    return Settings(**{name: kind(**values[name]) for name, kind in SECTIONS.items()})


def _table(kind: type) -> Table:
    keys = [
        Key(part.name, part.metadata["kind"], part.default, part.metadata["help"], part.metadata["is_live"])
        for part in fields(kind)
    ]
    return Table(*keys, help=kind.__doc__ or "")
