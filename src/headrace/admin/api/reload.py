"""The configuration read again while the broker serves."""

from typing import Final

from starlette.responses import Response

from headrace.admin.api.operation import TEXT, Operation, Schema, table
from headrace.admin.pages import Call, answer
from headrace.admin.site import ADMINISTRATOR
from headrace.errors import Unavailable

_NAMES: Final[Schema] = {"type": "array", "items": TEXT}


async def reload(call: Call) -> Response:
    """Apply what can change now; tell what was applied and what needs a restart, once the queues are stored."""
    if call.site.reload is None:
        raise Unavailable("this broker has no configuration to read again")
    done = call.site.reload()
    for name in call.site.hosts.names():
        broker = call.site.hosts.find(name)
        if broker is not None:
            await call.kept(broker)
    return answer(done)


OPERATIONS: Final = (
    Operation(
        "POST",
        "/reload",
        reload,
        "Read the configuration again",
        answer=table(
            ("applied", "created", "altered", "needs_restart"),
            applied=_NAMES,
            created=_NAMES,
            altered=_NAMES,
            needs_restart=_NAMES,
        ),
        needs=ADMINISTRATOR,
    ),
)
