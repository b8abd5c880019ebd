"""Connections that come while HTTP is being loaded are served when it is."""

import asyncio
from typing import cast

from headrace.admin.listener import HttpListener, Speaker
from headrace.net.facts import Origin


class _Line(asyncio.Transport):
    """A transport that remembers who has it."""

    def __init__(self) -> None:
        super().__init__()
        self.protocol: asyncio.BaseProtocol | None = None

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def is_closing(self) -> bool:
        return False


class _Speaker(Speaker):
    def protocol(self, origin: Origin | None = None) -> asyncio.Protocol:
        return asyncio.Protocol()

    @property
    def connections(self) -> int:
        return 0

    async def close(self) -> None:
        return


def test_a_connection_that_begins_after_the_loading_it_was_accepted_before_is_served() -> None:
    async def run() -> None:
        listener = HttpListener(_Speaker)
        first, second = listener.accept(), listener.accept()
        early, late = _Line(), _Line()
        first.connection_made(early)
        while early.protocol is None:
            await asyncio.sleep(0.01)

        second.connection_made(late)

        assert cast("object", late.protocol) is not None

    asyncio.run(asyncio.wait_for(run(), 30))
