"""`headrace pipeline`: data pipelines over queues, on Spark. What they do is in spark/pipelines; here is how they are
asked for and shown. Spark is loaded when a pipeline is run."""

from typing import Final

import typer

from headrace.cli.pipeline import archiving, assigning, compacting, querying, reporting
from headrace.cli.words import examples

app: Final = typer.Typer(
    help="Run data pipelines over queues, on Spark.",
    epilog=examples(
        'headrace pipeline sql --from telemetry --to alerts "SELECT device FROM telemetry WHERE temperature > 90"',
        "headrace pipeline run pipelines.yaml",
        "headrace pipeline archive --from 'orders,returns' --to archive",
    ),
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
querying.add_to(app)
archiving.add_to(app)
assigning.add_to(app)
reporting.add_to(app)
compacting.add_to(app)
