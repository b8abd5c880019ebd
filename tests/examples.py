"""Every example in the help of every command, as a person would type it."""

from collections.abc import Iterator
from typing import Any

import bench.compare.__main__ as bench
import typer

from headrace import cli

_GAP = "   "


def examples() -> list[tuple[str, str]]:
    """The command, as `queues list`, and the line."""
    return list(_of("", typer.main.get_command(cli.cli)))


def bench_examples() -> list[str]:
    """The examples of `python -m bench.compare`, without `python -m`."""
    lines = str(typer.main.get_command(bench.app).epilog).split("\n\n")[1:]
    return [line.split(_GAP)[0].strip().removeprefix("python -m ") for line in lines]


def _of(name: str, command: Any) -> Iterator[tuple[str, str]]:
    assert command.epilog or hasattr(command, "commands"), f"headrace {name} has no examples"
    for line in str(command.epilog or "").split("\n\n")[1:]:
        if "headrace " not in line:
            continue  # a file that the examples read
        yield name, line.split(_GAP)[0].strip()
    if hasattr(command, "list_commands"):
        for each in command.list_commands(None):
            yield from _of(f"{name} {each}".strip(), command.get_command(None, each))
