"""Exchanges, patterns and addresses: the queues of a message. No messages are stored here."""
