"""The configuration that a start or a reload works with: a file, over it the environment, over that the flags.

Everything is checked before anything is used, and whatever is wrong is said with where it stands.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path as FilePath
from typing import Any, Final, cast, final

from headrace.config.document import Document
from headrace.config.groups import MAIN, meant
from headrace.config.kinds import BY_CERTIFICATE, Kind, Unfit, shown
from headrace.config.settings import DEFAULT_FILE, SECTIONS, TLS_PORTS, Settings, build, root
from headrace.config.table import Fault, Path, Table
from headrace.errors import Refused

PREFIX: Final = "HEADRACE_"

Flags = Mapping[tuple[str, str], tuple[str, str]]
"""What the command line says: by key, the flag's name and the text it was given."""


@final
class Configuration:
    """Settings and queues, and where each of them was said."""

    def __init__(self, settings: Settings, queues: list[dict[str, object]], document: Document) -> None:
        self.settings = settings
        self.queues = queues
        """The entries of `queues` as they were written; what they come to is core's to say."""
        self.document = document
        self.origins: dict[tuple[str, str], str] = {}
        """Who set each key that is not as it would be by itself."""

    def changes(self, newer: "Configuration") -> list[tuple[str, str]]:
        """The keys whose settings differ."""
        found: list[tuple[str, str]] = []
        for section, kind in SECTIONS.items():
            before, after = getattr(self.settings, section), getattr(newer.settings, section)
            found += [
                (section, part.name) for part in fields(kind) if getattr(before, part.name) != getattr(after, part.name)
            ]
        return found

    def with_changes(self, newer: "Configuration", keys: list[tuple[str, str]]) -> "Configuration":
        """This configuration with what the newer one says of these keys, and with its queues."""
        settings = self.settings
        for section, name in keys:
            value = getattr(getattr(newer.settings, section), name)
            part = replace(getattr(settings, section), **{name: value})
            settings = replace(settings, **{section: part})
        merged = Configuration(settings, newer.queues, newer.document)
        merged.origins = {**self.origins, **{key: newer.origins[key] for key in keys if key in newer.origins}}
        return merged

    def located(self, fault: Fault) -> Refused:
        """The error with the file and the line it is about."""
        return Refused(f"{self.document.where(fault.path)}: {fault}")


def is_live(key: tuple[str, str]) -> bool:
    """Whether a reload changes this setting while the broker serves."""
    section, name = key
    return any(part.metadata["is_live"] for part in fields(SECTIONS[section]) if part.name == name)


def load(queues: Table, file: FilePath | None, environment: Mapping[str, str], flags: Flags) -> Configuration:
    """Everything that was configured. Without a file, `headrace.yaml` is read where there is one.

    `queues` is the table of one queue. Raises Refused, naming file and line, variable or flag, and what was expected;
    all that is wrong in a file is told at once, a line each.
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
    origins = configuration.origins
    for path, _ in table.walk():
        if document.has(path):
            origins[cast("tuple[str, str]", path)] = document.where(path)
    _anchor(table, values, document)
    _overlay(table, values, _from_environment(table, environment), origins)
    _overlay(table, values, flags, origins)
    configuration.settings = _completed(build(values))
    _check(configuration)
    return configuration


def _anchor(table: Table, values: dict[str, Any], document: Document) -> None:
    """Paths in a file are meant from where the file is."""
    for path, _ in table.walk():
        if document.file is not None and len(path) > 1 and document.has(path):
            section, name = path
            value = values[str(section)][name]
            if isinstance(value, FilePath):
                values[str(section)][name] = document.file.parent / value


def _from_environment(table: Table, environment: Mapping[str, str]) -> Flags:
    """What variables say. Raises Refused for one that begins like a section and names no key of it."""
    keys = {variable(path): cast("tuple[str, str]", path) for path, key in table.walk() if len(path) > 1}
    found: dict[tuple[str, str], tuple[str, str]] = {}
    for name in sorted(environment):
        if name in keys:
            found[keys[name]] = (name, environment[name])
        elif name.startswith(tuple(f"{PREFIX}{section.upper()}_" for section in SECTIONS)):
            raise Refused(f"the environment variable {name} stands for no key; known are {', '.join(sorted(keys))}")
    return found


def variable(path: Path) -> str:
    """The environment variable that stands for a key."""
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
    """TLS ports that nobody set are the usual ones where there is a certificate, and off where there is none.

    The group has the name that its database has.
    """
    has_certificate = settings.tls.certificate is not None
    found: dict[str, Any] = {
        name: port if has_certificate else None
        for name, port in TLS_PORTS.items()
        if getattr(settings.listeners, name) == BY_CERTIFICATE
    }
    cluster = replace(settings.cluster, group=meant(settings.cluster.group))
    return replace(settings, listeners=replace(settings.listeners, **found), cluster=cluster)


def _check(configuration: Configuration) -> None:
    """Raises Refused for settings that contradict each other."""
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
        if isinstance(port, int) and port and part.name != "coap":  # which is UDP
            if port in taken:
                origin = origins.get(("listeners", part.name)) or origins.get(("listeners", taken[port]))
                raise Refused(f"{origin}: {part.name} and {taken[port]} cannot both have port {port}")
            taken[port] = part.name
