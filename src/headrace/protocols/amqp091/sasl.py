"""Who a client says it is: the answers of PLAIN, AMQPLAIN and EXTERNAL. Whether that is true is decided elsewhere."""

from typing import Final

from headrace.core.logins import Login
from headrace.errors import ProtocolError
from headrace.protocols.amqp091.fields import LongString, Reader
from headrace.protocols.amqp091.frames import SYNTAX_ERROR

PLAIN: Final = "PLAIN"
AMQPLAIN: Final = "AMQPLAIN"
EXTERNAL: Final = "EXTERNAL"


def parse_login(mechanism: str, response: bytes, certificate_name: str, address: str, is_loopback: bool) -> Login:
    """Raises ProtocolError when the response is not one of the mechanism."""
    if mechanism == PLAIN:
        parts = response.split(b"\0")
        if len(parts) != 3:
            raise ProtocolError(SYNTAX_ERROR, "a PLAIN response is an identity, a user and a password with NUL between")
        return Login(parts[1].decode(errors="replace"), parts[2], address, is_loopback)
    if mechanism == AMQPLAIN:
        size = len(response).to_bytes(4, "big")
        table = Reader(size + response).table()
        user, password = table.get("LOGIN"), table.get("PASSWORD")
        if not isinstance(user, str) or not isinstance(password, str | LongString):
            raise ProtocolError(SYNTAX_ERROR, "an AMQPLAIN response is a table with LOGIN and PASSWORD")
        return Login(user, password.encode() if isinstance(password, str) else bytes(password), address, is_loopback)
    if mechanism == EXTERNAL and certificate_name:
        return Login(certificate_name, None, address, is_loopback)
    raise ProtocolError(SYNTAX_ERROR, f"the mechanism {mechanism[:32]!r} is not offered")
