"""Sockets: listeners, connections with bounded buffers, keepalive. protocols/ knows the meaning of the bytes."""
