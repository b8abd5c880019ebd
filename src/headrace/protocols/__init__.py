"""One folder per wire protocol: bytes to values without I/O, and values to the core's calls. They decide nothing."""
