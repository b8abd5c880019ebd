"""Reference page and JSON schema of the configuration, made from the tables. A start loads none of it."""

from typing import Final

from headrace.config.configuration import variable
from headrace.config.kinds import Kind
from headrace.config.table import Key, Path, Table, Tables

_HEAD: Final = """# Configuration

No configuration is needed. A file, the environment and flags may change the defaults; the later override the former:

1. `headrace serve --config FILE`, else the file that `HEADRACE_CONFIG` names, else `headrace.yaml` in the current
   directory, if it exists. It is YAML; `yes`, `no`, `on` and `off` are texts. Paths are relative to the file.
2. Environment variables, see the tables below.
3. Flags: `headrace serve --help`.

`headrace config check` checks a configuration, `headrace config show` prints every setting and its origin, and
`headrace config schema` prints a JSON schema for editors. A start refuses unknown keys, values of the wrong kind and
contradictory settings, with file and line.

Sizes are bytes, or texts like `64MiB`; durations are texts like `168h`, `30m`, `500ms`, or numbers of seconds.

## Reload

On `SIGHUP` (or `POST /api/v1/reload`) the broker reads its configuration again. Settings marked *live* below, queues
and certificates change at once; the log names the others, which need a restart. An invalid configuration changes
nothing.

## Queues and policies

The broker creates the queues of the file, or changes them where they differ. It leaves other queues alone and deletes
none. It refuses changes that would lose messages: another `type`, or limits and retention that would drop stored
messages. Then use another name, delete the queue (`headrace queues delete`), or set `queue_manager.shrink: drop`.
`max_priority` and `single_active_consumer` change with a restart. In the same way it creates the policies of the file,
or replaces them; [amqp.md](amqp.md#policies) says what they do.

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
    vhost: eu                       # created if missing
policies:
  - name: strays
    pattern: "^app[.]"
    apply_to: exchanges
    definition: {alternate-exchange: strays}
```
"""


def page(table: Table) -> str:
    """Return the whole page, in Markdown."""
    parts = [_HEAD]
    for name, key in table.keys.items():
        if isinstance(key.kind, Table):
            parts.append(_section(name, key.kind))
        elif isinstance(key.kind, Tables):
            parts.append(_list(name, key.kind.item))
    return "\n".join(parts)


def _section(name: str, table: Table) -> str:
    """Write a section; the environment can set its keys, too."""
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
    """Return the JSON schema of a file, for editors and other tools."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "headrace.yaml", **table.schema()}
