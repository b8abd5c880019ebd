"""Who a client says it is: the answers of PLAIN, ANONYMOUS and EXTERNAL. Whether that is true is decided elsewhere."""

from typing import Final

from headrace.core.logins import Login
from headrace.core.users import GUEST

PLAIN: Final = "PLAIN"
ANONYMOUS: Final = "ANONYMOUS"
EXTERNAL: Final = "EXTERNAL"


def parse_login(
    mechanism: str, response: bytes, certificate_name: str, address: str, is_loopback: bool
) -> Login | None:
    """None when the response is not one of a mechanism that is offered. Who says nothing is guest, as long as guest
    has its first password."""
    if mechanism == PLAIN:
        parts = response.split(b"\0")
        if len(parts) != 3:
            return None
        return Login(parts[1].decode(errors="replace"), parts[2], address, is_loopback)
    if mechanism == ANONYMOUS:
        return Login(GUEST, GUEST.encode(), address, is_loopback)
    if mechanism == EXTERNAL and certificate_name:
        return Login(certificate_name, None, address, is_loopback)
    return None
