"""Clients of a node that does not own the store: forwarded, redirected or refused."""
