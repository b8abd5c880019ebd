"""RabbitMQ's stream protocol: publishers with deduplication, and readers of streams by offset."""
