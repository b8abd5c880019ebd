"""Who a client says it is: the answers of PLAIN, ANONYMOUS and EXTERNAL. Whether that is true is decided elsewhere."""

from typing import Final, final

PLAIN: Final = "PLAIN"
ANONYMOUS: Final = "ANONYMOUS"
EXTERNAL: Final = "EXTERNAL"


@final
class Claim:
    """A claim to be a user: without a password it rests on the certificate, without a name on nothing."""

    __slots__ = ("password", "user")

    def __init__(self, user: str, password: bytes | None) -> None:
        self.user = user
        self.password = password

    @property
    def is_anonymous(self) -> bool:
        return not self.user and self.password is None


NOBODY: Final = Claim("", None)


def parse_claim(mechanism: str, response: bytes, certificate_name: str) -> Claim | None:
    """None when the response is not one of a mechanism that is offered."""
    if mechanism == PLAIN:
        parts = response.split(b"\0")
        return Claim(parts[1].decode(errors="replace"), parts[2]) if len(parts) == 3 and parts[1] else None
    if mechanism == ANONYMOUS:
        return NOBODY
    if mechanism == EXTERNAL and certificate_name:
        return Claim(certificate_name, None)
    return None
