"""The packets a client sends, as values of one shape for MQTT 3 and 5. No bytes: codec.py makes them.

Fields that MQTT 3 does not have get the default of MQTT 5: an empty list, None, 0.
"""

from typing import Final, final

from headrace.wire.mqtt5 import MessageProperties, UserProperties

CONNECT: Final = 1
CONNACK: Final = 2
PUBLISH: Final = 3
PUBACK: Final = 4
PUBREC: Final = 5
PUBREL: Final = 6
PUBCOMP: Final = 7
SUBSCRIBE: Final = 8
SUBACK: Final = 9
UNSUBSCRIBE: Final = 10
UNSUBACK: Final = 11
PINGREQ: Final = 12
PINGRESP: Final = 13
DISCONNECT: Final = 14
AUTH: Final = 15

NAMES: Final = (
    "packet type 0",
    "CONNECT",
    "CONNACK",
    "PUBLISH",
    "PUBACK",
    "PUBREC",
    "PUBREL",
    "PUBCOMP",
    "SUBSCRIBE",
    "SUBACK",
    "UNSUBSCRIBE",
    "UNSUBACK",
    "PINGREQ",
    "PINGRESP",
    "DISCONNECT",
    "AUTH",
)

V31: Final = 3
V311: Final = 4
V5: Final = 5
VERSION_NAMES: Final = {V31: "MQTT 3.1", V311: "MQTT 3.1.1", V5: "MQTT 5.0"}

RECEIVE_MAXIMUM: Final = 65_535
"""The default of MQTT 5."""


NO_PROPERTIES: Final = MessageProperties(b"")


@final
class Will:
    """The message to publish when the connection is lost."""

    __slots__ = ("payload", "properties", "qos", "retain", "topic")

    def __init__(self, topic: str, payload: bytes, qos: int, retain: bool, properties: MessageProperties) -> None:
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.properties = properties


@final
class Connect:
    __slots__ = (
        "authentication_data",
        "authentication_method",
        "clean_start",
        "client_id",
        "keep_alive_seconds",
        "maximum_packet_bytes",
        "password",
        "receive_maximum",
        "session_expiry_seconds",
        "topic_alias_maximum",
        "user",
        "user_name",
        "version",
        "wants_problem_information",
        "wants_response_information",
        "will",
    )

    def __init__(self, version: int, client_id: str, clean_start: bool, keep_alive_seconds: int) -> None:
        self.version = version
        self.client_id = client_id
        self.clean_start = clean_start
        self.keep_alive_seconds = keep_alive_seconds
        self.will: Will | None = None
        self.user_name: str | None = None
        self.password: bytes | None = None
        # MQTT 3 keeps a session that is not clean for ever; MQTT 5 [3.1.2.11.2].
        self.session_expiry_seconds = 0 if version == V5 or clean_start else 0xFFFF_FFFF
        self.receive_maximum = RECEIVE_MAXIMUM
        self.maximum_packet_bytes = 0
        """0: the client takes packets of any size."""
        self.topic_alias_maximum = 0
        self.wants_response_information = False
        self.wants_problem_information = True
        self.authentication_method: str | None = None
        self.authentication_data = b""
        self.user: UserProperties = []


@final
class Publish:
    """A message; an alias is replaced by its topic."""

    __slots__ = ("dup", "packet_id", "payload", "properties", "qos", "retain", "topic")

    def __init__(
        self,
        topic: str,
        payload: bytes,
        qos: int,
        retain: bool,
        dup: bool,
        packet_id: int,
        properties: MessageProperties,
    ) -> None:
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.dup = dup
        self.packet_id = packet_id
        self.properties = properties


@final
class Acknowledgement:
    """PUBACK, PUBREC, PUBREL or PUBCOMP, as `kind` says."""

    __slots__ = ("kind", "packet_id", "reason", "reason_string", "user")

    def __init__(self, kind: int, packet_id: int, reason: int = 0) -> None:
        self.kind = kind
        self.packet_id = packet_id
        self.reason = reason
        self.reason_string = ""
        self.user: UserProperties = NOTHING_SAID


NOTHING_SAID: Final[UserProperties] = []
"""The user properties of all acknowledgements without any: never to be changed."""


@final
class Subscription:
    """One topic filter of a SUBSCRIBE and its options."""

    __slots__ = ("no_local", "pattern", "qos", "retain_as_published", "retain_handling")

    def __init__(self, pattern: str, options: int) -> None:
        self.pattern = pattern
        self.qos = options & 3
        self.no_local = options & 4 != 0
        self.retain_as_published = options & 8 != 0
        self.retain_handling = options >> 4 & 3


@final
class Subscribe:
    __slots__ = ("identifier", "packet_id", "subscriptions", "user")

    def __init__(
        self, packet_id: int, subscriptions: list[Subscription], identifier: int, user: UserProperties
    ) -> None:
        self.packet_id = packet_id
        self.subscriptions = subscriptions
        self.identifier = identifier
        """0 for none."""
        self.user = user


@final
class Unsubscribe:
    __slots__ = ("packet_id", "patterns", "user")

    def __init__(self, packet_id: int, patterns: list[str], user: UserProperties) -> None:
        self.packet_id = packet_id
        self.patterns = patterns
        self.user = user


@final
class PingRequest:
    __slots__ = ()


@final
class Disconnect:
    __slots__ = ("reason", "reason_string", "session_expiry_seconds", "user")

    def __init__(self, reason: int = 0) -> None:
        self.reason = reason
        self.reason_string = ""
        self.session_expiry_seconds: int | None = None
        self.user: UserProperties = []


@final
class Auth:
    __slots__ = ("data", "method", "reason", "reason_string", "user")

    def __init__(self, reason: int, method: str) -> None:
        self.reason = reason
        self.method = method
        self.data = b""
        self.reason_string = ""
        self.user: UserProperties = []


Packet = Connect | Publish | Acknowledgement | Subscribe | Unsubscribe | PingRequest | Disconnect | Auth
