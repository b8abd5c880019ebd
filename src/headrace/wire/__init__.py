"""The property bytes of a message in every encoding, read and written for core, the protocols and Spark."""
