"""The reference page of the configuration and its JSON schema, made from the tables. A start reads none of it."""

from typing import Final

from headrace.config.configuration import variable
from headrace.config.kinds import Kind
from headrace.config.table import Key, Path, Table, Tables

_HEAD: Final = """# Configuration

None is needed. What differs from the defaults can be said in a file, in the environment and on the command line; the
later win over the former:

1. `headrace serve --config FILE`, else the file that `HEADRACE_CONFIG` names, else `headrace.yaml` in the current
   directory, if there is one. It is YAML; `yes`, `no`, `on` and `off` are texts. Paths in it are meant from where it
   is.
2. Environment variables, as given below.
3. Flags: `headrace serve --help`.

`headrace config check` says whether a configuration can be used, `headrace config show` what it comes to and where
each setting was made, and `headrace config schema` prints a JSON schema for editors. A key that does not exist, a
value of the wrong kind and settings that contradict each other are refused at the start, with file and line.

Sizes are bytes or written like `64MiB`; durations are written like `168h`, `30m`, `500ms`, or are numbers of seconds.

## Reload

`SIGHUP` (or `POST /api/v1/reload`) has the broker read its configuration again. Settings marked *live* below, queues
and certificates change at once; for the others the log says that they count after a restart. A configuration that
cannot be used changes nothing.

## Queues

Queues in the file are there when the broker serves: made if they were not, changed if they differ. Queues that the
file does not mention are left alone, and none is ever deleted. What would lose messages is refused: another `type`,
or limits and retention so small that stored messages would go at once. The way out is another name, deleting the
queue (`headrace queues delete`), or `queue_manager.shrink: drop`. `max_priority` and `single_active_consumer` change
with a restart.

```yaml
log:
  format: json
queues:
  - name: orders
    topics: ["$queue/orders/#"]
    limits: {max_depth: 50000, message_ttl: 24h}
    retry: {max_retries: 5, initial_backoff: 1s}
  - name: telemetry
    type: stream
    topics: ["sensors/#"]
    capture: true
    retention: {max_age: 7D}
  - name: orders
    vhost: eu                       # made where there is none
```
"""


def page(table: Table) -> str:
    """The whole page, in Markdown."""
    parts = [_HEAD]
    for name, key in table.keys.items():
        if isinstance(key.kind, Table):
            parts.append(_section(name, key.kind))
        elif isinstance(key.kind, Tables):
            parts.append(_list(name, key.kind.item))
    return "\n".join(parts)


def _section(name: str, table: Table) -> str:
    """One that the environment can set, too."""
    lines = [
        f"## `{name}`",
        "",
        table.help,
        "",
        "| key | kind | default | live | variable | |",
        "|---|---|---|---|---|---|",
    ]
    for path, key in table.walk():
        is_live = "live" if key.is_live else ""
        lines.append(_row(path, key, is_live, f"`{variable((name, *path))}`" if len(path) == 1 else ""))
    return "\n".join([*lines, ""])


def _list(name: str, table: Table) -> str:
    lines = [f"## `{name}[]`", "", table.help, "", "| key | kind | default | |", "|---|---|---|---|"]
    lines += [_row(path, key) for path, key in table.walk()]
    return "\n".join([*lines, ""])


def _row(path: Path, key: Key, *more: str) -> str:
    assert isinstance(key.kind, Kind)
    default = key.kind.show(key.default)
    cells = [f"`{'.'.join(map(str, path))}`", key.kind.noun, f"`{default}`" if default else "", *more, key.help]
    return "| " + " | ".join(cells) + " |"


def schema(table: Table) -> dict[str, object]:
    """The JSON schema of a file, for editors and other tools."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "headrace.yaml", **table.schema()}
