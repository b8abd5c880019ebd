"""`headrace cluster`: the nodes that share a store, as one of them or the store itself tells."""

from typing import Annotated, Any, Final

import typer

from headrace.cli.client import EXIT_UNAVAILABLE, Client, connected
from headrace.cli.output import Column, command_group, fail, print_facts, print_json, print_rows
from headrace.clock import SystemClock
from headrace.config.replication import MAIN
from headrace.errors import HeadraceError, Unavailable, missing_extra
from headrace.process import EXIT_PROBLEMS

app: Final = command_group(
    "The nodes that share an object store, and the owners of its groups.",
    "headrace cluster status",
    "headrace cluster status --json",
)

_STORE_MS: Final = 10_000


@app.callback()
def _cluster() -> None:
    pass


@connected(
    app,
    "headrace cluster status",
    "headrace cluster status --json",
    "headrace cluster status --store s3://bucket/prefix",
    has_host=False,
)
def status(
    client: Client,
    as_json: bool,
    store: Annotated[
        str, typer.Option(help="Read this store instead of asking a node, for example when no node answers.")
    ] = "",
) -> None:
    """Show all replication groups of the store: who owns each, its nodes, and the last takeovers."""
    found = _read(store) if store else client.get("cluster")
    if as_json:
        print_json(found)
        return
    if "role" in found:
        asked = {"node": found["node"], "group": found["group"]} if "group" in found else {}
        print_facts({**asked, "role": found["role"]}, as_json)
    print_rows(_GROUPS, found["groups"], as_json)
    for columns, rows in ((_NODES, _all(found, "nodes")), (_TAKEOVERS, _all(found, "takeovers"))):
        if rows:
            print_rows(columns, rows, as_json)


def _all(found: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """Return the entries of all groups under this key, each with its group."""
    return [{"group": group["group"], **each} for group in found["groups"] for each in group[key]]


_GROUPS: Final[list[Column]] = [
    "group",
    ("owner", lambda group: group["owner"] or ("nobody" if group["epoch"] else "no nodes")),
    "epoch",
    ("lease", lambda group: _lease(group["lease"])),
]
_NODES: Final[list[Column]] = [
    "group",
    ("node", "name"),
    "role",
    "version",
    "address",
    ("clients", lambda node: ", ".join(f"{name} {address}" for name, address in sorted(node["listeners"].items()))),
    ("seen", lambda node: f"{node['seen_ms'] / 1000:.1f} s ago"),
]
_TAKEOVERS: Final[list[Column]] = [
    "group",
    "epoch",
    ("owner", "node"),
    ("at", lambda takeover: _time(takeover["at_us"])),
    ("after", "cause"),
]


def _lease(lease: dict[str, Any]) -> str:
    if not lease["duration_ms"]:
        return str(lease["state"])
    return f"{lease['state']}, {lease['age_ms'] / 1000:.1f} s of {lease['duration_ms'] / 1000:g} s"


def _time(at_us: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at_us / 1_000_000, UTC).isoformat(" ", "seconds")


def _read(store: str) -> dict[str, Any]:
    """Read the groups from the store, without a broker."""
    try:
        from headrace.cluster.lease import Records
        from headrace.cluster.status import groups_to_json, read_groups
    except ImportError as error:
        fail(str(missing_extra("--store", "objects", error)), EXIT_PROBLEMS)
    try:
        found = groups_to_json(read_groups(Records(store, MAIN, _STORE_MS, create=False), SystemClock()))
    except Unavailable as error:
        fail(str(error), EXIT_UNAVAILABLE)
    except HeadraceError as error:
        fail(str(error), EXIT_PROBLEMS)
    if not found:
        fail(f"there is no store at {store}: no broker was ever started over it", EXIT_PROBLEMS)
    return {"groups": list(found.values())}
