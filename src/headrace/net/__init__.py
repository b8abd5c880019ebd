"""Sockets: listeners, connections with bounded buffers, keepalive. What the bytes mean is in protocols/."""
