"""The groups that read a queue: made, found again, forgotten, sent away. What they do is in group.py.

The queue has them, as it goes through them for every message.
"""

from typing import TYPE_CHECKING

from headrace.core.follower import is_cursor
from headrace.core.group import Group
from headrace.core.stream import StreamGroup
from headrace.core.turn import Turn
from headrace.core.work import WorkGroup
from headrace.errors import Refused
from headrace.storage.group_state import MODE_NAMES, WORK, GroupState

if TYPE_CHECKING:
    from headrace.core.queue import Queue


def restore_groups(queue: "Queue") -> list[GroupState]:
    """Have the groups that are stored; what places other queues have in this one is theirs alone."""
    states = [state for state in queue.log.groups.values() if not is_cursor(state.name)]
    for state in states:
        _add_group(queue, state.copy(), True)
    return states


def group_named(
    queue: "Queue", turn: Turn, name: str, mode: int, key_filter: str = "", auto_commit: bool = True
) -> Group:
    """The group of that name, new if need be. Raises Refused when it is of the other mode."""
    group = queue.groups.get(name)
    if group is None:
        if is_cursor(name):
            raise Refused(f"group {name!r} of queue {queue.name!r} is the broker's own; use another name")
        start = queue.first_offset
        turn.commit_for(queue).create_group(queue.log.name, name, mode, key_filter, start)
        group = _add_group(queue, GroupState(name, mode, key_filter, start), auto_commit)
        queue.depth.count()
    elif group.state.mode != mode:
        raise Refused(
            f"ErrGroupModeMismatch: group {name!r} of queue {queue.name!r} is in {MODE_NAMES[group.state.mode]} "
            f"mode; use another group, or delete this one first"
        )
    elif group.state.filter != key_filter:
        raise Refused(f"group {name!r} of queue {queue.name!r} has the filter {group.state.filter!r}")
    return group


def remove_group(queue: "Queue", turn: Turn, name: str) -> None:
    """Forget a group. Raises Refused while it has consumers or when there is none."""
    group = queue.groups.get(name)
    if group is None:
        raise Refused(f"queue {queue.name!r} has no group {name!r}")
    if len(group.consumers):
        raise Refused(f"group {name!r} of queue {queue.name!r} has consumers; they must leave first")
    del queue.groups[name]
    queue.look_at_groups()
    group.close()
    turn.commit_for(queue).delete_group(queue.log.name, name)
    turn.touch(queue)
    queue.depth.count()


def send_away(queue: "Queue") -> None:
    """The queue is gone for its consumers: they hold nothing of it any more, and are told."""
    for group in queue.groups.values():
        consumers = list(group.consumers)
        group.close()
        for consumer in consumers:
            if consumer.cancelled is not None:
                consumer.cancelled()
    browsers, queue.browsers = queue.browsers, ()
    for browser in browsers:
        browser.ended()


def _add_group(queue: "Queue", state: GroupState, auto_commit: bool) -> Group:
    group: Group = WorkGroup(queue, state) if state.mode == WORK else StreamGroup(queue, state, auto_commit)
    queue.groups[state.name] = group
    queue.look_at_groups()
    return group
