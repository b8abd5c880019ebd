"""AMQP 1.0: bytes to values in the codec files, values to core in the others."""
