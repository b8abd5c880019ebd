"""The configuration of a start or a reload: a YAML file, overridden by the environment, overridden by flags.

All of it is checked before any of it is used; errors name file and line, variable or flag. Models are in settings.py.

YAML follows version 1.2: `yes`, `no`, `on`, `off` and everything with a colon are texts.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path as FilePath
from typing import Any, Final, cast, final

from headrace.config.kinds import BY_CERTIFICATE, Kind, Unfit, shown
from headrace.config.replication import MAIN, meant
from headrace.config.settings import DEFAULT_FILE, RAFT, SECTIONS, TLS_PORTS, Settings, root
from headrace.config.table import Fault, Path, Table, build
from headrace.errors import Refused

PREFIX: Final = "HEADRACE_"
CLIENT_VARIABLES: Final = ("HEADRACE_URL", "HEADRACE_USER", "HEADRACE_PASSWORD", "HEADRACE_VHOST")
OTHER_VARIABLES: Final = (
    PREFIX + "CONFIG", *CLIENT_VARIABLES, PREFIX + "COMPILE", PREFIX + "MASTER", PREFIX + "SPARK_CLASSES",
)  # fmt: skip
"""Known variables that stand for no key."""
_OF_KUBERNETES: Final = re.compile(r"HEADRACE_(.+_)?(SERVICE_(HOST|PORT.*)|PORT_[0-9]+_(TCP|UDP).*)")


def unknown_variables(environment: Mapping[str, str], keys: Sequence[str], cutoff: float = 0.0) -> list[str]:
    """Return a sentence for each unknown variable with our prefix; it names the nearest known one.

    With a cutoff above 0 it skips variables that resemble no known one: others may use the same prefix.
    """
    known = [*keys, *OTHER_VARIABLES]
    found: list[str] = []
    for name in sorted(environment):
        if not name.startswith(PREFIX) or name in known or _OF_KUBERNETES.fullmatch(name):
            continue
        if environment[name].startswith(("tcp://", "udp://")):
            continue  # Kubernetes sets these for a service called headrace
        nearest = _nearest(name, known, cutoff)
        if nearest:
            found.append(f"the environment variable {name} means nothing and is ignored; the nearest is {nearest[0]}")
    return found


def _nearest(name: str, known: Iterable[str], cutoff: float) -> list[str]:
    """The name most like this one, or nothing."""
    from difflib import get_close_matches  # a start without slips needs none of it

    return get_close_matches(name, [*known], 1, cutoff)


MAX_BYTES: Final = 4 << 20
MAX_VALUES: Final = 100_000
_TEXT: Final = "tag:yaml.org,2002:str"
_NULL: Final = "tag:yaml.org,2002:null"
_BOOL: Final = "tag:yaml.org,2002:bool"
_INT: Final = "tag:yaml.org,2002:int"
_FLOAT: Final = "tag:yaml.org,2002:float"


@final
class Document:
    """The values of a YAML file, and their lines."""

    def __init__(self, file: FilePath | None = None) -> None:
        """Read the file, if any. Raises Refused if it cannot be read or is no YAML."""
        self.file = file
        self.values: object = None
        self._lines: dict[Path, int] = {}
        self._count = 0
        if file is not None:
            self._load(_contents(file))

    def where(self, path: Path) -> str:
        """Return file and line of a value, or of the innermost table around it."""
        while path and path not in self._lines:
            path = path[:-1]
        line = self._lines.get(path)
        return f"{self.file}:{line}" if line else str(self.file)

    def has(self, path: Path) -> bool:
        return path in self._lines

    def _load(self, text: str) -> None:
        import yaml  # only a broker with a file needs it

        try:
            root = yaml.compose(text, yaml.SafeLoader)
            self.values = None if root is None else self._build(root, ())
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = f":{mark.line + 1}" if mark is not None else ""
            raise Refused(f"{self.file}{line}: this is no YAML: {error.problem or error.context}") from error
        except yaml.YAMLError as error:
            raise Refused(f"{self.file}: this is no YAML: {' '.join(str(error).split())}") from error
        except RecursionError as error:
            raise Refused(f"{self.file}: this nests too deeply") from error

    def _build(self, node: object, path: Path) -> object:
        import yaml

        assert isinstance(node, yaml.Node)
        self._count += 1
        if self._count > MAX_VALUES or len(path) > 100:
            raise Refused(f"{self.file}: there are more than {MAX_VALUES} values in it, or they nest too deeply")
        self._lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.SequenceNode):
            return [self._build(item, (*path, at)) for at, item in enumerate(node.value)]
        if not isinstance(node, yaml.MappingNode):
            assert isinstance(node, yaml.ScalarNode)
            return _scalar(node.tag, node.value, node.style)
        found: dict[str, object] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            name = key.value
            if not isinstance(name, str):
                raise Refused(f"{self.file}:{line}: a key must be a text")
            if name in found:
                raise Refused(f"{self.file}:{line}: the key {name!r} is there twice")
            self._lines[*path, name] = line
            found[name] = self._build(value, (*path, name))
        return found


def _contents(file: FilePath) -> str:
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise Refused(f"{file} has more than {MAX_BYTES} bytes: it cannot be a configuration")
        return data.decode()
    except OSError as error:
        raise Refused(f"the configuration {file} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise Refused(f"{file} is no text in UTF-8: byte {error.start} is wrong") from error


def _scalar(tag: str, text: str, style: str | None) -> object:
    if style is not None and tag == _TEXT:
        return text
    if tag == _NULL:
        return None
    if tag == _BOOL and text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        if tag == _INT and ":" not in text:
            plain = text.replace("_", "")
            return int(plain) if plain.lstrip("+-").isdecimal() else int(plain, 0)
        if tag == _FLOAT and ":" not in text:
            return float(text.replace("_", "").replace(".inf", "inf").replace(".nan", "nan"))
    except ValueError:
        return text
    return text


Flags = Mapping[tuple[str, str], tuple[str, str]]
"""Overrides by key: the name of the flag or variable, and its text."""


@final
class Configuration:
    """Settings and queues, with the origin of each."""

    def __init__(self, settings: Settings, queues: list[dict[str, object]], document: Document) -> None:
        self.settings = settings
        self.queues = queues
        """Entries of `queues` as written; core reads them."""
        self.policies: list[dict[str, Any]] = []
        """Entries of `policies`, with defaults; core reads their settings."""
        self.document = document
        self.origins: dict[tuple[str, str], str] = {}
        """Origin of each key that is set: file and line, variable or flag."""
        self.warnings: list[str] = []
        """Settings that work but look like a mistake."""

    def changes(self, newer: "Configuration") -> list[tuple[str, str]]:
        """Return the keys whose settings differ."""
        found: list[tuple[str, str]] = []
        for section, kind in SECTIONS.items():
            before, after = getattr(self.settings, section), getattr(newer.settings, section)
            found += [
                (section, part.name) for part in fields(kind) if getattr(before, part.name) != getattr(after, part.name)
            ]
        return found

    def with_changes(self, newer: "Configuration", keys: list[tuple[str, str]]) -> "Configuration":
        """Return this configuration with these keys and all queues of the newer one."""
        settings = self.settings
        for section, name in keys:
            value = getattr(getattr(newer.settings, section), name)
            part = replace(getattr(settings, section), **{name: value})
            settings = replace(settings, **{section: part})
        merged = Configuration(settings, newer.queues, newer.document)
        merged.policies = newer.policies
        merged.origins = {**self.origins, **{key: newer.origins[key] for key in keys if key in newer.origins}}
        return merged

    def located(self, fault: Fault) -> Refused:
        """Return the error with its file and line."""
        return Refused(f"{self.document.where(fault.path)}: {fault}")


def is_live(key: tuple[str, str]) -> bool:
    """Return True if a reload changes this setting while the broker serves."""
    section, name = key
    return any(part.metadata["is_live"] for part in fields(SECTIONS[section]) if part.name == name)


def load(queues: Table, file: FilePath | None, environment: Mapping[str, str], flags: Flags) -> Configuration:
    """Read the whole configuration. Without `file`, `headrace.yaml` is read if it exists.

    `queues` is the table of one queue. Raises Refused with the place and the expected value; for a file, with one
    line for each fault.
    """
    if file is None and (named := environment.get(PREFIX + "CONFIG")):
        file = FilePath(named)
    if file is None and DEFAULT_FILE.exists():
        file = DEFAULT_FILE
    document = Document(file)
    table = root(queues)
    faults = [f"{document.where(fault.path)}: {fault}" for fault in table.faults(document.values)]
    if faults:
        raise Refused("\n".join(faults))
    values = table.read(document.values)
    entries = document.values.get("queues") if isinstance(document.values, dict) else None
    configuration = Configuration(Settings(), list(entries or []), document)
    configuration.policies = cast("list[dict[str, Any]]", values["policies"])
    origins = configuration.origins
    for path, _ in table.walk():
        if document.has(path):
            origins[str(path[0]), str(path[-1])] = document.where(path)
    _unite(values["cluster"], document)
    _anchor(table, values, document)
    _overlay(table, values, _from_environment(table, environment), origins)
    _overlay(table, values, flags, origins)
    configuration.settings = _completed(build(Settings, values))
    keys = [variable(path) for path, _ in table.walk() if len(path) > 1]
    configuration.warnings = unknown_variables(environment, keys)
    _check(configuration)
    return configuration


def _unite(cluster: Any, document: Document) -> None:
    """Move the keys of `cluster.raft` to `cluster`. Raises Refused if both are set and differ."""
    for name, value in cluster.pop(RAFT).items():
        if value is None:
            continue
        if document.has(("cluster", name)) and cluster[name] != value:
            where = document.where(("cluster", RAFT, name))
            raise Refused(f"{where}: 'cluster.raft.{name}' and 'cluster.{name}' say different things; give one of them")
        cluster[name] = value


def _anchor(table: Table, values: dict[str, Any], document: Document) -> None:
    """Make paths relative to the directory of their file."""
    for path, _ in table.walk():
        if document.file is not None and len(path) == 2 and document.has(path):
            section, name = path
            value = values[str(section)][name]
            if isinstance(value, FilePath):
                values[str(section)][name] = document.file.parent / value


def _from_environment(table: Table, environment: Mapping[str, str]) -> Flags:
    """Return the values of variables. Raises Refused for an unknown key of a known section."""
    keys = {variable(path): cast("tuple[str, str]", path) for path, key in table.walk() if len(path) == 2}
    found: dict[tuple[str, str], tuple[str, str]] = {}
    for name in sorted(environment):
        if name in keys:
            found[keys[name]] = (name, environment[name])
        elif name.startswith(tuple(f"{PREFIX}{section.upper()}_" for section in SECTIONS)):
            nearest = _nearest(name, keys, 0.0)[0]
            raise Refused(
                f"the environment variable {name} stands for no key; the nearest is {nearest}, known are "
                f"{', '.join(sorted(keys))}"
            )
    return found


def variable(path: Path) -> str:
    """Return the environment variable of a key."""
    return PREFIX + "_".join(str(part) for part in path).upper()


def _overlay(table: Table, values: dict[str, Any], texts: Flags, origins: dict[tuple[str, str], str]) -> None:
    for (section, name), (origin, text) in texts.items():
        inner = table.keys[section].kind
        assert isinstance(inner, Table)
        kind = inner.keys[name].kind
        assert isinstance(kind, Kind)
        try:
            values[section][name] = kind.parse(text)
        except Unfit as error:
            raise Refused(f"{origin} {error}, not {shown(text)}") from error
        origins[section, name] = origin


def _completed(settings: Settings) -> Settings:
    """Set default TLS ports: the usual ones with a certificate, else off. Resolve the name of the group."""
    has_certificate = settings.tls.certificate is not None
    found: dict[str, Any] = {
        name: port if has_certificate else None
        for name, port in TLS_PORTS.items()
        if getattr(settings.listeners, name) == BY_CERTIFICATE
    }
    cluster = replace(settings.cluster, group=meant(settings.cluster.group))
    return replace(settings, listeners=replace(settings.listeners, **found), cluster=cluster)


def _check(configuration: Configuration) -> None:
    """Raises Refused for contradictory settings."""
    settings, origins = configuration.settings, configuration.origins
    tls, listeners, storage = settings.tls, settings.listeners, settings.storage
    if storage.memory and ("storage", "data") in origins:
        raise Refused(
            f"{origins['storage', 'data']}: nothing is kept in a directory, because memory is asked for "
            f"({origins['storage', 'memory']}); give either --data or --memory, or the keys of that name in storage"
        )
    for other, is_given in (("data", ("storage", "data") in origins), ("memory", storage.memory)):
        if storage.store and is_given:
            raise Refused(
                f"{origins['storage', other]}: everything is kept in {storage.store} ({origins['storage', 'store']}); "
                f"give either --{other} or --store, or the keys of that name in storage"
            )
    if settings.cluster.node and not storage.store:
        raise Refused(
            f"{origins['cluster', 'node']}: the nodes of a cluster share an object store; "
            f"give --store, or store in storage"
        )
    if settings.cluster.group != MAIN and not storage.store:
        raise Refused(
            f"{origins['cluster', 'group']}: a replication group is a database of an object store; "
            f"give --store, or store in storage"
        )
    if (tls.certificate is None) != (tls.key is None) or (tls.authority is not None and tls.certificate is None):
        given = next(name for name in ("certificate", "key", "authority") if getattr(tls, name) is not None)
        raise Refused(
            f"{origins['tls', given]}: TLS needs both a certificate and its key; "
            f"give --tls-cert and --tls-key, or certificate and key in tls"
        )
    jwt = settings.jwt
    if jwt.keys is not None and not (jwt.issuer and jwt.audience and jwt.user_claim):
        raise Refused(
            f"{origins['jwt', 'keys']}: keys for tokens need to know whose and for whom: "
            f"give issuer, audience and user_claim in jwt, too"
        )
    taken: dict[int, str] = {}
    for part in fields(listeners):
        port = getattr(listeners, part.name)
        if part.name in TLS_PORTS and port is not None and tls.certificate is None:
            raise Refused(
                f"{origins['listeners', part.name]}: {part.name} needs a certificate; "
                f"give --tls-cert and --tls-key, or certificate and key in tls"
            )
        if isinstance(port, int) and port and part.name != "coap":  # CoAP is UDP
            if port in taken:
                origin = origins.get(("listeners", part.name)) or origins.get(("listeners", taken[port]))
                raise Refused(f"{origin}: {part.name} and {taken[port]} cannot both have port {port}")
            taken[port] = part.name
