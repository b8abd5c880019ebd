"""Exchanges, patterns and addresses: which queues a message is for. No messages are stored here."""
