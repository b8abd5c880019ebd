"""A job in a YAML file, read and checked: pipelines under `pipelines:`. Running it: job.py; each type has its own file.

job: plant                               the file's name without it
restarts: 5                              of every pipeline that says no other number
pipelines:
  hot:                                   the pipeline's name
    type: sql                            or archive, assign, replay, report, compact
    from: telemetry
    to: alerts
    sql: SELECT device FROM telemetry WHERE temperature > 90
"""

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, final

import yaml

from headrace.config.kinds import Choice, Flag, Kind, Number, Unfit
from headrace.errors import Refused
from headrace.spark.pipelines.archive import EVERY, ArchiveSettings
from headrace.spark.pipelines.assign import MAX_BYTES as ASSIGN_BYTES
from headrace.spark.pipelines.assign import AssignSettings, Filters, read_filters
from headrace.spark.pipelines.compact import ROUTING_KEY, CompactSettings, check_key
from headrace.spark.pipelines.endpoint import Endpoint
from headrace.spark.pipelines.job import Job, PipelineSettings, Planned
from headrace.spark.pipelines.replay import ReplaySettings
from headrace.spark.pipelines.run import DEFAULT_STATES
from headrace.spark.pipelines.schedule import ScheduleKind
from headrace.spark.pipelines.sql import MODES, SqlSettings, SqlSource
from headrace.spark.pipelines.tables import FORMATS, PARQUET

QUEUE_TYPES: Final = ("classic", "quorum", "stream")
_FLAG: Final = Flag(ignores_case=True)
_SQL: Final = "sql"
_COMMON: Final = ("type", "url", "vhost", "replication_group", "schedule", "restarts")
"""Keys of all pipelines."""
_MOST_RESTARTS: Final = 1_000_000
_RESTARTS: Final = Number(0, _MOST_RESTARTS)


@dataclass(frozen=True)
class Defaults:
    """Settings of all pipelines of a file that do not have their own."""

    endpoint: Endpoint
    once: bool = False
    states: Path = DEFAULT_STATES


def read_job(path: Path, defaults: Defaults) -> Job:
    """Read the job of a file, its pipelines in their order. Raises Refused with file, line and key."""
    top, steps = _below(path, "pipelines", "write the pipelines below it, each with a name")
    restarts = top.value("restarts", _RESTARTS, 0)
    pipelines = tuple(_pipeline(name, steps.section(name), defaults, restarts) for name in steps.nodes)
    return Job(top.text("job", path.stem), pipelines, defaults.states)


def read_filter_file(path: Path) -> Filters:
    """Read the filters of a file, by queue. Raises Refused with file, line and queue."""
    _, section = _below(path, "filters", "write QUEUE: EXPRESSION below it for each queue")
    for queue in section.nodes:
        try:
            read_filters({queue: section.text(queue)})
        except Refused as error:
            raise section.wrong(str(error), queue) from error
    return read_filters({queue: section.text(queue) for queue in section.nodes})


def _below(path: Path, key: str, advice: str) -> tuple["Section", "Section"]:
    """Return the file, which may have other keys, and the section under a key. Raises Refused."""
    try:
        root = yaml.compose(path.read_text(), yaml.SafeLoader)
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"{path} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        raise Refused(f"{path}{line}: this is no YAML: {getattr(error, 'problem', None) or error}") from error
    top = Section(path, "", root) if root is not None else None
    if top is None or key not in top.nodes:
        raise Refused(f"{path}: there is no key {key!r}; {advice}")
    found = top.section(key)
    if not found.nodes:
        raise found.wrong(advice)
    return top, found


@final
class Section:
    """A mapping of the file, with its position for error messages."""

    def __init__(self, path: Path, key: str, node: yaml.Node) -> None:
        self._path = path
        self._key = key
        self._node = node
        self.nodes: dict[str, yaml.Node] = {}
        if not isinstance(node, yaml.MappingNode):
            raise self.wrong("must have keys and values below it")
        for name, value in node.value:
            if not isinstance(name, yaml.ScalarNode) or name.value in self.nodes:
                raise Refused(
                    f"{path}:{name.start_mark.line + 1}: {key or 'the file'} has a key twice or without a name"
                )
            self.nodes[name.value] = value

    def wrong(self, what: str, name: str = "") -> Refused:
        """Return an error with the position of a key of this section, or of the section."""
        node = self.nodes.get(name, self._node) if name else self._node
        key = ".".join(part for part in (self._key, name) if part) or "the file"
        return Refused(f"{self._path}:{node.start_mark.line + 1}: {key}: {what}")

    def only(self, *own: str) -> None:
        """Check that there are no other keys than these and those of all pipelines. Raises Refused."""
        allowed = (*_COMMON, *own)
        self.none_but(allowed)

    def none_but(self, allowed: Sequence[str]) -> None:
        """Check that there are no other keys than these. Raises Refused."""
        for name in self.nodes:
            if name not in allowed:
                close = difflib.get_close_matches(name, allowed, 1)
                advice = f"did you mean {close[0]}?" if close else f"there may be {', '.join(allowed)}"
                raise self.wrong(f"there is no such key; {advice}", name)

    def section(self, name: str) -> "Section":
        return Section(self._path, ".".join(part for part in (self._key, name) if part), self.nodes[name])

    def text(self, name: str, default: str | None = None) -> str:
        node = self.nodes.get(name)
        if node is None:
            if default is None:
                raise self.wrong(f"{name} is missing")
            return default
        if not isinstance(node, yaml.ScalarNode) or not node.value.strip():
            raise self.wrong("must be a text", name)
        return str(node.value)

    def texts(self, name: str) -> list[str]:
        """Return one text, or a list of texts, as a list."""
        node = self.nodes.get(name)
        if not isinstance(node, yaml.SequenceNode):
            return [self.text(name)]
        if not node.value or not all(isinstance(each, yaml.ScalarNode) and each.value for each in node.value):
            raise self.wrong("must be a text or a list of texts", name)
        return [str(each.value) for each in node.value]

    def value(self, name: str, kind: Kind, default: object) -> Any:
        """Return a text as its kind reads it. Raises Refused."""
        if name not in self.nodes:
            return default
        text = self.text(name)
        try:
            return kind.parse(text)
        except Unfit as error:
            raise self.wrong(f"is {text!r}; it {error}", name) from error

    def mapping(self, name: str) -> Mapping[str, str]:
        """Return texts by name; empty without the key."""
        if name not in self.nodes:
            return {}
        inner = self.section(name)
        return {each: inner.text(each) for each in inner.nodes}


def _pipeline(name: str, section: Section, defaults: Defaults, restarts: int) -> Planned:
    type_ = section.value("type", Choice(*_READERS, expected=f"may be {', '.join(_READERS)}"), _SQL)
    settings = _READERS[type_](name, section, defaults)
    schedule = section.value("schedule", ScheduleKind(), None)
    if schedule is not None and "every" in section.nodes:
        raise section.wrong("is for a pipeline that goes on; a schedule says when it runs up to now", "every")
    return Planned(name, type_, settings, schedule, section.value("restarts", _RESTARTS, restarts))


def _endpoint(section: Section, defaults: Defaults) -> Endpoint:
    return Endpoint(
        section.text("url", defaults.endpoint.url),
        section.text("vhost", defaults.endpoint.vhost),
        defaults.endpoint.user,
        defaults.endpoint.password,
        section.text("replication_group", defaults.endpoint.replication_group),
    )


def _sql(name: str, section: Section, defaults: Defaults) -> SqlSettings:
    section.only(
        "from", "to", "parquet", "console", "sql", "schema", "watermark", "starting", "mode", "every", "once", "state",
        "max_messages",
    )  # fmt: skip
    sources = _sources(section)
    mode = section.value("mode", Choice(*MODES), "append")
    queue, parquet, console = (
        section.text("to", ""),
        section.text("parquet", ""),
        section.value("console", _FLAG, False),
    )
    if sum([bool(queue), bool(parquet), console]) != 1:
        raise section.wrong("say where the rows go, once: to: QUEUE, parquet: DIRECTORY or console: true")
    return SqlSettings(
        name,
        _endpoint(section, defaults),
        sources,
        section.text("sql"),
        Path(section.text("state", str(defaults.states / name))),
        queue,
        parquet,
        console,
        mode,
        section.value("once", _FLAG, defaults.once),
        section.text("every", ""),
        section.value("max_messages", Number(), 0),
    )


def _sources(section: Section) -> tuple[SqlSource, ...]:
    queues = section.texts("from")
    schemas, watermarks = _by_queue(section, "schema", queues), _by_queue(section, "watermark", queues)
    starting = section.text("starting", "earliest")
    return tuple(SqlSource(each, "", schemas[each], watermarks[each], starting) for each in queues)


def _by_queue(section: Section, key: str, queues: list[str]) -> dict[str, str]:
    """Return a setting by queue; a single value is for all queues."""
    if not isinstance(section.nodes.get(key), yaml.MappingNode):
        return dict.fromkeys(queues, section.text(key, ""))
    given = section.mapping(key)
    section.section(key).none_but(queues)
    return {queue: given.get(queue, "") for queue in queues}


def _archive(name: str, section: Section, defaults: Defaults) -> ArchiveSettings:
    section.only("from", "to", "group", "every", "once", "max_bytes", "format")
    return ArchiveSettings(
        name,
        _endpoint(section, defaults),
        ",".join(section.texts("from")),
        Path(section.text("to")),
        section.text("group", "archive"),
        section.value("once", _FLAG, defaults.once),
        section.text("every", EVERY),
        section.text("max_bytes", ""),
        section.value("format", Choice(*FORMATS), PARQUET),
    )


def _assign(name: str, section: Section, defaults: Defaults) -> AssignSettings:
    section.only("from", "filters", "starting", "every", "once", "state", "max_bytes", "read")
    endpoint, read = _endpoint(section, defaults), section.text("read", "")
    source = replace(endpoint, url=read) if read else None
    try:
        filters = read_filters(section.mapping("filters"))
    except Refused as error:
        raise section.wrong(str(error), "filters") from error
    return AssignSettings(
        name,
        replace(endpoint, replication_group="") if read else endpoint,
        ",".join(section.texts("from")),
        filters,
        Path(section.text("state", str(defaults.states / name))),
        section.text("starting", "earliest"),
        section.value("once", _FLAG, defaults.once),
        section.text("every", ""),
        section.text("max_bytes", ASSIGN_BYTES),
        source,
    )


def _replay(name: str, section: Section, defaults: Defaults) -> ReplaySettings:
    section.only("from", "archive", "to", "starting", "ending", "filter", "rate", "mark", "create", "state")
    if "from" not in section.nodes and "archive" not in section.nodes:
        raise section.wrong("say which messages: from: QUEUE, archive: DIRECTORY, or both")
    return ReplaySettings(
        name,
        _endpoint(section, defaults),
        ",".join(section.texts("from")) if "from" in section.nodes else "",
        section.text("to"),
        Path(section.text("state", str(defaults.states / name))),
        section.text("archive", ""),
        section.text("starting", "earliest"),
        section.text("ending", "latest"),
        section.text("filter", ""),
        section.value("rate", Number(), 0),
        section.value("mark", _FLAG, False),
        section.value("create", Choice(*QUEUE_TYPES), ""),
    )


def _report(name: str, section: Section, defaults: Defaults) -> PipelineSettings:
    section.only("from", "to", "starting", "ending", "topics")
    from headrace.spark.pipelines.report import ReportSettings  # plots are an extra

    return ReportSettings(
        _endpoint(section, defaults),
        ",".join(section.texts("from")),
        Path(section.text("to")),
        section.text("starting", "earliest"),
        section.text("ending", "latest"),
        section.value("topics", Number(1), 20),
        name,
    )


def _compact(name: str, section: Section, defaults: Defaults) -> CompactSettings:
    section.only("from", "to", "key", "state")
    queue, key = section.text("from"), section.text("key", ROUTING_KEY)
    try:
        check_key(key)
    except Refused as error:
        raise section.wrong(str(error), "key") from error
    state = Path(section.text("state", str(defaults.states / name)))
    return CompactSettings(_endpoint(section, defaults), queue, section.text("to", queue), state, key, name)


_READERS: Final[dict[str, Callable[[str, Section, Defaults], PipelineSettings]]] = {
    _SQL: _sql,
    "archive": _archive,
    "assign": _assign,
    "replay": _replay,
    "report": _report,
    "compact": _compact,
}
