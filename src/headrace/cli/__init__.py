"""The `headrace` command: one file per noun, loaded when its command runs. Other rooms do the work."""

import importlib
from typing import Annotated, Any, Final, final

import typer
from typer.core import TyperGroup

from headrace.cli.output import examples
from headrace.version import IS_COMPILED, __version__

_COMMANDS: Final = {
    "serve": "headrace.cli.serve",
    "demo": "headrace.cli.demo",
    "publish": "headrace.cli.publish",
    "consume": "headrace.cli.consume",
    "queues": "headrace.cli.queues",
    "groups": "headrace.cli.groups",
    "dlq": "headrace.cli.dlq",
    "config": "headrace.cli.config",
    "backup": "headrace.cli.backup",
    "doctor": "headrace.cli.doctor",
    "users": "headrace.cli.users",
    "permissions": "headrace.cli.permissions",
    "vhosts": "headrace.cli.vhosts",
    "policies": "headrace.cli.policies",
    "migrate": "headrace.cli.migrate",
    "shovel": "headrace.cli.shovel",
    "cluster": "headrace.cli.cluster",
    "pipeline": "headrace.cli.pipeline",
}
"""Each command and the module whose `app` it is."""


@final
class _Commands(TyperGroup):
    """Loads the module of the command that runs; `headrace --version` loads none."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _plain_flags(super().get_params(ctx))

    def list_commands(self, ctx: object) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: object, cmd_name: str) -> Any:
        module = _COMMANDS.get(cmd_name)
        if module is None:
            return None
        command = typer.main.get_command(importlib.import_module(module).app)
        command.name = cmd_name
        _show_plain_flags(command)
        return command


def _show_plain_flags(command: Any) -> None:
    """Let the help of a command and its subcommands show a flag as a flag: typer writes <bool> behind it."""
    get_params = command.get_params
    command.get_params = lambda context: _plain_flags(get_params(context))
    for inner in getattr(command, "commands", {}).values():
        _show_plain_flags(inner)


def _plain_flags(parameters: list[Any]) -> list[Any]:
    for each in parameters:
        if getattr(each, "is_flag", False):
            each.metavar = ""
    return parameters


cli: Final = typer.Typer(
    name="headrace",
    cls=_Commands,
    help="A durable message broker whose log is ready for Spark.",
    epilog=examples(
        "headrace serve                       keep everything in ./data",
        "headrace serve --memory              keep nothing, for trying things out",
        "headrace publish orders hello        put a message into a queue",
        "headrace consume orders              and take it out again",
        "headrace queues list                 what there is",
        "headrace doctor data                 verify a data directory",
        "headrace users add ann               let somebody in",
    ),
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command that the arguments name."""
    cli(prog_name="headrace")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"headrace {__version__} ({'compiled' if IS_COMPILED else 'interpreted'})")
        raise typer.Exit


@cli.callback()
def _headrace(
    version: Annotated[
        bool, typer.Option("--version", help="Say which release this is.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    pass
