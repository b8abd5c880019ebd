"""Queues that streams fill: the position of each, and the order of service. No client publishes here."""
