"""`headrace cluster`: the nodes that share a store. Asks one of them, or looks into the store itself."""

from typing import Annotated, Any, Final

import typer

from headrace.cli.client import EXIT_UNAVAILABLE, Client, connected_to_all
from headrace.cli.output import print_facts, print_json, print_rows
from headrace.cli.words import EXIT_PROBLEMS, examples, fail
from headrace.clock import SystemClock
from headrace.errors import HeadraceError, Unavailable

app: Final = typer.Typer(
    help="The nodes that share an object store, and which of them owns it.",
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
        "headrace cluster status --store s3://bucket/headrace",
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
    """Show who owns the store, all nodes, and the last takeovers."""
    found = _read(store) if store else client.get("cluster")
    if as_json:
        print_json(found)
        return
    lease = found.get("lease") or {}
    print_facts(
        {
            "owner": found["owner"] or "nobody",
            "epoch": found["epoch"],
            **(
                {"lease": f"{lease['state']}, {lease['age_ms'] / 1000:.1f} s of {lease['duration_ms'] / 1000:g} s"}
                if lease
                else {}
            ),
        },
        as_json,
    )
    print_rows(_NODES, found["nodes"], as_json)
    if found["takeovers"]:
        print_rows(_TAKEOVERS, found["takeovers"], as_json)


_NODES: Final = [
    ("node", lambda node: node["name"]),
    ("role", lambda node: node["role"]),
    ("version", lambda node: node["version"]),
    ("address", lambda node: node["address"]),
    ("clients", lambda node: ", ".join(f"{name} {address}" for name, address in sorted(node["listeners"].items()))),
    ("seen", lambda node: f"{node['seen_ms'] / 1000:.1f} s ago"),
]
_TAKEOVERS: Final = [
    ("epoch", lambda takeover: takeover["epoch"]),
    ("owner", lambda takeover: takeover["node"]),
    ("at", lambda takeover: _time(takeover["at_us"])),
    ("after", lambda takeover: takeover["cause"]),
]


def _time(at_us: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at_us / 1_000_000, UTC).isoformat(" ", "seconds")


def _read(store: str) -> dict[str, Any]:
    """What the store says, in no need of any broker."""
    try:
        from headrace.cluster.member import GROUP
        from headrace.cluster.records import Records
        from headrace.cluster.status import read_status
    except ImportError as error:
        fail(f"--store needs obstore ({error}): pip install 'headrace[objects]'", EXIT_PROBLEMS)
    try:
        return read_status(Records(store, GROUP, _STORE_MS), SystemClock()).to_json()
    except Unavailable as error:
        fail(str(error), EXIT_UNAVAILABLE)
    except HeadraceError as error:
        fail(str(error), EXIT_PROBLEMS)
