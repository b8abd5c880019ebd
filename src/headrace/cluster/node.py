"""A node of the cluster as the others see it, and its bytes in the store. Who owns the store is in ownership.py."""

import json
from collections.abc import Mapping
from typing import final

from headrace.errors import Corrupt


@final
class Node:
    """One broker process: what it is called, and where it is reached."""

    __slots__ = ("address", "listeners", "name", "started_us", "version")

    def __init__(
        self, name: str, address: str, version: str, started_us: int, listeners: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.address = address
        """Where other nodes reach it, as host:port."""
        self.version = version
        self.started_us = started_us
        self.listeners = dict(listeners or {})
        """Where clients reach it, as host:port, by listener: amqp, amqps, mqtt, mqtts, ws, http, https, coap."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Node) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash((self.name, self.started_us))

    def __repr__(self) -> str:
        return f"Node({self.name!r} at {self.address})"

    @property
    def internal(self) -> tuple[str, int]:
        """The address that other nodes reach, taken apart."""
        host, _, port = self.address.rpartition(":")
        return host.strip("[]"), int(port)

    def to_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "address": self.address,
            "version": self.version,
            "started_us": self.started_us,
            "listeners": self.listeners,
        }

    @staticmethod
    def from_json(values: object, where: str) -> "Node":
        """Raises Corrupt, naming the object that it stands in."""
        if not isinstance(values, dict):
            raise Corrupt(where, 0, "a node is a JSON object")
        name, address, version = values.get("name"), values.get("address"), values.get("version")
        started_us, listeners = values.get("started_us"), values.get("listeners", {})
        if not (isinstance(name, str) and isinstance(address, str) and isinstance(version, str)):
            raise Corrupt(where, 0, "a node has name, address and version, as texts")
        if not isinstance(started_us, int) or not isinstance(listeners, dict):
            raise Corrupt(where, 0, "a node has the number started_us, and listeners by name")
        host, colon, port = address.rpartition(":")
        if not (host and colon and port.isascii() and port.isdecimal() and int(port) < 65_536):
            raise Corrupt(where, 0, f"{address!r} is not host:port")
        return Node(name, address, version, started_us, {str(key): str(value) for key, value in listeners.items()})


def read_json(data: bytes, where: str) -> dict[str, object]:
    """Raises Corrupt where it is not a JSON object."""
    try:
        values = json.loads(data)
    except ValueError as error:
        raise Corrupt(where, 0, f"not JSON: {error}") from error
    if not isinstance(values, dict):
        raise Corrupt(where, 0, "not a JSON object")
    return values
