"""`headrace config`: check a configuration, show its settings, print its schema."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.table import Table

from headrace.cli.output import announce, command, command_group, count, fail, line, print_json, table_console
from headrace.config.configuration import Configuration
from headrace.config.kinds import Kind
from headrace.config.reference import schema as make_schema
from headrace.config.settings import SECTIONS, root
from headrace.config.table import Fault
from headrace.core.policies import wanted_policies
from headrace.core.queue.configured import FILE_QUEUE, wanted_queues
from headrace.core.queue.definition import QueueDefinition
from headrace.errors import Refused
from headrace.launch import Launch
from headrace.process import EXIT_USAGE

app: Final = command_group(
    "Check, show and describe the configuration of a broker.",
    "headrace config check headrace.yaml",
    "headrace config show",
    "headrace config schema > headrace.schema.json",
)

_File = Annotated[
    Path | None, typer.Argument(help="The file (default: headrace.yaml, where there is one).", show_default=False)
]


@command(
    app,
    "headrace config check",
    "headrace config check /etc/headrace/headrace.yaml",
    "headrace config check headrace.yaml --json     a list of problems",
)
def check(
    file: _File = None, as_json: Annotated[bool, typer.Option("--json", help="Print the problems as JSON.")] = False
) -> None:
    """Say whether `headrace serve` could use this configuration, the environment included.

    Exit code 0: it could. 2: it could not; every problem is printed.
    """
    try:
        configuration, queues = _load(file)
    except Refused as error:
        if as_json:
            print_json({"problems": str(error).splitlines()})
            raise typer.Exit(EXIT_USAGE) from error
        fail(str(error), EXIT_USAGE)
    source = configuration.document.file
    warnings = [*configuration.warnings, *[text for queue in queues for text in queue.warnings]]
    if as_json:
        found: dict[str, object] = {
            "file": None if source is None else str(source),
            "queues": len(queues),
            "problems": [],
            "warnings": warnings,
        }
        print_json(found)
    else:
        for text in warnings:
            announce(text)
        verdict = f"it can be used, with {count(len(warnings), 'warning')}" if warnings else "nothing is wrong"
        typer.echo(f"{source or 'no file'}: {verdict}; {count(len(queues), 'queue')}")


@command(app, "headrace config show", "headrace config show headrace.yaml --json")
def show(
    file: _File = None, as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False
) -> None:
    """Show every setting with its value, and the file, variable or flag that set it."""
    configuration, queues = _read(file)
    if as_json:
        values: dict[str, object] = {name: _values(configuration, name) for name in SECTIONS}
        values["queues"] = [definition.to_json() for definition in queues]
        print_json(values)
        return
    console = table_console()
    table = Table(header_style="bold")
    for name in ("key", "value", "set by"):
        table.add_column(name, overflow="fold")
    for section in SECTIONS:
        for name, value in _values(configuration, section).items():
            table.add_row(f"{section}.{name}", str(value), configuration.origins.get((section, name), ""))
    console.print(table)
    for definition in queues:
        line(console, f"queue {definition.name}: {definition.kind}")


@command(app, "headrace config schema > headrace.schema.json")
def schema() -> None:
    """Print the JSON schema of the file."""
    typer.echo(json.dumps(make_schema(root(FILE_QUEUE)), indent=1))


def _read(file: Path | None) -> tuple[Configuration, list[QueueDefinition]]:
    try:
        return _load(file)
    except Refused as error:
        fail(str(error), EXIT_USAGE)


def _load(file: Path | None) -> tuple[Configuration, list[QueueDefinition]]:
    """Read the configuration and its queues. Raises Refused."""
    configuration = Launch(file).read()
    try:
        wanted_policies(configuration.policies)
        return configuration, [each.definition for each in wanted_queues(configuration.queues)]
    except Fault as fault:
        raise configuration.located(fault) from fault


def _values(configuration: Configuration, section: str) -> dict[str, object]:
    found: dict[str, object] = {}
    for part in fields(SECTIONS[section]):
        kind: Kind = part.metadata["kind"]
        value = getattr(getattr(configuration.settings, section), part.name)
        found[part.name] = kind.plain(value) if kind.show(value) else None
    return found
