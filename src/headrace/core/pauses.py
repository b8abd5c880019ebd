"""Which groups are paused: kept in storage, over restarts too. What pausing means is group.py's."""

import json
from typing import TYPE_CHECKING, final

from headrace.core.group import Group
from headrace.core.turn import Turn
from headrace.storage.api import PAUSES, Engine

if TYPE_CHECKING:
    from headrace.core.queue import Queue


@final
class Pauses:
    """The paused groups of one virtual host."""

    def __init__(self, engine: Engine) -> None:
        self._keys = {key for key, _ in engine.items(PAUSES)}

    def restore(self, queue: "Queue") -> None:
        """Have the groups paused that were when the broker stopped."""
        if self._keys:
            for group in queue.groups.values():
                group.is_paused = _key(group) in self._keys

    def set(self, turn: Turn, group: Group, is_paused: bool) -> None:
        group.is_paused = is_paused
        if not group.queue.durable:
            return
        if is_paused:
            self._keys.add(_key(group))
            turn.durable.put(PAUSES, _key(group), b"")
        else:
            self._keys.discard(_key(group))
            turn.durable.delete(PAUSES, _key(group))

    def forget(self, turn: Turn, group: Group) -> None:
        """The group is gone."""
        if group.is_paused:
            self.set(turn, group, False)


def _key(group: Group) -> bytes:
    return json.dumps([group.queue.log.name, group.name], ensure_ascii=False).encode()
