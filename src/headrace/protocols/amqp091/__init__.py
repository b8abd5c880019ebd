"""AMQP 0-9-1 as RabbitMQ's clients speak it."""
