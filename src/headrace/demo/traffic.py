"""The traffic of the demo: readings of sensors, orders of a shop, and their handling. No sockets, no own chance."""

import json
import math
from random import Random
from typing import Final, final

from headrace.demo.clients import ACK, REJECT, RETRY

SITES: Final = ("hamburg", "lisbon", "oslo")
DEVICES: Final = 4
_ITEMS: Final = ("espresso", "filter coffee", "cappuccino", "croissant", "orange juice")
_MALFORMED: Final = 0.04
_FAILURES: Final = 0.15
_EXPIRED: Final = 0.03


@final
class Sensors:
    """Machines at some sites, each with a temperature that goes up and down and has rare peaks."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self._step = 0

    def readings(self) -> list[tuple[str, bytes]]:
        """Return the current topic and payload of every machine."""
        self._step += 1
        found: list[tuple[str, bytes]] = []
        for number, site in enumerate(SITES):
            for device in range(1, DEVICES + 1):
                wave = math.sin(self._step / 20 + number + device / 3)
                celsius = 91 + 2 * wave + self._chance.gauss(0, 0.2) + (8 if self._chance.random() < 0.01 else 0)
                reading = {"site": site, "device": f"boiler-{device}", "celsius": round(celsius, 2)}
                found.append((f"sensors/{site}/boiler-{device}", json.dumps(reading).encode()))
        return found


@final
class Shop:
    """Orders, and a worker that handles most of them, fails at some, and rejects malformed ones."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self._number = 0
        self.done = 0
        self.failed = 0
        self.rejected = 0

    def order(self) -> bytes:
        self._number += 1
        if self._chance.random() < _MALFORMED:
            return json.dumps({"order": self._number, "items": None}).encode()
        items = self._chance.choices(_ITEMS, k=self._chance.randint(1, 4))
        is_expired = self._chance.random() < _EXPIRED
        return json.dumps({"order": self._number, "items": items, "card": "expired" if is_expired else "ok"}).encode()

    def handle(self, payload: bytes) -> str:
        """Handle an order. An order with an expired card always fails, until it is a dead letter."""
        order = json.loads(payload)
        if not order["items"]:
            self.rejected += 1
            return REJECT
        if order["card"] == "expired" or self._chance.random() < _FAILURES:
            self.failed += 1
            return RETRY
        self.done += 1
        return ACK
