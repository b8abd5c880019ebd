"""Where a connection comes from that another node of the cluster passes on. A value; preamble.py has its bytes."""

from typing import final


@final
class Origin:
    """A client as the node saw it that it came to."""

    __slots__ = ("address", "certificate_name", "is_loopback", "is_tls", "local", "node", "port")

    def __init__(
        self,
        address: str,
        port: int,
        local: str,
        node: str,
        is_tls: bool = False,
        is_loopback: bool = False,
        certificate_name: str = "",
    ) -> None:
        self.address = address
        """Where the client is, without its port."""
        self.port = port
        self.local = local
        """Which address of the node it came to, as host:port."""
        self.node = node
        """Which node that is."""
        self.is_tls = is_tls
        self.is_loopback = is_loopback
        """Whether the client is on the machine of that node."""
        self.certificate_name = certificate_name
        """The common name of the certificate that the client proved to have."""
