"""Queues that streams fill: how far each is, and who is served next. No client publishes here."""
