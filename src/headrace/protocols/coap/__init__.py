"""CoAP (RFC 7252), for devices that publish without a connection: a path is a topic."""
