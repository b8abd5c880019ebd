"""RabbitMQ's management paths in RabbitMQ's shapes, for tools that call them. Our own API is beside it, in api/."""
