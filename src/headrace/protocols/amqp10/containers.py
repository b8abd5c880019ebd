"""Which containers are connected to a virtual host, and which of them want to be the only one of their id."""

from typing import final

from headrace.errors import ProtocolError
from headrace.protocols.amqp10.frames import CONTAINER_IN_USE


@final
class Containers:
    """The connections of each container id. Sole Connection for Container: the second is refused, the first stays."""

    __slots__ = ("_counts", "_sole")

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._sole: set[str] = set()

    def enter(self, container_id: str, is_sole: bool) -> None:
        """One more connection. Raises ProtocolError (container in use) when it or the one there wants to be alone."""
        count = self._counts.get(container_id, 0)
        if count and (is_sole or container_id in self._sole):
            raise ProtocolError(CONTAINER_IN_USE, f"the container id {container_id[:64]!r} is in use")
        self._counts[container_id] = count + 1
        if is_sole:
            self._sole.add(container_id)

    def leave(self, container_id: str) -> None:
        """One connection less."""
        count = self._counts.pop(container_id) - 1
        if count:
            self._counts[container_id] = count
        else:
            self._sole.discard(container_id)
