"""In which mode a consumer joins a group, work or stream. What the modes mean is in work.py and stream.py."""

from typing import TYPE_CHECKING, Final

from headrace.core.address import effective_group
from headrace.errors import Refused
from headrace.storage.group_state import MODE_NAMES, STREAM, WORK

if TYPE_CHECKING:
    from headrace.core.queue import Queue

STREAM_MODE: Final = STREAM
_MODES: Final = {name: mode for mode, name in MODE_NAMES.items()}


def mode_to_join(queue: "Queue", group: str, asked: str = "") -> int:
    """The mode that is asked for by name, or else that of the queue's type: a stream's, but for its primary group.

    Raises Refused for a mode that makes no sense. Whether the group is in that mode is for the queue to say.
    """
    if asked:
        return _asked(queue, asked)
    definition = queue.definition
    is_primary = group != "" and group == definition.primary_group
    return STREAM if definition.is_stream and not is_primary else WORK


def mode_joined(queue: "Queue | None", group: str, key_filter: str) -> str:
    """The name of the mode that a group is in, "" when there is no such group: for members that come back."""
    found = queue.groups.get(effective_group(group, key_filter)) if queue is not None else None
    return MODE_NAMES[found.state.mode] if found is not None else ""


def _asked(queue: "Queue", asked: str) -> int:
    mode = _MODES.get(asked)
    if mode is None:
        raise Refused(f"group mode {asked[:32]!r} is none of: {', '.join(_MODES)}")
    if mode == STREAM and not queue.definition.is_stream:
        raise Refused(f"queue {queue.name!r} is no stream: its groups are for work")
    return mode
