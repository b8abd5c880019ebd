"""How much is kept for those who are not there: sessions without a connection, subscribers yet to come. Values only."""

from typing import Final, final

from headrace.config.settings import MqttSettings
from headrace.core.definition import QueueDefinition

_MAX_MESSAGE_BYTES: Final = 1 << 30


@final
class Bounds:
    """What may wait for each session of a virtual host, and what may be retained in all of it."""

    __slots__ = ("retained_bytes", "retained_messages", "session")

    def __init__(self, settings: MqttSettings) -> None:
        self.session = QueueDefinition(
            "",
            max_length=settings.session_messages,
            max_length_bytes=settings.session_bytes,
            overflow=settings.session_overflow,
            max_message_bytes=_MAX_MESSAGE_BYTES,
        )
        """What every queue of the broker's own is like, but for its name."""
        self.retained_messages = settings.retained_messages
        self.retained_bytes = settings.retained_bytes


DEFAULT_BOUNDS: Final = Bounds(MqttSettings())
