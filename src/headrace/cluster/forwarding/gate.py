"""Where other nodes come with their clients: each proves that it is one of us, then a client is met like any other."""

import logging
import secrets
from typing import TYPE_CHECKING, Final, final

from headrace.cluster.forwarding.preamble import (
    HTTP,
    MAX_INTRODUCTION_BYTES,
    NONCE_BYTES,
    NOT_THE_OWNER,
    WELCOME,
    Introduction,
    decode_introduction,
    encode_answer,
    encode_challenge,
    introduction_bytes,
    is_sealed,
)
from headrace.cluster.forwarding.wire_protocol import NUMBERS
from headrace.errors import Refused
from headrace.net.connection import Wire
from headrace.net.handler import Handler

if TYPE_CHECKING:
    from headrace.cluster.forwarding.frontend import Frontend, Local

_log: Final = logging.getLogger("headrace.cluster")
_NAMES: Final = {number: name for name, number in NUMBERS.items()}


@final
class Gate(Handler):
    """One connection of another node, until it is the client's."""

    def __init__(self, doorway: "Frontend", binding: bytes = b"") -> None:
        """`binding` is the hash of the certificate that this side shows, where it shows one."""
        self._doorway = doorway
        self._binding = binding
        self._secret = b"" if doorway.ownership is None else doorway.ownership.secret
        self._challenge = secrets.token_bytes(NONCE_BYTES)
        self._wire: Wire | None = None
        self._data = b""

    def opened(self, wire: Wire) -> None:
        self._wire = wire
        if self._secret:
            wire.send(encode_challenge(self._challenge))
        else:
            wire.close()  # nothing can be proven yet

    def feed(self, data: bytes) -> None:
        wire = self._wire
        if wire is None:
            return
        self._data += data
        try:
            introduction = self._introduction()
        except Refused as error:
            _log.warning("a connection to the port of the cluster is ended: %s", error, extra={"connection": wire.name})
            wire.close()
            return
        if introduction is not None:
            self._admit(wire, introduction)

    def _introduction(self) -> Introduction | None:
        """Who is passed on, by a node of this cluster; None while that is not all here. Raises Refused."""
        length = introduction_bytes(self._data)
        if len(self._data) > (length or MAX_INTRODUCTION_BYTES):
            raise Refused("it says more than it was asked")
        if not length or len(self._data) < length:
            return None
        introduction = decode_introduction(self._data)
        if not is_sealed(introduction, self._challenge, self._secret, self._binding):
            raise Refused("it does not know the secret of this cluster")
        return introduction

    def _admit(self, wire: Wire, introduction: Introduction) -> None:
        local = self._doorway.local
        status = NOT_THE_OWNER if local is None else WELCOME
        wire.send(encode_answer(status, introduction, self._challenge, self._secret, self._binding))
        if local is None:
            wire.close()
        else:
            self._hand_over(wire, introduction, local)

    def _hand_over(self, wire: Wire, introduction: Introduction, local: "Local") -> None:
        origin = introduction.origin
        if introduction.protocol == HTTP:
            wire.give_away(local.http(origin))
            return
        wire.stand_for(origin)
        handler = local.handler(_NAMES[introduction.protocol])
        wire.hand_over(handler)
        handler.opened(wire)

    def hold_output(self, is_held: bool) -> None:
        return  # little is sent

    def beat(self) -> None:
        return  # nothing was agreed

    def stop(self) -> None:
        if self._wire is not None:
            self._wire.close()

    def lost(self) -> None:
        self._wire = None
