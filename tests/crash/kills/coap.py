"""Devices that publish over CoAP: every message that was answered is there, once."""

from collections.abc import Callable

from tests.coap_client import Device
from tests.crash.kills.book import Book
from tests.crash.kills.message import body_of
from tests.crash.kills.part import Part, drained
from tests.servers import Server

_QUEUE = "coap.jobs"
_SIZES = (0, 1, 17, 300, 1000)


class Coap(Part):
    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self.jobs = Book(_QUEUE, is_watched=False)

    def set_up(self) -> None:
        self.server.connect().channel().queue_declare(_QUEUE, durable=True)

    def work(self) -> list[Callable[[], None]]:
        return [self._publish]

    def counts(self) -> dict[str, int]:
        return {"coap confirmed": self.jobs.confirmed}

    def _publish(self) -> None:
        device = Device(self.server.ports["coap"])
        try:
            for number in range(1 << 30):
                uid = f"{self.publisher('coap')}-{number}-{_SIZES[number % len(_SIZES)]}"
                self.jobs.sending(uid)
                device.publish(_QUEUE, uid, body_of(uid))
                self.jobs.told(uid)
        finally:
            device.close()

    def check(self, killed_at: float) -> list[str]:
        found = drained(self.server, _QUEUE)
        problems = self.jobs.check(found, killed_at)
        self.jobs.drained(found)
        return problems
