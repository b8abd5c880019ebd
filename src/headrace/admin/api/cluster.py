"""The cluster that the broker is part of. Who owns what is decided elsewhere."""

from typing import Final

from starlette.responses import Response

from headrace.admin.api.operation import COUNT, TABLE, TEXT, Operation, table
from headrace.admin.pages import Call, answer
from headrace.admin.site import MONITORING

ALONE: Final = "alone"


async def cluster(call: Call) -> Response:
    """All nodes and who of them is the owner, of this broker's group and of all; of a broker on its own, that it is."""
    standing = call.site.standing
    if standing is None:
        return answer({"role": ALONE, "owner": "", "epoch": 0, "nodes": [], "takeovers": [], "groups": []})
    return answer(dict(await standing.status()))


OPERATIONS: Final = (
    Operation(
        "GET",
        "/cluster",
        cluster,
        "The nodes that share a store, and which of them owns it",
        needs=MONITORING,
        answer=table(
            ("role", "owner", "epoch", "nodes", "takeovers", "groups"),
            node=TEXT,
            role=TEXT,
            write_policy=TEXT,
            group=TEXT,
            owner=TEXT,
            epoch=COUNT,
            lease=TABLE,
            nodes={"type": "array", "items": TABLE},
            takeovers={"type": "array", "items": TABLE},
            groups={"type": "array", "items": TABLE},
        ),
    ),
)
