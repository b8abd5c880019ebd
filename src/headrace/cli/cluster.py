"""`headrace cluster`: the nodes that share a store. Asks one of them, or looks into the store itself."""

from typing import Annotated, Any, Final

import typer

from headrace.cli.client import EXIT_UNAVAILABLE, Client, connected_to_all
from headrace.cli.output import print_facts, print_json, print_rows
from headrace.cli.words import EXIT_PROBLEMS, examples, fail
from headrace.clock import SystemClock
from headrace.config.replication import MAIN
from headrace.errors import HeadraceError, Unavailable

app: Final = typer.Typer(
    help="The nodes that share an object store, and which of them owns what.",
    rich_markup_mode="rich",
    add_completion=False,
    no_args_is_help=True,
    epilog=examples("headrace cluster status", "headrace cluster status --json"),
)

_STORE_MS: Final = 10_000


@app.callback()
def _cluster() -> None:
    pass


@app.command(
    epilog=examples(
        "headrace cluster status",
        "headrace cluster status --json",
        "headrace cluster status --store s3://bucket/prefix",
    )
)
@connected_to_all
def status(
    client: Client,
    as_json: bool,
    store: Annotated[
        str, typer.Option(help="Look into this store instead of asking a node, e.g. when none answers.")
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
    """What all groups have, each with its group."""
    return [{"group": group["group"], **each} for group in found["groups"] for each in group[key]]


_GROUPS: Final = [
    ("group", lambda group: group["group"]),
    ("owner", lambda group: group["owner"] or ("nobody" if group["epoch"] else "no nodes")),
    ("epoch", lambda group: group["epoch"]),
    ("lease", lambda group: _lease(group["lease"])),
]
_NODES: Final = [
    ("group", lambda node: node["group"]),
    ("node", lambda node: node["name"]),
    ("role", lambda node: node["role"]),
    ("version", lambda node: node["version"]),
    ("address", lambda node: node["address"]),
    ("clients", lambda node: ", ".join(f"{name} {address}" for name, address in sorted(node["listeners"].items()))),
    ("seen", lambda node: f"{node['seen_ms'] / 1000:.1f} s ago"),
]
_TAKEOVERS: Final = [
    ("group", lambda takeover: takeover["group"]),
    ("epoch", lambda takeover: takeover["epoch"]),
    ("owner", lambda takeover: takeover["node"]),
    ("at", lambda takeover: _time(takeover["at_us"])),
    ("after", lambda takeover: takeover["cause"]),
]


def _lease(lease: dict[str, Any]) -> str:
    if not lease["duration_ms"]:
        return str(lease["state"])
    return f"{lease['state']}, {lease['age_ms'] / 1000:.1f} s of {lease['duration_ms'] / 1000:g} s"


def _time(at_us: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at_us / 1_000_000, UTC).isoformat(" ", "seconds")


def _read(store: str) -> dict[str, Any]:
    """What the store says, in no need of any broker."""
    try:
        from headrace.cluster.lease import Records
        from headrace.cluster.status import groups_to_json, read_groups
    except ImportError as error:
        fail(f"--store needs obstore ({error}): pip install 'headrace[objects]'", EXIT_PROBLEMS)
    try:
        found = groups_to_json(read_groups(Records(store, MAIN, _STORE_MS, create=False), SystemClock()))
    except Unavailable as error:
        fail(str(error), EXIT_UNAVAILABLE)
    except HeadraceError as error:
        fail(str(error), EXIT_PROBLEMS)
    if not found:
        fail(f"there is no store at {store}: no broker was ever started over it", EXIT_PROBLEMS)
    return {"groups": list(found.values())}
