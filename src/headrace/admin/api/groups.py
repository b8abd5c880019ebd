"""Consumer groups over HTTP: list, show with what is pending, seek, pause, resume, delete."""

from typing import Final

from starlette.responses import Response

from headrace.admin.api.operation import (
    COUNT,
    DEFAULT_LIMIT,
    LIMIT,
    MAX_LIMIT,
    MAX_OFFSET,
    OFFSET,
    PAGED,
    TEXT,
    Operation,
    page_of,
    ref,
    table,
)
from headrace.admin.pages import BadRequest, Call, after, answer, listed
from headrace.admin.slices import sliced
from headrace.admin.views import group_to_json, pending_to_json
from headrace.core.access.permissions import CONFIGURE, QUEUE, READ
from headrace.core.broker import Broker
from headrace.core.queue.group import Group
from headrace.errors import NotFound


async def list_groups(call: Call) -> Response:
    queue = call.broker(call.path("vhost")).topology.queue(call.path("queue"))
    limit = call.number("limit", DEFAULT_LIMIT, 1, MAX_LIMIT)
    names, following = await after(queue.groups, call.text("after"), limit)
    return await listed(
        names, following, lambda name: group_to_json(queue, queue.groups[name]) if name in queue.groups else None
    )


async def show_group(call: Call) -> Response:
    group = _found(call)
    return answer(group_to_json(group.queue, group))


async def list_pending(call: Call) -> Response:
    """What was delivered and is not settled: at most 100,000 entries a group, so a page of them is cut from a list."""
    group = _found(call)
    start = call.number("offset", 0, 0, MAX_OFFSET)
    limit = call.number("limit", DEFAULT_LIMIT, 1, MAX_LIMIT)
    entries = [entry async for entry in sliced(group.pending(), 1000) if entry.offset >= start]
    following = entries[limit].offset if len(entries) > limit else None
    return await listed(entries[:limit], following, pending_to_json)


async def seek_group(call: Call) -> Response:
    broker = _reader(call)
    group = _found(call)
    body = await call.section()
    position = body.get("position")
    body.check_all_read()
    if position is None or position == "":
        raise BadRequest("'position' is missing: first, next, a number, offset=<number> or timestamp=<unix time>")
    broker.groups.seek(group.queue.name, group.name, position)
    return await _changed(call, broker, group)


async def pause_group(call: Call) -> Response:
    broker, group = _reader(call), _found(call)
    broker.groups.pause(group.queue.name, group.name)
    return await _changed(call, broker, group)


async def resume_group(call: Call) -> Response:
    broker, group = _reader(call), _found(call)
    broker.groups.pause(group.queue.name, group.name, is_paused=False)
    return await _changed(call, broker, group)


async def delete_group(call: Call) -> Response:
    host, queue = call.path("vhost"), call.path("queue")
    call.rights(host).check(CONFIGURE, QUEUE, queue)
    group = _found(call)
    broker = call.broker(host)
    unfinished = broker.groups.delete(group.queue.name, group.name)
    await call.stored(broker)
    call.record(f"group {group.name!r} of queue {queue!r} forgotten, {unfinished:,} messages unfinished")
    return answer({"queue": queue, "group": group.name, "messages": unfinished})


def _found(call: Call) -> Group:
    queue = call.broker(call.path("vhost")).topology.queue(call.path("queue"))
    group = queue.groups.get(call.path("group"))
    if group is None:
        raise NotFound(f"queue '{queue.name}' has no group '{call.path('group')}'")
    return group


def _reader(call: Call) -> Broker:
    call.rights(call.path("vhost")).check(READ, QUEUE, call.path("queue"))
    return call.broker(call.path("vhost"))


async def _changed(call: Call, broker: Broker, group: Group) -> Response:
    await call.stored(broker)
    return answer(group_to_json(group.queue, group))


_GROUPS: Final = "/queues/{vhost}/{queue}/groups"
_GROUP: Final = _GROUPS + "/{group}"
_POSITION: Final = {"type": ["string", "integer"], "description": "first, next, an offset, or timestamp=<unix time>"}

OPERATIONS: Final = (
    Operation("GET", _GROUPS, list_groups, "List the groups of a queue", PAGED, answer=page_of("Group")),
    Operation("GET", _GROUP, show_group, "How far a group is", answer=ref("Group")),
    Operation(
        "GET",
        _GROUP + "/pending",
        list_pending,
        "What is delivered and not settled",
        {"offset": OFFSET, "limit": LIMIT},
        answer=page_of("Pending"),
    ),
    Operation(
        "POST",
        _GROUP + "/seek",
        seek_group,
        "Have a stream group go on reading elsewhere",
        body=table(("position",), position=_POSITION),
        answer=ref("Group"),
    ),
    Operation("POST", _GROUP + "/pause", pause_group, "Deliver nothing until resumed", answer=ref("Group")),
    Operation("POST", _GROUP + "/resume", resume_group, "Deliver again", answer=ref("Group")),
    Operation(
        "DELETE",
        _GROUP,
        delete_group,
        "Forget a group that nobody reads in",
        answer=table(
            ("queue", "group", "messages"),
            queue=TEXT,
            group=TEXT,
            messages={**COUNT, "description": "Messages that it had not finished."},
        ),
    ),
)
